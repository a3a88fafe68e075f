"""Settings are read and checked once, and an error names the value and the remedy."""

from __future__ import annotations

import math
import mmap

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
    with pytest.raises(penstock.BadSetting, match="window=") as caught:
        bytes_from(window)
    assert repr(window) in str(caught.value)


@given(st.one_of(st.text(), st.from_regex(r"\s*[0-9.]{1,6}\s*[KMGkmg]?[iI]?[bB]?\s*", fullmatch=True)))
def test_any_text_is_whole_pages_or_refused(text):
    try:
        nbytes = bytes_from(text)
    except penstock.BadSetting:
        return
    assert nbytes > 0
    assert nbytes % PAGE == 0


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"segments": 0}, "segments=0: it must be a whole number between 1 and 4,096"),
        ({"segments": 5000}, "segments=5000"),
        ({"epochs": 0}, "epochs=0"),
        ({"prefetch": 0}, "prefetch=0"),
        ({"linger": -1.0}, "linger=-1.0"),
        ({"stall_timeout": 0}, "stall_timeout=0"),
        ({"window": "lots"}, "window='lots'"),
        ({"segments": "8"}, "segments='8'"),
        ({"segments": 2.5}, "segments=2.5"),
        ({"segments": True}, "segments=True"),
        ({"seed": 0.0}, "seed=0.0"),
        ({"seed": 2**64}, f"seed={2**64}"),
        ({"epochs": [3]}, "epochs=[3]"),
        ({"linger": "x"}, "linger='x'"),
        ({"linger": math.nan}, "linger=nan"),
        ({"linger": math.inf}, "linger=inf"),
        ({"linger": False}, "linger=False"),
        ({"stall_timeout": 1j}, "stall_timeout=1j"),
        ({"window": True}, "window=True"),
        ({"window": math.nan}, "window=nan"),
        ({"window": 2e9}, "window=2000000000.0"),
        ({"window": b"1MiB"}, "window=b'1MiB'"),
        ({"whole_batches": "no"}, "whole_batches='no'"),
        ({"whole_batches": 1}, "whole_batches=1"),
        ({"memory": 3}, "memory=3"),
        ({"memory": 0}, "memory=0"),
    ],
)
def test_a_value_out_of_range_or_of_a_wrong_type_is_named_and_nothing_is_left(setting, says, feeds_directory):
    with pytest.raises(penstock.BadSetting) as caught:
        checked(**setting)
    assert says in str(caught.value)
    with pytest.raises(penstock.BadSetting):
        penstock.Feeder({"id": np.arange(9)}, "feed", **setting)
    assert not list(feeds_directory.iterdir())


def test_a_window_beyond_the_memory_is_refused_with_both_numbers(feeds_directory):
    total = psutil.virtual_memory().total
    for window in (total + 2**30, "100TiB", 2**70):
        with pytest.raises(
            penstock.BadSetting, match=r"a window of [\d,.]+ GiB: this process may use [\d,.]+ GiB"
        ):
            penstock.Feeder({"id": np.arange(9)}, "feed", window=window)
    with pytest.raises(penstock.BadSetting, match=r"a window of 102,400\.0 GiB"):
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


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": -3}, "batch_size=-3"),
        ({"batch_size": 2.5}, "batch_size=2.5"),
        ({"batch_size": "64"}, "batch_size='64'"),
        ({"batch_size": 2**31}, "batch_size=2147483648"),
        ({"shard": (2, 2)}, r"shard=\(2, 2\)"),
        ({"shard": (-1, 2)}, r"shard=\(-1, 2\)"),
        ({"shard": (0, 0)}, r"shard=\(0, 0\)"),
        ({"shard": ()}, r"shard=\(\)"),
        ({"shard": 2}, "shard=2"),
        ({"shard": "ab"}, "shard='ab'"),
        ({"shard": (0.5, 2)}, r"shard=\(0.5, 2\)"),
        ({"shard": (0, 1, 2)}, r"shard=\(0, 1, 2\)"),
        ({"batch_size": True}, "batch_size=True"),
        ({"drop_last": "no"}, "drop_last='no'"),
        ({"borrow": 1}, "borrow=1"),
        ({"transform": "flip"}, "transform='flip'"),
        ({"wait_s": "x"}, "wait_s='x'"),
        ({"wait_s": math.nan}, "wait_s=nan"),
        ({"wait_s": -1}, "wait_s=-1"),
    ],
)
def test_a_trainers_nonsense_is_refused_before_it_connects(asked, says):
    with pytest.raises(penstock.BadSetting, match=says):
        penstock.attach("feed", **asked)


@pytest.mark.parametrize("seed", [0, 2**63 - 1, -1, -(2**63)])
def test_any_seed_of_64_bits_serves(serve, seed):
    serve({"id": np.arange(50)}, seed=seed)
    with penstock.attach("feed", 7) as loader:
        assert sorted(int(i) for batch in loader for i in batch["id"]) == list(range(50))
    assert penstock.feeds()[0].seed == seed


def test_what_is_no_name_is_refused_in_words():
    with pytest.raises(penstock.BadSetting, match="must be a string, not int"):
        penstock.attach(3)  # type: ignore[arg-type]
