"""Packing: any source, the same files however often it was interrupted, and nothing is overwritten."""

from __future__ import annotations

import errno
import fcntl
import filecmp
import json
import os
import subprocess
import sys
import textwrap
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.sources.drawing import DrawingStream
from torch.utils.data import DataLoader, IterableDataset

import penstock
from penstock.contracts import Cursor
from penstock.errors import BadSetting, PackDamaged, PackStopped, ReadFailed, SourceError, UnsupportedLeaf
from penstock.sources.packed.format import FORMAT, JOURNAL, MANIFEST, sealed
from penstock.sources.packed.packed_source import PackedSource
from penstock.sources.packed.packing import pack, rows_begun
from penstock.sources.packed.writer import Journal, Origin

SLOW = """
import sys, time
import numpy as np
import penstock

class Slow:
    samples, batches, batch_size, segment_starts, seekable = 400, 40, 10, (0,), True
    description = "slow rows"
    def open(self, at):
        for sample in range(at.sample // 10 * 10, 400, 10):
            time.sleep(float(sys.argv[2]))
            at_row = np.arange(sample, sample + 10)
            rows = np.random.default_rng(sample).integers(0, 256, (10, 3000), np.uint8)
            yield penstock.contracts.SourceBlock(sample, 10, {"id": at_row, "image": rows})
    def close(self):
        pass

penstock.pack(Slow(), sys.argv[1], commit_bytes=50_000)
"""


