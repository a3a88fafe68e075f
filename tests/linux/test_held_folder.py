"""Folders that one process at a time works in."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import BadSetting
from penstock.linux.files import held


def test_a_folder_is_made_and_held_until_the_end_of_the_block(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    for _ in range(2):
        with held(folder, "results", "comparing in"):
            with pytest.raises(BadSetting, match=r"another process is packing into .*/a/b: wait"):
                held(folder, "packed samples", "packing into").__enter__()
            assert folder.is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(BadSetting, match="file cannot be a folder of results: File exists"):
        held(tmp_path / "file", "results", "comparing in").__enter__()


def test_who_holds_a_folder_may_remove_it(tmp_path: Path) -> None:
    for _ in range(2):
        with held(tmp_path / "kept", "partial results", "scoring in"):
            (tmp_path / "kept").rmdir()
            with held(tmp_path / "kept", "partial results", "scoring in"):
                """It is another folder."""
