"""The contract of every reader: each extent comes whole, at any alignment, in any order, or fails by itself."""

from __future__ import annotations

import gc
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.contracts import ByteArray, Completed, Extents, Numbers, Reader
from penstock.errors import BadSetting, ReadFailed

FILE_BYTES = 300_001
MEMORY_BYTES = 1 << 20
UNTOUCHED = 0xA5


class ReaderContract(ABC):
    """Tests of a reader; a subclass named ``Test...`` runs them."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    @abstractmethod
    def make(self, memory: Any, depth: int) -> Reader:
        """Make a reader into this memory."""

    def put(self, name: str, content: bytes) -> str:
        """Store or replace something that the reader can read; return its path."""
        path = self.folder / name
        path.write_bytes(content)
        return str(path)

    def missing(self) -> str:
        """Return the path of something that does not exist."""
        return str(self.folder / "missing")

    def new_memory(self) -> Any:
        """Make memory to read into, on the host or a device: ``MEMORY_BYTES``, all ``UNTOUCHED``."""
        return new_memory()

    def fetched(self, memory: Any) -> ByteArray:
        """Return the memory's content as host memory."""
        return memory

    @contextmanager
    def reading(self, memory: Any, depth: int = 16) -> Generator[Reader]:
        """Make a reader that is closed in the end."""
        reader = self.make(memory, depth)
        try:
            yield reader
        finally:
            reader.close()

    @pytest.mark.parametrize("unit", [1, 4096], ids=["any alignment", "pages"])
    @pytest.mark.parametrize("seed", range(3))
    def test_every_byte_of_many_extents_is_right_and_no_other_changes(self, unit: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        contents: list[bytes] = [rng.bytes(FILE_BYTES) for _ in range(3)]
        memory = self.new_memory()
        expected = np.full(MEMORY_BYTES, UNTOUCHED, np.uint8)
        nbytes, to = _apart(rng, 200, unit)
        files = rng.integers(0, 3, len(nbytes))
        offsets = rng.integers(0, (FILE_BYTES - nbytes) // unit + 1) * unit
        with self.reading(memory) as reader:
            opened = [reader.open(self.put(f"file{i}", content)) for i, content in enumerate(contents)]
            assert [each.nbytes for each in opened] == [FILE_BYTES] * 3
            handles = np.array([each.file for each in opened])[files]
            done = read_all(reader, Extents(np.arange(len(nbytes)), handles, offsets, nbytes, to))
        assert not done.failures
        assert sorted(done.tags.tolist()) == list(range(len(nbytes)))
        for file, offset, n, start in zip(files, offsets, nbytes, to, strict=True):
            expected[start : start + n] = np.frombuffer(contents[int(file)], np.uint8)[offset : offset + n]
        np.testing.assert_array_equal(self.fetched(memory), expected)

    def test_no_more_are_taken_than_the_depth_and_those_that_were_come(self) -> None:
        with self.reading(self.new_memory(), depth=4) as reader:
            file, _ = reader.open(self.put("file", bytes(FILE_BYTES)))
            extents = _pages(file, 10)
            assert reader.submit(extents) == 4
            assert reader.submit(extents) == 0
            first = reader.completed(1)
            assert 1 <= len(first.tags) <= 4
            assert reader.submit(extents.part(4)) == len(first.tags)
            rest = reader.completed(100)
            assert sorted([*first.tags.tolist(), *rest.tags.tolist()]) == list(range(4 + len(first.tags)))
            assert len(reader.completed(1).tags) == 0

    def test_one_extent_fails_alone_where_the_file_ends(self) -> None:
        memory = self.new_memory()
        content = np.random.default_rng(5).bytes(FILE_BYTES)
        with self.reading(memory) as reader:
            path = self.put("file", content)
            file, _ = reader.open(path)
            offsets = np.array([0, FILE_BYTES - 5000, FILE_BYTES + 123_456, 4096])
            nbytes = np.array([4096, 5001, 4096, 8192])
            to = np.array([0, 8192, 16384, 20480])
            done = read_all(reader, Extents(np.arange(4), np.full(4, file), offsets, nbytes, to))
        assert sorted(done.tags.tolist()) == [0, 1, 2, 3]
        assert set(done.failures) == {1, 2}
        for tag, failure in done.failures.items():
            assert (failure.path, failure.offset) == (path, offsets[tag])
            assert path in str(failure)
            assert f"{offsets[tag]:,}" in str(failure)
        for tag in (0, 3):
            start = offsets[tag]
            got = self.fetched(memory)[to[tag] : to[tag] + nbytes[tag]].tobytes()
            assert got == content[start : start + nbytes[tag]]

    def test_the_last_bytes_of_a_file_of_odd_size_come(self) -> None:
        memory = self.new_memory()
        with self.reading(memory) as reader:
            file, nbytes = reader.open(self.put("file", bytes(range(256)) * 16 + b"end"))
            done = read_all(reader, extents_of(file, [0], [nbytes], [0]))
        assert not done.failures
        assert self.fetched(memory)[4095:4100].tobytes() == b"\xffend\xa5"

    def test_a_file_that_shrinks_fails_the_extents_that_are_gone(self) -> None:
        with self.reading(self.new_memory()) as reader:
            path = self.put("file", bytes(FILE_BYTES))
            file, _ = reader.open(path)
            self.put("file", bytes(8192))
            done = read_all(reader, extents_of(file, [0, 8192], [4096, 4096], [0, 4096]))
        assert set(done.failures) == {1}

    def test_what_is_not_there_cannot_be_opened_and_the_reader_goes_on(self) -> None:
        with self.reading(self.new_memory()) as reader:
            with pytest.raises(ReadFailed) as caught:
                reader.open(self.missing())
            assert self.missing() in str(caught.value)
            file, _ = reader.open(self.put("file", bytes(4096)))
            assert not read_all(reader, extents_of(file, [0], [4096], [0])).failures

    def test_a_path_is_opened_once(self) -> None:
        with self.reading(self.new_memory()) as reader:
            path = self.put("file", bytes(4096))
            assert reader.open(path) == reader.open(path)
            assert reader.open(self.put("other", bytes(10))).file != reader.open(path).file

    @pytest.mark.parametrize(
        ("offset", "nbytes", "to"), [(0, 0, 0), (0, 4096, MEMORY_BYTES - 4095), (0, 4096, -1), (-4096, 4096, 0)]
    )
    def test_an_extent_that_makes_no_sense_is_refused_with_all_beside_it(
        self, offset: int, nbytes: int, to: int
    ) -> None:
        memory = self.new_memory()
        with self.reading(memory) as reader:
            file, _ = reader.open(self.put("file", bytes(FILE_BYTES)))
            with pytest.raises(BadSetting):
                reader.submit(extents_of(file, [0, offset], [4096, nbytes], [0, to]))
            assert len(reader.completed(1).tags) == 0
        assert (self.fetched(memory) == UNTOUCHED).all()

    @pytest.mark.parametrize("depth", [0, 1 << 20])
    def test_a_depth_out_of_range_is_refused(self, depth: int) -> None:
        with pytest.raises(BadSetting, match="depth"):
            self.make(self.new_memory(), depth)

    def test_nothing_is_written_after_close(self) -> None:
        memory = self.new_memory()
        reader = self.make(memory, 16)
        file, _ = reader.open(self.put("file", bytes(FILE_BYTES)))
        reader.submit(_pages(file, 16))
        reader.close()
        memory[:] = UNTOUCHED
        gc.collect()
        assert (self.fetched(memory) == UNTOUCHED).all()

    def test_nothing_stays_open_after_close(self) -> None:
        before = len(os.listdir("/proc/self/fd"))
        with self.reading(self.new_memory()) as reader:
            reader.open(self.put("file", bytes(4096)))
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) <= before

    def test_it_names_its_mechanism_and_path(self) -> None:
        with self.reading(self.new_memory()) as reader:
            assert reader.mech
            assert reader.path_taken
            assert reader.depth == 16


def new_memory() -> ByteArray:
    """Make memory to read into; it begins on a page."""
    memory: ByteArray = np.frombuffer(mmap.mmap(-1, MEMORY_BYTES), np.uint8)
    memory[:] = UNTOUCHED
    return memory


def extents_of(file: int, offsets: list[int], nbytes: list[int], to: list[int]) -> Extents:
    """Make extents of one file, tagged from 0 on."""
    tags = np.arange(len(offsets))
    return Extents(tags, np.full(len(tags), file), np.array(offsets), np.array(nbytes), np.array(to))


def read_all(reader: Reader, extents: Extents) -> Completed:
    """Submit all extents and wait for all."""
    begun = 0
    done: list[Numbers] = []
    failures: dict[int, ReadFailed] = {}
    while sum(map(len, done)) < len(extents.tags):
        begun += reader.submit(extents.part(begun))
        completed = reader.completed(1)
        done.append(completed.tags)
        failures |= completed.failures
    return Completed(np.concatenate(done), failures)


def _pages(file: int, count: int) -> Extents:
    at = [4096 * i for i in range(count)]
    return extents_of(file, at, [4096] * count, at)


def _apart(rng: np.random.Generator, count: int, unit: int) -> tuple[Numbers, Numbers]:
    """Draw sizes and places in memory that do not overlap."""
    nbytes: list[int] = []
    to: list[int] = []
    at = 0
    while len(to) < count:
        n = int(rng.integers(1, 20_000) if unit == 1 else unit * rng.integers(1, 5))
        gap = int(rng.integers(0, 100)) if unit == 1 else 0
        if at + gap + n > MEMORY_BYTES:
            break
        nbytes.append(n)
        to.append(at + gap)
        at += gap + n
    order = rng.permutation(len(to))
    return np.array(nbytes)[order], np.array(to)[order]
