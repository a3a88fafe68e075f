"""Keys decide alike everywhere who keeps what; pieces of a file have its bytes, in any order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.contracts import Place
from penstock.io.cache import keys as pieces
from penstock.io.cache.admission import Admitted
from penstock.io.cache.keys import ReadAhead, hash64, keys_of, owners, parts_of
from penstock.io.cache.tiers import CacheLayout, Tiers
from penstock.sources.records.cached import BYTES as BYTES_KIND
from penstock.sources.records.cached import CachedBlock

COUNT, SPAN = 48, 8192
SIZES = [(i * 2711) % SPAN + 1 for i in range(COUNT)]
BYTES = np.random.default_rng(0).integers(0, 256, COUNT * SPAN, np.uint8)
NUMBERS = st.integers(0, COUNT - 1)


@pytest.fixture(scope="module")
def fd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    path: Path = tmp_path_factory.mktemp("pieces") / "file"
    path.write_bytes(BYTES.tobytes())
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """End the threads that read ahead, which otherwise live as long as a worker's process."""
    yield
    pieces._threads().shutdown()
    pieces._threads.cache_clear()


def place(i: int) -> tuple[int, int]:
    return i * SPAN, SIZES[i]


def is_read(some: ReadAhead, i: int) -> bool:
    found = some.read(*place(i))
    return found is not None and np.array_equal(found, BYTES[i * SPAN : i * SPAN + SIZES[i]])


@given(st.lists(st.tuples(st.sampled_from(["expect", "forget", "read"]), st.lists(NUMBERS))))
def test_what_is_read_are_the_bytes_that_lie_there(fd: int, steps: list[tuple[str, list[int]]]) -> None:
    for direct in (True, False):
        some = ReadAhead(fd, direct=direct)
        for what, numbers in steps:
            if what == "expect":
                some.expect(map(place, numbers))
            elif what == "forget":
                some.forget({i * SPAN for i in numbers})
            else:
                assert all(is_read(some, i) for i in numbers)
        some.forget({i * SPAN for i in range(COUNT)})


def test_pieces_come_ahead_across_blocks_and_what_was_forgotten_keeps_none_back(fd, monkeypatch):
    asked: list[int] = []
    pread = pieces._pread
    monkeypatch.setattr(
        pieces, "_pread", lambda fd, memory, offset: (asked.append(offset // SPAN), pread(fd, memory, offset))[1]
    )
    some = ReadAhead(fd, direct=True)
    some.expect(map(place, range(10)))
    some.expect(map(place, range(10, 48)))  # the next block's, before one of the first was read
    some.forget({i * SPAN for i in range(10)})
    assert set(range(16)) >= set(asked) > set(range(10))
    assert all(is_read(some, i) for i in range(10, 48))
    assert sorted(asked) == list(range(48))  # each once


def test_a_piece_that_was_read_out_of_turn_is_not_read_again_and_takes_no_place(fd: int) -> None:
    some = ReadAhead(fd, direct=True)
    some.expect(map(place, range(COUNT)))
    assert all(is_read(some, i) for i in reversed(range(COUNT)))
    assert not some._coming and not some._next


@pytest.mark.parametrize("stale", [False, True])
def test_an_image_that_is_read_where_it_lies_leaves_nothing_expected(tmp_path, monkeypatch, stale):
    """Such as after chmod: its record is there, and not of this version."""
    monkeypatch.setattr("penstock.sources.records.cached._JUST_WRITTEN_NS", 0)
    monkeypatch.setattr("penstock.io.cache.folder.reads_direct", lambda limit: True)
    files = [tmp_path / f"{i}.jpg" for i in range(30)]
    for i, file in enumerate(files):
        file.write_bytes(bytes([i]) * 5000)
    tiers = Tiers(CacheLayout(str(tmp_path), BYTES_KIND, str(tmp_path / "cache"), 10 << 20, False))
    places = [Place(str(file)) for file in files]
    for turn in range(3):
        if turn and stale:
            for file in files:
                os.chmod(file, 0o600 + turn)
        block = CachedBlock(tiers, BYTES_KIND, places, Admitted(0.0, 1.0))
        assert [block.encoded(row)[0] for row in range(30)] == list(range(30))
        for row in range(30):
            block.keep(row, files[row].read_bytes(), np.zeros((1, 1, 3), np.uint8))
        block.finish()
        slab = tiers._slabs[1]
        assert slab is not None and not slab._pieces._coming and not slab._pieces._next
    tiers.close()


NAMES = st.text(st.characters(min_codepoint=33, exclude_categories=["Cs"]), min_size=1, max_size=8)
KEYS = keys_of([hash64(f"/data/{i}.jpg") for i in range(20_000)], [0] * 20_000, [0] * 20_000)


def test_keys_are_the_same_on_every_machine() -> None:
    assert hash64("/data/0.jpg") == 2671161672339542296
    assert keys_of([hash64("/data/0.jpg")], [512], [9]).tolist() == [8308956836543139899]


def test_parts_are_spread_evenly() -> None:
    parts = parts_of(KEYS)
    assert 0 <= parts.min() <= parts.max() < 1
    for part in (0.1, 0.5, 0.9):
        assert abs((parts < part).mean() - part) < 0.015
        # Whatever the order of the files, no stretch of them is left out.
        assert abs((parts[:2000] < part).mean() - part) < 0.05


@given(nodes=st.lists(NAMES, min_size=1, max_size=6, unique=True), extra=NAMES)
def test_one_more_node_takes_its_share_and_moves_nothing_else(nodes: list[str], extra: str) -> None:
    if extra in nodes:
        return
    before = np.array(nodes)[owners(KEYS, nodes)]
    grown = [*nodes, extra]
    after = np.array(grown)[owners(KEYS, grown)]
    moved = before != after
    assert (after[moved] == extra).all()
    assert abs(moved.mean() - 1 / len(grown)) < 0.02


def test_owners_do_not_depend_on_the_parts_that_are_kept() -> None:
    kept = KEYS[parts_of(KEYS) < 0.3]
    counts = np.bincount(owners(kept, ["a", "b", "c"]))
    assert (abs(counts / len(kept) - 1 / 3) < 0.03).all()
