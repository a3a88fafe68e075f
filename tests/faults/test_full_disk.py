"""The directory of feeds cannot be written to: one error that names it and the remedy; nothing is left there."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.faults.sources import rows

import penstock

SAYS = "feeds cannot be kept in {}: .*Make room there, or set PENSTOCK_DIR"
NO_ROOM = """
import resource, sys
import penstock
from sources import rows
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
try:
    {use}
except penstock.DirectoryUnusable as error:
    print(error)
"""
USES = {"feeder": "penstock.Feeder(rows(), 'feed')", "share": "penstock.share(rows, 'feed')"}


@pytest.mark.parametrize("limit", [0, 5])
@pytest.mark.parametrize("use", USES.values(), ids=list(USES))
def test_a_lock_that_cannot_be_written_is_one_error_and_leaves_nothing(feeds_directory, use, limit):
    ran = subprocess.run(
        [sys.executable, "-c", NO_ROOM.format(limit=limit, use=use)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parent,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(f"feeds cannot be kept in {feeds_directory}: ")
    assert "set PENSTOCK_DIR" in ran.stdout
    assert not list(feeds_directory.iterdir())


@pytest.mark.parametrize(
    ("suffix", "use"),
    [(".sock", lambda: penstock.Feeder(rows(), "feed")), (".log", lambda: penstock.share(rows, "feed"))],
    ids=["socket", "log"],
)
def test_a_file_that_cannot_be_made_is_one_error_and_leaves_nothing(clean, feeds_directory, suffix, use):
    """As on a disk that has room for one more file, and not for two."""
    unlink = os.unlink
    refused: list[str] = []

    def refuse(path: str, **options: Any) -> None:
        if str(path).endswith(suffix) and not refused:  # what may be there is removed first
            refused.append(path)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        unlink(path, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        with pytest.raises(penstock.DirectoryUnusable, match=SAYS.format(feeds_directory)):
            use()
    assert not list(feeds_directory.iterdir())


def says(path: str | Path, error: type[Exception], what: str) -> None:
    """Whoever looks for feeds there, attaches or serves is told so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_DIR", str(path))
        for use in (penstock.feeds, lambda: penstock.attach("feed"), lambda: penstock.Feeder(rows(), "feed")):
            with pytest.raises(error, match=what):
                use()


def test_a_directory_that_cannot_be_made_is_one_error(clean):
    says("/proc/feeds", penstock.DirectoryUnusable, SAYS.format("/proc/feeds"))


def test_a_file_where_a_directory_should_be_is_one_error(clean, tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "feeds", tmp_path / "file" / "deep" / "feeds"):
        says(path, penstock.InsecureDirectory, r"/file.* is not Penstock's .* remove it")
    assert os.listdir(tmp_path) == ["file"]
