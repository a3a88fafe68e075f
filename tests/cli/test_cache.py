"""``penstock cache`` as a person uses it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.io.cache.slabs import items
from typer.testing import CliRunner

from penstock.cli.command import app
from penstock.errors import BadSetting
from penstock.io.cache.folder import CacheFolder


def said(*words: object, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["cache", *map(str, words)])
    if isinstance(result.exception, BadSetting):
        raise result.exception
    assert result.exit_code == status, result.output
    return " ".join(result.output.split())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    cached = CacheFolder(tmp_path, 1 << 20)
    for root, kind in (("/data/train", "pixels"), ("s3://bucket/val", "bytes")):
        slab = cached.open(root, kind)
        assert slab is not None
        slab.append(items(1, 2, 3))
        slab.close()
    return tmp_path


def test_status_shows_what_is_kept_and_who_uses_it(folder: Path) -> None:
    used = CacheFolder(folder, 1 << 20).open("/data/train", "pixels")
    shown = said("status", folder)
    assert "/data/train pixels" in shown
    assert "in use" in shown
    assert "s3://bucket/val bytes" in shown
    assert "s ago" in shown
    assert used is not None
    assert "kept, because a process uses it" in said("drop", folder, "/data/train")
    used.close()


def test_check_finds_what_is_damaged(folder: Path) -> None:
    shown = said("check", folder)
    assert "s3://bucket/val, bytes: whole" in shown
    assert "/data/train, pixels: whole" in shown
    data, index = next(folder.glob("*-pixels/data")), next(folder.glob("*-bytes/index"))
    data.write_bytes(b"x" + data.read_bytes()[1:])
    index.write_bytes(index.read_bytes()[:-1] + b"x")
    shown = said("check", folder, status=1)
    assert "/data/train, pixels: 1 of 3 records are damaged" in shown
    assert "s3://bucket/val, bytes: the index is damaged after 0 records; whole" in shown


def test_drop_gives_back_one_or_all(folder: Path) -> None:
    assert "/data/train, pixels:" in said("drop", folder, "/data/train")
    with pytest.raises(BadSetting, match="keeps nothing of /data/train; it keeps s3://bucket/val"):
        said("drop", folder, "/data/train")
    assert "given back" in said("drop", folder)
    assert "Nothing is kept in" in said("status", folder)


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="there is no such folder"):
        said("status", tmp_path / "nothing")


@pytest.mark.parametrize(
    ("text", "match"),
    [("/scratch", "give a folder and its size, FOLDER=SIZE, such as /scratch/cache=200GB"), ("x=y", "size='y'")],
)
def test_a_feed_names_folder_and_size(text: str, match: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["feed", f"images:{tmp_path}", "--name", "x", "--cache", text])
    assert match in str(result.exception)
