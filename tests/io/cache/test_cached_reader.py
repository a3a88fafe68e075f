"""A reader with a cache is a reader, and what it finds there is what lies in the files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.contracts import READING, only

import penstock
from penstock import Cache, PackedSource
from penstock.contracts import ByteArray, Cursor, Reader
from penstock.errors import BadSetting, PackDamaged
from penstock.io.cache.admission import Admitted
from penstock.io.cache.cache import Cache as CacheSettings
from penstock.io.cache.reader import CachedReader
from penstock.io.cache.tiers import Files, Tiers, memory_files
from penstock.io.open import open_reader
from penstock.io.queue import ThreadQueue
from penstock.io.reader import QueueReader
from penstock.testing.faulty_queue import FaultyQueue
from penstock.testing.reader import ReaderContract, extents_of

ROWS = 300


class Cached(ReaderContract):
    """Every test with a cache that keeps all."""

    mech = "uring"
    files: Files | None = None

    def make(self, memory: ByteArray, depth: int) -> Reader:
        reader = open_reader(self.mech, memory, depth=depth)
        return cached(reader, memory, self.folder / "cache", self.files)


def cached(reader: Reader, memory: ByteArray, folder: Path, files: Files | None = None) -> CachedReader:
    settings = CacheSettings(folder, "10MB", memory=0 if files is None else "5MB")
    return CachedReader(reader, memory, Tiers(settings.layout("data", "rows", files)), Admitted(0.6, 1.0))


class TestCached(Cached):
    pass


@only("every_byte")
class TestByMechanism(Cached):
    @pytest.fixture(autouse=True, params=["posix", "direct"])
    def _of(self, request: pytest.FixtureRequest) -> None:
        self.mech = request.param


@only(*READING)
class TestFromMemory(Cached):
    @pytest.fixture(autouse=True)
    def _memory(self) -> Iterator[None]:
        opened = memory_files()
        self.files = Files(*(file.fileno() for file in opened))
        yield
        for file in opened:
            file.close()


@only(*READING)
class TestFaulty(Cached):
    def make(self, memory: ByteArray, depth: int) -> Reader:
        queue = FaultyQueue(ThreadQueue(depth, 4, direct=False), seed=5, shorts=0.4, repeats=0.2)
        return cached(QueueReader(queue, memory), memory, self.folder / "cache")


@pytest.fixture(params=[8192, 5001])
def packed(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    rows = np.random.default_rng(1).integers(0, 256, (ROWS, request.param), np.uint8)
    penstock.pack({"id": np.arange(ROWS), "image": rows}, tmp_path / "packed")
    return tmp_path / "packed"


def cycle_of(source: PackedSource, cycle: int) -> list[Any]:
    return [(block.tree["id"].copy(), block.tree["image"].copy()) for block in source.open(Cursor(cycle, 0))]


def same(one: list[Any], other: list[Any]) -> bool:
    return all((a == b).all() for pair in zip(one, other, strict=True) for a, b in zip(*pair, strict=True))


@pytest.mark.parametrize(("mech", "memory"), [("uring", 0), ("posix", "1MB")])
def test_packed_rows_come_from_the_cache(packed: Path, tmp_path: Path, mech: str, memory: Any) -> None:
    plain = PackedSource(packed, batch_size=16, reader=mech)
    source = PackedSource(packed, batch_size=16, reader=mech, cache=Cache(tmp_path / "c", "20MB", memory=memory))
    for cycle in range(4):
        assert same(cycle_of(source, cycle), cycle_of(plain, cycle))
    assert source.cached.kept == ROWS
    assert source.cached.hits >= 2 * ROWS
    assert (source.cached.memory > 0) == (memory != 0)
    assert "reads came from the cache" in source.description
    plain.close()
    source.close()


def test_only_the_part_for_which_there_is_room_is_kept(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).integers(0, 256, (1000, 8192), np.uint8)
    penstock.pack({"image": rows}, tmp_path / "packed")
    source = PackedSource(tmp_path / "packed", batch_size=50, cache=Cache(tmp_path / "c", 500 * 8192))
    before = 0
    for cycle in range(4):
        list(source.open(Cursor(cycle, 0)))
        if cycle > 1:  # what is left over from a cycle is added in the next
            assert abs((source.cached.hits - before) / 1000 - 0.5) < 0.06
        before = source.cached.hits
    source.close()


def test_flipped_bits_are_read_again(packed: Path, tmp_path: Path) -> None:
    plain = PackedSource(packed, batch_size=16)
    source = PackedSource(packed, batch_size=16, cache=Cache(tmp_path / "c", "20MB"), verify=False)
    for cycle in range(2):
        cycle_of(source, cycle)
    (data,) = (tmp_path / "c").glob("*/data")
    damaged = bytearray(data.read_bytes())
    for at in range(0, len(damaged), 5 * 4096):
        damaged[at] ^= 1
    data.write_bytes(damaged)
    for cycle in (2, 3):
        assert same(cycle_of(source, cycle), cycle_of(plain, cycle))
    assert source.cached.damaged > 30
    plain.close()
    source.close()


def test_what_is_not_of_this_version_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    memory = np.zeros(1 << 16, np.uint8)
    for content in (b"a" * 5000, b"b" * 5000):
        path.write_bytes(content)
        os.utime(path, (1, 1))
        for _ in range(2):
            with closing(cached(open_reader("posix", memory), memory, tmp_path / "cache")) as reader:
                file = reader.open(str(path)).file
                assert reader.submit(extents_of(file, [0], [5000], [0])) == 1
                assert reader.completed().tags.tolist() == [0]
                assert memory[:5000].tobytes() == content


def test_keep_is_not_for_packed_rows(packed: Path, tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="packed rows are kept as they are"):
        PackedSource(packed, cache=Cache(tmp_path / "c", "1MB", keep="pixels"))


def test_a_row_that_fails_its_checksum_is_not_kept(packed: Path, tmp_path: Path) -> None:
    (file,) = [path for path in packed.iterdir() if path.stat().st_size > ROWS * 4000]
    whole = file.read_bytes()
    damaged = bytearray(whole)
    damaged[-100] ^= 1
    status = file.stat()
    file.write_bytes(damaged)
    source = PackedSource(packed, batch_size=ROWS, cache=Cache(tmp_path / "c", "20MB"))
    with pytest.raises(PackDamaged):
        cycle_of(source, 0)
    source.close()
    file.write_bytes(whole)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    source = PackedSource(packed, batch_size=16, cache=Cache(tmp_path / "c", "20MB"))
    for cycle in range(2):
        assert len(cycle_of(source, cycle)) == 19
    source.close()
