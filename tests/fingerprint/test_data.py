"""Fingerprints of files: every change is seen that the system tells, and share says so."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.fingerprint.code import fingerprint_of
from penstock.fingerprint.data import DataFingerprint, FileVersion, fingerprint_of_files


def rewritten_in_place(path: Path) -> None:
    """Other bytes, as many, with the time of writing set back."""
    before = path.stat()
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replaced(path: Path) -> None:
    path.with_suffix(".new").write_bytes(path.read_bytes())
    path.with_suffix(".new").replace(path)


CHANGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "longer": (lambda path: path.write_bytes(b"abcd"), "3 bytes then, 4 now"),
    "rewritten with its time set back": (rewritten_in_place, "changed since, at 20"),
    "replaced by an equal one": (replaced, "replaced since"),
    "touched": (lambda path: os.utime(path, (1, 1)), "changed since, at 20"),
}


@pytest.mark.parametrize(("change", "told"), CHANGES.values(), ids=list(CHANGES))
def test_a_change_of_a_file_is_seen(tmp_path: Path, change: Callable[[Path], Any], told: str) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(b"abc")
    before = fingerprint_of_files([str(path)])
    assert before == fingerprint_of_files([str(path)])
    assert before.difference(before) == ""
    change(path)
    assert f"{path} ({told}" in before.difference(fingerprint_of_files([str(path)]))


def test_an_objects_tag_tells_its_versions_apart() -> None:
    one, other = (DataFingerprint({"s3://a/b": FileVersion(5, etag=tag)}) for tag in ("1", "2"))
    assert one.difference(other) == "s3://a/b (replaced since)"


def test_what_is_no_file_has_no_version(tmp_path: Path) -> None:
    assert fingerprint_of_files([str(tmp_path), "not there", "nul\0", "n" * 5000, ""]).files == {}


def lines_of(path: str) -> Any:
    return penstock.ArraySource({"line": np.arange(len(Path(path).read_text().split()))}, batch_size=2)


def test_the_files_that_a_function_is_given_are_told_and_decide_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("a b c d")
    make = functools.partial(lines_of, str(path))
    before = fingerprint_of(make)
    assert list(before.data.files) == [str(path)]
    path.write_text("a b c d e")
    now = fingerprint_of(make)
    assert now.fingerprint == before.fingerprint
    assert now.data != before.data


def test_who_shares_a_feed_whose_data_have_changed_is_warned_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("a b c d")
    make = functools.partial(lines_of, str(path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = penstock.share(make, "lines", linger=0.2)
        second = penstock.share(make, "lines")
    path.write_text("a b c d e f")
    told = r"feed .lines. \(feeder \d+\) began with other data.*lines.txt \(7 bytes then, 11 now\).*stop lines"
    with pytest.warns(UserWarning, match=told):
        late = penstock.share(make, "lines")
    with first, second, late:
        assert sorted(i for batch in late for i in batch["line"]) == [0, 1, 2, 3]
