"""A slab gives back what was kept or nothing, whatever is killed, full or damaged."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.io.cache.slabs import ORIGIN, close_all, content, ends_well, forked, items, opened, read

from penstock.io.cache.slab import Item

KEYS = range(1, 41)


def test_what_was_kept_is_found_by_others_and_later(tmp_path: Path) -> None:
    slab, other = opened(tmp_path), opened(tmp_path)
    assert slab.append(items(1, 2, 3)) == 3
    assert [read(other, key) for key in (1, 2, 3, 4)] == [content(1), content(2), content(3), None]
    again = opened(tmp_path)
    assert [read(again, key) for key in (3, 2)] == [content(3), content(2)]
    slab.refresh()
    assert slab.shape(2) == (3, 3)


def test_what_is_kept_already_is_not_kept_again(tmp_path: Path) -> None:
    slab, other = opened(tmp_path), opened(tmp_path)
    assert slab.append(items(1, 2, 2)) == 2
    assert other.append(items(2, 3)) == 1
    assert len(opened(tmp_path).records) == 3


def test_a_new_version_replaces_the_old_one(tmp_path: Path) -> None:
    slab = opened(tmp_path)
    slab.append(items(1))
    assert slab.append([Item(1, ORIGIN + 1, b"newer")]) == 1
    assert read(slab, 1) == b"newer"
    assert slab.is_of(1, ORIGIN + 1)
    assert not slab.is_of(0, ORIGIN + 1)


def test_thousands_of_records_are_found(tmp_path: Path) -> None:
    slab, other = opened(tmp_path), opened(tmp_path)
    for first in range(0, 6000, 600):
        slab.append(items(*range(first, first + 600), nbytes=9))
        assert read(other, first) == content(first, 9)
    assert all(read(other, key) == content(key, 9) for key in range(6000))
    assert read(other, 6000) is None


def test_there_is_room_for_so_much(tmp_path: Path) -> None:
    slab = opened(tmp_path, limit=5 * 8192 + 1000)
    assert slab.append(items(*range(20))) == 5
    assert slab.full == "full"
    again = opened(tmp_path)
    assert [read(again, key) is not None for key in range(6)] == [True] * 5 + [False]


@pytest.mark.parametrize("call", ["pwritev", "pwrite", "ftruncate", "refresh"])
@pytest.mark.parametrize("when", ["before", "amid", "after"])
def test_whoever_is_killed_at_any_point_leaves_what_was_kept_and_nothing_else(tmp_path, monkeypatch, call, when):
    opened(tmp_path).append(items(1, 2))
    if call == "ftruncate":  # which cuts what somebody else has left
        with (tmp_path / "index").open("ab") as index:
            index.write(b"PSC1\xff")

    def child() -> None:
        slab = opened(tmp_path)
        owner, name = (slab, call) if call == "refresh" else (os, call)
        real: Callable[..., Any] = getattr(owner, name)

        def dies(*arguments: Any) -> None:
            if when == "amid" and call == "pwrite":
                real(arguments[0], arguments[1][:-1], *arguments[2:])
            elif when == "amid" and call == "pwritev":
                real(arguments[0], arguments[1][:1], *arguments[2:])
            elif when != "before":
                real(*arguments)
            os._exit(0)

        monkeypatch.setattr(owner, name, dies)
        slab.append(items(3, 4))
        os._exit(1)

    assert ends_well(forked(child))
    after = opened(tmp_path)
    assert [read(after, key) for key in (1, 2)] == [content(1), content(2)]
    for key in (3, 4):
        assert read(after, key) in (None, content(key))
    assert after.append(items(3, 4, 5)) >= 1
    again = opened(tmp_path)
    assert [read(again, key) for key in range(1, 6)] == [content(key) for key in range(1, 6)]


def test_what_was_half_written_is_cut_off_by_who_adds_next(tmp_path: Path) -> None:
    opened(tmp_path).append(items(1))
    whole = (tmp_path / "index").read_bytes()
    (tmp_path / "index").write_bytes(whole + whole[:-1])
    slab = opened(tmp_path)
    assert read(slab, 1) == content(1)
    slab.append(items(2))
    again = opened(tmp_path)
    assert [read(again, key) for key in (1, 2)] == [content(1), content(2)]


@given(data=st.data())
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_flipped_bits_are_never_delivered(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("slab")
    long_open = opened(folder)
    for first in KEYS[::5]:
        long_open.append(items(*range(first, first + 5), nbytes=700))
    known = [read(long_open, key) for key in KEYS]
    assert known == [content(key, 700) for key in KEYS]
    place = st.tuples(st.sampled_from(["data", "index"]), st.floats(0, 1))
    flips = data.draw(st.lists(place, min_size=1, max_size=5))
    for name, where in flips:
        damaged = bytearray((folder / name).read_bytes())
        damaged[int(where * (len(damaged) - 1))] ^= 1 << int(where * 8) % 8
        (folder / name).write_bytes(damaged)
    late = opened(folder)
    for slab in (long_open, late):
        for key in KEYS:
            assert read(slab, key) in (None, content(key, 700))
    late.append(items(*KEYS, nbytes=700))  # what was lost is kept again, if the index tells
    again, lost = opened(folder), [None] if "index" in {name for name, _ in flips} else []
    assert all(read(again, key) in (*lost, content(key, 700)) for key in KEYS)
    assert all(read(long_open, key) in (None, content(key, 700)) for key in KEYS)
    close_all()


def test_a_file_that_was_cut_short_is_added_to_no_more(tmp_path: Path) -> None:
    slab = opened(tmp_path)
    slab.append(items(1, 2))
    os.truncate(tmp_path / "data", 6000)
    assert slab.append(items(3)) == 0
    assert "damaged" in slab.full
    assert [read(slab, key) for key in (1, 2, 3)] == [content(1), None, None]


@pytest.mark.parametrize("kibibytes", [9, 16, 17])
def test_a_full_disk_ends_adding_and_loses_nothing(tmp_path: Path, kibibytes: int) -> None:
    slab = opened(tmp_path)
    slab.append(items(1))
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (kibibytes * 1024, most[1]))  # which stands in for a full disk
    try:
        assert slab.append(items(2, 3)) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert "its disk gives no more room" in slab.full
    assert [read(slab, key) for key in (1, 2, 3)] == [content(1), None, None]
    later = opened(tmp_path)
    assert later.append(items(2, 3)) == 2
    assert [read(later, key) for key in (1, 2, 3)] == [content(1), content(2), content(3)]
