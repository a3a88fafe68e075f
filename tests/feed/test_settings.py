"""Settings are read and checked once, and an error names the value and the remedy."""

from __future__ import annotations

import math
import mmap
import re
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.feed.settings import Settings, bytes_from, checked

PAGE = mmap.PAGESIZE


@pytest.mark.parametrize(
    ("window", "nbytes"),
    [
        (1, PAGE),
        (PAGE, PAGE),
        (PAGE + 1, 2 * PAGE),
        ("1", PAGE),
        ("8192B", 8192),
        ("512MiB", 512 << 20),
        ("512 mib", 512 << 20),
        ("2GiB", 2 << 30),
        (" 1.5 GiB ", 3 << 29),
        ("2GB", -(-2 * 10**9 // PAGE) * PAGE),
        ("64KB", -(-64_000 // PAGE) * PAGE),
        ("64KiB", 64 << 10),
        (".5MiB", 512 << 10),
    ],
)
def test_a_window_is_bytes_rounded_up_to_pages(window, nbytes):
    assert bytes_from(window) == nbytes


@pytest.mark.parametrize(
    "window",
    [0, -1, "", "0", "MiB", "1.2.3MiB", "ten", "-5MiB", "1TiB!", "1 Mi B", "nan", "inf", ".", "1e3", "9" * 400],
)
def test_what_is_no_size_is_refused_by_name(window):
    with pytest.raises(penstock.errors.BadSetting, match="window=") as caught:
        bytes_from(window)
    assert repr(window) in str(caught.value)


@given(st.one_of(st.text(), st.from_regex(r"\s*[0-9.]{1,6}\s*[KMGkmg]?[iI]?[bB]?\s*", fullmatch=True)))
def test_any_text_is_whole_pages_or_refused(text):
    try:
        nbytes = bytes_from(text)
    except penstock.errors.BadSetting:
        return
    assert nbytes > 0
    assert nbytes % PAGE == 0


def each_of(values: dict[str, list[Any]]) -> list[tuple[str, Any]]:
    return [(name, value) for name, some in values.items() for value in some]


NONSENSE: dict[str, list[Any]] = {
    "segments": [0, 5000, "8", 2.5, True],
    "epochs": [0, [3]],
    "prefetch": [0],
    "linger": [-1.0, "x", math.nan, math.inf, False],
    "stall_timeout": [0, 1j],
    "window": ["lots", True, math.nan, 2e9, b"1MiB"],
    "seed": [0.0, 2**64],
    "whole_batches": ["no", 1],
    "memory": [3, 0],
    "workers": [-1, 5000, 2.5, True, "", "4", "abc", "dask:4", "Ray", "ray:", "ray:0", "ray:-1", "ray:x"],
    "across": [1, "yes"],
    "pace": ["", "apart", True],
}


@pytest.mark.parametrize(("setting", "value"), each_of(NONSENSE))
def test_a_value_out_of_range_or_of_a_wrong_type_is_named_and_nothing_is_left(setting, value, feeds_directory):
    told = f"{setting}={value!r}" + ": it must be a whole number between 1 and 4,096" * (setting == "segments")
    with pytest.raises(penstock.errors.BadSetting, match=re.escape(told)):
        checked(**{setting: value})
    with pytest.raises(penstock.errors.BadSetting):
        penstock.Feeder({"id": np.arange(9)}, "feed", **{setting: value})
    assert not list(feeds_directory.iterdir())


def test_a_window_beyond_the_memory_is_refused_with_both_numbers(feeds_directory):
    total = psutil.virtual_memory().total
    for window in (total + 2**30, "100TiB", 2**70):
        says = r"a window of [\d,.]+ GiB: this process may use [\d,.]+ GiB"
        with pytest.raises(penstock.errors.BadSetting, match=says):
            penstock.Feeder({"id": np.arange(9)}, "feed", window=window)
    with pytest.raises(penstock.errors.BadSetting, match=r"a window of 102,400\.0 GiB"):
        penstock.share(lambda: {"id": np.arange(9)}, "feed", window="100TiB")
    assert not list(feeds_directory.iterdir())


def test_numbers_of_numpy_are_taken_as_pythons():
    given = checked(segments=np.int64(4), seed=np.uint32(1), linger=np.float32(0.5), window=np.int64(4096))
    assert given == {"segments": 4, "seed": 1, "linger": 0.5, "window_bytes": 4096}
    assert {type(value) for value in given.values()} == {int, float}


def test_only_what_was_given_is_returned():
    assert checked() == {}
    assert checked(window="1MiB", seed=0, whole_batches=False, linger=0.0) == {
        "window_bytes": 1 << 20,
        "seed": 0,
        "whole_batches": False,
        "linger": 0.0,
    }
    assert Settings(**checked(epochs=3)).epochs == 3


def test_a_difference_names_what_was_asked_and_what_runs():
    running = Settings(segments=4, seed=7)
    assert running.difference({}) == ""
    assert running.difference({"segments": 4, "seed": 7}) == ""
    assert running.difference(checked(segments=8, seed=7, window="1GiB")) == (
        f"segments=4 where you asked for 8, window={512 << 20} where you asked for {1 << 30}. "
        "Leave segments and window out, or share under another name"
    )
    assert running.difference({"epochs": 3}) == (
        "epochs=None where you asked for 3. Leave epochs out, or share under another name"
    )


def test_workers_are_a_number_of_this_machines_or_some_of_a_cluster():
    for workers in (0, np.int64(4)):
        here = Settings(**checked(workers=workers))
        assert (here.own_workers, here.remote) == (workers, None)
    everybody, some = (Settings(**checked(workers=workers)) for workers in ("ray", "ray:16"))
    assert everybody.remote is not None
    assert some.remote is not None
    assert (everybody.own_workers, everybody.remote.most, some.remote.most) == (None, None, 16)
    assert (Settings().own_workers, Settings().remote) == (None, None)


def test_how_many_workers_there_are_is_no_difference_but_whether_a_cluster_makes_the_blocks_is():
    for running, asked in ((4, 2), (None, 2), ("ray", "ray:16"), ("ray:16", "ray:4")):
        assert Settings(workers=running).difference({"workers": asked}) == ""
    for running, asked in ((4, "ray"), (None, "ray:2"), ("ray", 4)):
        assert Settings(workers=running).difference({"workers": asked}) == (
            f"workers={running!r} where you asked for {asked!r}. Leave workers out, or share under another name"
        )
    assert Settings(workers="ray").difference({}) == ""


TRAINERS_NONSENSE: dict[str, list[Any]] = {
    "batch_size": [0, -3, 2.5, "64", 2**31, True],
    "shard": [(2, 2), (-1, 2), (0, 0), (), 2, "ab", (0.5, 2), (0, 1, 2)],
    "drop_last": ["no"],
    "borrow": [1],
    "transform": ["flip"],
    "wait_s": ["x", math.nan, -1],
}


@pytest.mark.parametrize(("option", "value"), each_of(TRAINERS_NONSENSE))
def test_a_trainers_nonsense_is_refused_before_it_connects(option, value):
    with pytest.raises(penstock.errors.BadSetting, match=re.escape(f"{option}={value!r}")):
        penstock.attach("feed", **{option: value})


@pytest.mark.parametrize("seed", [0, 2**63 - 1, -1, -(2**63)])
def test_any_seed_of_64_bits_serves(serve, seed):
    serve({"id": np.arange(50)}, seed=seed)
    with penstock.attach("feed", 7) as loader:
        assert sorted(int(i) for batch in loader for i in batch["id"]) == list(range(50))
    assert penstock.feeds()[0].seed == seed