def interrupted(folder: Path, **options: Any) -> None:
    """Begin to pack ten rows."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack({"id": np.arange(10)}, folder, progress=interrupt, **options)


def ids(folder: Path) -> list[int]:
    source = PackedSource(folder, batch_size=10, shuffle=False)
    return [int(i) for block in source.open(Cursor(0, 0)) for i in np.asarray(block.tree["id"])]


def dicts(samples: int) -> Any:
    return [{"id": torch.tensor(i)} for i in range(samples)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_shuffles_is_packed_in_the_order_of_its_dataset(tmp_path, workers):
    loader = DataLoader(dicts(50), batch_size=8, shuffle=True, num_workers=workers)
    assert pack(loader, tmp_path / "set").rows == 50
    assert ids(tmp_path / "set") == list(range(50))


def test_every_kind_of_source_can_be_packed(tmp_path):
    rows = np.arange(23)
    things: dict[str, Any] = {
        "arrays": {"id": rows},
        "batches": [{"id": rows[i : i + 5]} for i in range(0, 23, 5)],
        "stream": DataLoader(DrawingStream(23), batch_size=4),
    }
    for name, thing in things.items():
        assert pack(thing, tmp_path / name).rows == 23
        assert ids(tmp_path / name) == list(range(23))
    pack(PackedSource(tmp_path / "arrays", shuffle=False), tmp_path / "again")
    assert ids(tmp_path / "again") == list(range(23))
    pack(penstock.ArraySource({"id": rows}, batch_size=5, seed=4), tmp_path / "shuffled")
    assert ids(tmp_path / "shuffled") != sorted(ids(tmp_path / "shuffled")) == list(range(23))


def test_numpy_alone_reads_what_was_packed(tmp_path):
    tree = {"image": torch.rand(9, 3, 5).to(torch.bfloat16), "label": np.arange(9) * 1.5, "size": 7}
    pack(tree, tmp_path / "set")
    told = json.loads((tmp_path / "set" / MANIFEST).read_text())
    assert (told["format"], told["rows"]) == ("penstock packed 2", 9)
    image, label = told["leaves"]
    assert (image["name"], label["name"]) == ("batch['image']", "batch['label']")
    bits = np.load(tmp_path / "set" / image["file"], mmap_mode="r")
    np.testing.assert_array_equal(bits, tree["image"].view(torch.uint16).numpy())
    np.testing.assert_array_equal(np.load(tmp_path / "set" / label["file"]), tree["label"])
    sums = np.load(tmp_path / "set" / image["checksums"])
    assert sums.tolist() == [zlib.crc32(row.tobytes()) for row in bits]
    assert image["checksums_crc32"] == zlib.crc32(sums.tobytes())


@pytest.mark.whole
def test_a_packing_that_is_killed_again_and_again_ends_with_the_same_files(tmp_path):
    script = tmp_path / "slow.py"
    script.write_text(SLOW)
    subprocess.run([sys.executable, script, tmp_path / "at once", "0"], check=True, timeout=60)
    cut = tmp_path / "cut"
    reached: list[int] = []
    for until in (1, 100, 250):
        process = subprocess.Popen([sys.executable, script, cut, "0.03"])
        while not (cut / JOURNAL).exists() or (rows := json.loads((cut / JOURNAL).read_text())["rows"]) < until:
            assert process.poll() is None
            time.sleep(0.002)
        process.kill()
        process.wait()
        reached.append(rows)
        assert not (cut / MANIFEST).exists()
        with pytest.raises(BadSetting, match="not packed to its end"):
            PackedSource(cut)
    assert reached == sorted(reached)
    assert reached[-1] < 400
    subprocess.run([sys.executable, script, cut, "0"], check=True, timeout=60)
    names = sorted(os.listdir(cut))
    assert names == sorted(os.listdir(tmp_path / "at once"))
    assert filecmp.cmpfiles(cut, tmp_path / "at once", names, shallow=False)[0] == names
    assert ids(cut) == list(range(400))


def test_what_was_written_after_the_last_safe_row_is_cut_off(tmp_path):
    class Breaks(Exception):
        pass

    def stop(rows: int, _: int | None) -> None:
        if rows >= 60:
            raise Breaks

    tree = {"id": np.arange(100), "x": np.random.default_rng(1).random((100, 50))}
    source = lambda rows=10: penstock.ArraySource(tree, batch_size=rows, shuffle=False)  # noqa: E731
    with pytest.raises(Breaks):
        pack(source(), tmp_path / "cut", commit_bytes=12_000, progress=stop)
    assert json.loads((tmp_path / "cut" / JOURNAL).read_text())["rows"] == 30 * 2
    with open(tmp_path / "cut" / "1-x.npy", "ab") as file:
        file.write(bytes(100_000))
    pack(source(rows=7), tmp_path / "cut")  # its block that holds row 60 begins at row 56
    pack(source(), tmp_path / "whole")
    names = sorted(os.listdir(tmp_path / "whole"))
    assert filecmp.cmpfiles(tmp_path / "cut", tmp_path / "whole", names, shallow=False)[0] == names


def test_one_that_was_killed_after_its_last_step_is_whole(tmp_path):
    def keep(_rows: int, _: int | None) -> None:
        journal.append((tmp_path / "set" / JOURNAL).read_bytes())

    journal: list[bytes] = []
    pack({"id": np.arange(10)}, tmp_path / "set", progress=keep)
    (tmp_path / "set" / JOURNAL).write_bytes(journal[-1])
    assert pack({"id": np.arange(10)}, tmp_path / "set").rows == 10
    assert not (tmp_path / "set" / JOURNAL).exists()


def test_nothing_is_overwritten(tmp_path):
    tree = {"id": np.arange(10)}
    pack(tree, tmp_path / "set")
    before = (tmp_path / "set" / MANIFEST).stat().st_mtime_ns
    with pytest.raises(BadSetting, match=r"already holds a packed data set \(10 rows\)"):
        pack(tree, tmp_path / "set")
    assert (tmp_path / "set" / MANIFEST).stat().st_mtime_ns == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("years of work")
    with pytest.raises(BadSetting, match=r"is not empty: it holds thesis.tex"):
        pack(tree, tmp_path / "other")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadSetting, match="is no folder"):
        pack(tree, tmp_path / "file")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"fingerprint": {"code": "1", "size": "4"}}, ": size was 3 and is 4. Undo that"),
        ({"fingerprint": {"code": "1", "crop": "5"}}, "size was 3 and is not there; crop was not there and is 5"),
        ({"seed": 1}, "the seed was 0 and is 1"),
        ({"rows": 11}, "its length was 10 samples and is 11 samples"),
    ],
)
def test_what_was_begun_from_something_else_is_not_gone_on_with(tmp_path, changed, told):
    fingerprint = {"code": "1", "size": "3"}
    interrupted(tmp_path / "set", fingerprint=fingerprint)
    options = {"fingerprint": fingerprint, **changed}
    rows = options.pop("rows", 10)
    with pytest.raises(BadSetting, match=rf"and 10 rows of it are there.*{told}"):
        pack({"id": np.arange(rows)}, tmp_path / "set", **options)


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: os.truncate(path, 4096)], ids=["missing", "short"])
@pytest.mark.parametrize("file", ["0-id.npy", "0-id.crc32.npy"])
def test_what_has_lost_rows_since_it_was_interrupted_is_not_gone_on_with(tmp_path, file, spoil):
    interrupted(tmp_path / "set")
    spoil(tmp_path / "set" / file)
    with pytest.raises(PackDamaged, match=rf"{file} is missing or has been cut short: delete .*, and pack"):
        pack({"id": np.arange(10)}, tmp_path / "set")


def test_a_packing_that_ends_before_its_first_row_leaves_nothing(tmp_path):
    (tmp_path / "mine").mkdir()
    for name in ("set", "mine"):
        with pytest.raises(UnsupportedLeaf):
            pack({"id": np.arange(2), "name": ["a", "b"]}, tmp_path / name)
        with pytest.raises(SourceError, match="no sample"):
            pack([], tmp_path / name)
    assert os.listdir(tmp_path) == ["mine"]
    assert os.listdir(tmp_path / "mine") == []


def test_one_that_was_killed_before_its_first_row_begins_again_from_anything(tmp_path):
    (tmp_path / "set").mkdir()
    journal = Journal(FORMAT, Origin("other", None, 5, {}))
    (tmp_path / "set" / JOURNAL).write_bytes(sealed(journal))
    (tmp_path / "set" / "0-other.npy").write_bytes(bytes(5000))
    pack({"id": np.arange(10)}, tmp_path / "set")
    assert ids(tmp_path / "set") == list(range(10))
    assert not (tmp_path / "set" / "0-other.npy").exists()


def test_only_the_last_folder_is_made(tmp_path, monkeypatch):
    with pytest.raises(BadSetting, match=rf"no folder {tmp_path}/dta to make set in: make it, or correct"):
        pack({"id": np.arange(10)}, tmp_path / "dta" / "set")
    assert os.listdir(tmp_path) == []
    monkeypatch.chdir(tmp_path)
    assert pack({"id": np.arange(10)}, "set").rows == 10


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"folder": 5}, "folder=5: give the path of a folder"),
        ({"folder": ""}, "folder='': give the path of a folder"),
        ({"folder": "a\0b"}, r"folder='a\\x00b': give the path of a folder"),
        ({"seed": "one"}, "seed='one': it must be a whole number"),
        ({"seed": 2**64}, "seed=18446744073709551616: it must be a whole number"),
        ({"commit_bytes": 0}, "commit_bytes=0: it must be a whole number"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(tmp_path, monkeypatch, wrong, told):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadSetting, match=told):
        pack({"id": np.arange(10)}, **{"folder": tmp_path / "set", **wrong})
    assert os.listdir(tmp_path) == []


def test_what_is_no_folder_in_its_place_is_told_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "set").mkdir()
    os.mkfifo(tmp_path / "set" / JOURNAL)
    with pytest.raises(BadSetting, match="pipe is no folder"):
        pack({"id": np.arange(10)}, tmp_path / "pipe")
    with pytest.raises(BadSetting, match="link is no folder but a link to nowhere, which is none"):
        pack({"id": np.arange(10)}, tmp_path / "link")
    with pytest.raises(ReadFailed, match=rf"{JOURNAL} cannot be read: it is a pipe, no file"):
        pack({"id": np.arange(10)}, tmp_path / "set")


def test_two_cannot_pack_into_one_folder_nor_is_one_that_another_has_just_begun_removed(tmp_path, monkeypatch):
    def locked(*_: Any) -> None:
        raise BlockingIOError

    (tmp_path / "set").mkdir()
    fd = os.open(tmp_path / "set", os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(BadSetting, match="another process is packing into"):
        pack({"id": np.arange(10)}, tmp_path / "set")
    os.close(fd)
    pack({"id": np.arange(10)}, tmp_path / "set")
    monkeypatch.setattr(fcntl, "flock", locked)
    with pytest.raises(BadSetting, match="another process is packing"):
        pack({"id": np.arange(10)}, tmp_path / "new")
    assert (tmp_path / "new").is_dir()


def test_rows_without_a_fixed_size_are_refused_with_the_leaf(tmp_path):
    with pytest.raises(UnsupportedLeaf, match=r"leaf batch\['name'\] is a list of strings"):
        pack({"id": np.arange(2), "name": ["a", "b"]}, tmp_path / "strings")
    growing = [{"id": np.zeros((4, n))} for n in (3, 5)]
    with pytest.raises(SourceError, match=r"changed at sample 4: leaf batch\['id'\].*Packed rows"):
        pack(growing, tmp_path / "growing")
    with pytest.raises(UnsupportedLeaf, match="constant or key of the batch is of bytes"):
        pack({"id": np.arange(2), "size": float("nan")}, tmp_path / "constants")
    with pytest.raises(SourceError, match=r"made 1 rows of 2 samples"):
        pack(
            DataLoader(dicts(2), batch_size=2, collate_fn=lambda rows: {"id": rows[0]["id"][None]}),
            tmp_path / "less",
        )
    for name in ("strings", "growing", "constants", "less"):
        assert not (tmp_path / name / MANIFEST).exists()


def test_a_source_that_raises_is_told(tmp_path):
    class Broken(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield {"id": 1}
            raise ValueError("the disk is gone")

    with pytest.raises(SourceError, match="the source raised ValueError: the disk is gone") as caught:
        pack(DataLoader(Broken(), batch_size=1), tmp_path / "set")
    assert "in __iter__" in caught.value.traceback_text


def test_a_full_disk_is_told_and_what_was_written_is_gone_on_with(tmp_path):
    """The system refuses to let the file grow, as a full disk does."""
    script = tmp_path / "full.py"
    script.write_text(
        textwrap.dedent("""
            import resource, sys
            import numpy as np
            import penstock
            if most := int(sys.argv[2]):
                resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
            tree = {"id": np.arange(100), "x": np.ones((100, 10_000), np.uint8)}
            source = penstock.ArraySource(tree, batch_size=10, shuffle=False)
            try:
                penstock.pack(source, sys.argv[1], commit_bytes=100_000)
            except penstock.errors.PackStopped as error:
                sys.exit(str(error))
        """)
    )
    full = [sys.executable, script, tmp_path / "set", "5000"]
    stopped = subprocess.run(full, capture_output=True, text=True, timeout=60, check=False)
    assert "File too large. Nothing has been packed" in stopped.stderr
    assert not (tmp_path / "set").exists()
    full[3] = "300000"
    stopped = subprocess.run(full, capture_output=True, text=True, timeout=60, check=False)
    assert "File too large. 20 rows are kept: once that is mended, the same command" in stopped.stderr
    assert json.loads((tmp_path / "set" / JOURNAL).read_text())["rows"] == 20
    subprocess.run([*full[:3], "0"], check=True, timeout=60)
    assert ids(tmp_path / "set") == list(range(100))


@pytest.mark.parametrize(("commit_bytes", "safe"), [(1, 10), (1 << 20, 0)])
def test_what_a_disk_failed_to_make_safe_is_not_gone_on_with(tmp_path, monkeypatch, commit_bytes, safe):
    """The kernel tells of lost pages once; another fsync succeeds without them."""
    failed: list[int] = []
    fsync = os.fsync

    def fail_once(fd: int) -> None:
        if os.fstat(fd).st_size >= 4096 + 20 * 8 and not failed:
            failed.append(fd)
            raise OSError(errno.EIO, "Input/output error")
        fsync(fd)

    def source() -> penstock.ArraySource:
        return penstock.ArraySource({"id": np.arange(40)}, batch_size=10, shuffle=False)

    monkeypatch.setattr(os, "fsync", fail_once)
    told = "10 rows are kept" if safe else "Nothing has been packed"
    with pytest.raises(PackStopped, match=f"Input/output error. {told}"):
        pack(source(), tmp_path / "set", commit_bytes=commit_bytes)
    assert failed
    assert rows_begun(tmp_path / "set")[0] == safe
    assert (tmp_path / "set").exists() == bool(safe)
    pack(source(), tmp_path / "set")
    assert ids(tmp_path / "set") == list(range(40))


def test_a_data_set_that_cannot_fit_is_refused_before_it_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 79})())
    with pytest.raises(PackStopped, match=r"10 samples take 80 bytes, and .* has room for 79 bytes: make room"):
        pack({"id": np.arange(10)}, tmp_path / "set")
