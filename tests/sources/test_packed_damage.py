"""Packed data sets that are not what was packed: every damage is one clear error, and never other data."""

from __future__ import annotations

import errno
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.no_files import NO_FILES

import penstock
from penstock.contracts import Cursor
from penstock.errors import BadSetting, PackDamaged, ReadFailed
from penstock.io.open import FILE_MECHANISMS
from penstock.sources.packed.format import HEADER_BYTES, JOURNAL, MANIFEST
from penstock.sources.packed.leaf_files import PackedFiles, check
from penstock.sources.packed.packed_source import PackedSource
from penstock.sources.packed.packing import pack

ROWS, ROW_BYTES = 40, 8192


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    pack({"id": np.arange(3), "image": np.arange(12, dtype=np.uint8).reshape(3, 4)}, tmp_path / "tiny")
    return tmp_path / "tiny"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return packed(tmp_path / "small")


def packed(folder: Path, seed: int = 7) -> Path:
    """Rows that are read, of two pages each, and two leaves of equal shape that are kept in memory."""
    image = np.random.default_rng(seed).integers(0, 256, (ROWS, ROW_BYTES), np.uint8)
    pack({"id": np.arange(ROWS) + seed, "place": np.arange(ROWS) * seed, "image": image}, folder)
    return folder


def read(folder: Path, **options: Any) -> list[Any]:
    with closing(PackedSource(folder, shuffle=False, **options)) as source:
        return [block.tree for block in source.open(Cursor(0, 0))]


def flips(path: Path, offsets: Iterator[int] | range) -> Iterator[str]:
    """The file with a bit of each of these bytes inverted in turn; as it was in the end."""
    whole = path.read_bytes()
    for offset in offsets:
        bit = (offset + offset // 8) % 8
        spoilt = bytearray(whole)
        spoilt[offset] ^= 1 << bit
        path.write_bytes(spoilt)
        yield f"bit {bit} of byte {offset} of {path.name}, {whole[offset : offset + 1]!r}"
    path.write_bytes(whole)


@pytest.mark.parametrize("file", [MANIFEST, "0-id.npy", "0-id.crc32.npy", "1-image.npy"])
def test_any_bit_of_the_manifest_or_of_a_header_that_flips_is_told(tiny, file):
    path = tiny / file
    told = (
        f"{path} is damaged: .*pack again" if file == MANIFEST else f"the header of {path} is not the one that was"
    )
    looked_at = [*range(160), *range(160, HEADER_BYTES, 97), HEADER_BYTES - 1]  # the rest is blanks
    for flipped in flips(path, range(path.stat().st_size) if file == MANIFEST else iter(looked_at)):
        with pytest.raises(PackDamaged, match=told):
            raise AssertionError(f"{flipped} went unnoticed by {PackedSource(tiny)}")
    read(tiny)


@pytest.mark.parametrize("file", ["0-id.npy", "0-id.crc32.npy", "1-image.npy", "1-image.crc32.npy"])
def test_any_bit_of_rows_or_checksums_that_flips_is_told(tiny, file):
    path = tiny / file
    for flipped in flips(path, range(HEADER_BYTES, path.stat().st_size)):
        with pytest.raises(PackDamaged, match=rf"{file}.* is damaged"):
            raise AssertionError(f"{flipped} went unnoticed, and gave {read(tiny)}")
        with pytest.raises(PackDamaged, match=file):
            check(tiny)
    read(tiny)


def test_any_bit_of_the_journal_that_flips_keeps_a_packing_from_going_on(tmp_path):
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack({"id": np.arange(10)}, tmp_path / "set", progress=interrupt)
    path = tmp_path / "set" / JOURNAL
    for flipped in flips(path, range(path.stat().st_size)):
        with pytest.raises(PackDamaged, match=rf"{path} is damaged: .*Delete"):
            raise AssertionError(f"{flipped} went unnoticed: {pack({'id': np.arange(10)}, tmp_path / 'set')}")
    assert pack({"id": np.arange(10)}, tmp_path / "set").rows == 10


def test_a_manifest_that_was_edited_is_damaged_and_a_whole_one_of_another_version_is_told(small):
    told = (small / "penstock.json").read_text()
    for spoilt in (told[:-100], told.replace('"rows": 40', '"rows": 39'), told.replace("2-image.npy", "../x")):
        (small / "penstock.json").write_text(spoilt)
        with pytest.raises(PackDamaged, match=r"penstock.json is damaged: .*, or delete .* and pack again"):
            PackedSource(small)
    before = told.partition(',\n "crc32"')[0] + "}"
    for other in (before.replace("packed 2", "packed 1"), resealed(told.replace("packed 2", "packed 3"))):
        (small / "penstock.json").write_text(other)
        with pytest.raises(BadSetting, match=r"'penstock packed [13]', and this Penstock reads"):
            PackedSource(small)


def resealed(manifest: str) -> str:
    """A manifest with the checksum that its text has now."""
    body, key, _ = manifest.rpartition('"crc32": ')
    return f"{body}{key}{zlib.crc32(body.encode())}\n}}\n"


def test_anyone_can_compute_the_checksum_of_a_manifest(tiny):
    manifest = (tiny / MANIFEST).read_text()
    assert resealed(manifest) == manifest


@pytest.mark.parametrize(
    "swapped",
    [["1-place.npy"], ["1-place.crc32.npy"], ["1-place.npy", "1-place.crc32.npy"], ["2-image.npy"]],
    ids="+".join,
)
def test_a_file_of_another_set_of_equal_shape_is_told(tmp_path, small, swapped):
    other = packed(tmp_path / "other", seed=8)
    for file in swapped:
        shutil.copy(other / file, small / file)
    for opens in (read, check):
        with pytest.raises(PackDamaged, match=swapped[0].partition(".")[0]):
            opens(small)


def test_two_leaves_of_equal_shape_that_were_swapped_are_told(small):
    for end in ("npy", "crc32.npy"):
        os.rename(small / f"0-id.{end}", small / "aside")
        os.rename(small / f"1-place.{end}", small / f"0-id.{end}")
        os.rename(small / "aside", small / f"1-place.{end}")
    with pytest.raises(PackDamaged, match=r"crc32.npy is damaged"):
        read(small)


def overwrite(path: Path) -> None:
    """In place, as many bytes, and the time of writing as it was."""
    before = path.stat()
    with open(path, "r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"\x11" * 8)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (overwrite, "it was renamed, or written to with its time of writing set back"),
        (lambda path: path.chmod(0o600), "its permissions from -rw-r--r-- to -rw-------"),
        (lambda path: os.link(path, path.with_name("link")), "the number of its hard links from 1 to 2"),
        (lambda path: os.chown(path, 1, 1), "its owner from 0:0 to 1:1"),
    ],
    ids=["overwritten", "chmod", "link", "chown"],
)
@pytest.mark.parametrize("file", ["0-id.npy", "2-image.npy"])
def test_a_file_that_changes_without_its_time_of_writing_ends_the_pass_and_what_changed_is_told(
    small, file, change, told
):
    path = small / file
    path.chmod(0o644)
    if "owner" in told and os.geteuid():
        pytest.skip("only root gives files away")
    with closing(PackedSource(small, batch_size=4)) as source:
        blocks = source.open(Cursor(0, 0))
        next(blocks)
        change(path)
        with pytest.raises(PackDamaged, match=rf"{path} was changed while it was being read: {told}. If nobody"):
            list(blocks)


def test_reading_changes_nothing_that_is_compared(small):
    with closing(PackedSource(small, batch_size=4)) as source:
        for cycle in range(2):
            for _ in source.open(Cursor(cycle, 0)):
                check(small)
                shutil.copytree(small, small.parent / "copy", dirs_exist_ok=True)


@pytest.mark.parametrize(
    ("reader", "left_bytes"),
    [
        ("posix", 0),
        ("uring", HEADER_BYTES),
        *((reader, HEADER_BYTES + 3 * ROW_BYTES + 5) for reader in FILE_MECHANISMS),
    ],
)
def test_a_file_that_is_cut_short_while_it_is_fed_is_damaged_through_every_reader(
    serve, small, reader, left_bytes
):
    serve(PackedSource(small, reader=reader, batch_size=4))
    path = small / "2-image.npy"
    with penstock.attach("feed") as trainer:
        list(trainer)
        os.truncate(path, left_bytes)
        with pytest.raises(PackDamaged, match=rf"{path} was cut short, from 331,776 to {left_bytes:,} bytes,"):
            for _ in range(100):
                list(trainer)


@pytest.mark.parametrize("reader", FILE_MECHANISMS)
def test_a_file_that_was_cut_short_before_its_first_read_is_damaged(small, reader):
    with closing(PackedSource(small, reader=reader, batch_size=4)) as source:
        os.truncate(small / "2-image.npy", HEADER_BYTES)
        with pytest.raises(PackDamaged, match=r"2-image.npy was cut short"):
            list(source.open(Cursor(0, 0)))


@pytest.mark.parametrize("reader", ["auto", *FILE_MECHANISMS])
def test_a_wrong_byte_is_named_with_its_row_and_both_sums(small, reader):
    path = small / "2-image.npy"
    spoil(path, HEADER_BYTES + 17 * ROW_BYTES + 5)
    with pytest.raises(PackDamaged) as caught:
        read(small, reader=reader, batch_size=4)
    assert f"row 17 of {path}" in str(caught.value)
    assert f"{HEADER_BYTES + 17 * ROW_BYTES:,}" in str(caught.value)
    assert "was packed" in str(caught.value)
    with pytest.raises(PackDamaged, match=f"1 of 40 rows of {path} are damaged or cannot be read: 17"):
        check(small)
    assert len(read(small, reader=reader, batch_size=4, verify=False)) == 10


def test_a_check_goes_through_all_and_counts_what_is_damaged(small):
    for row in (3, 17, 18, 19, 20, 21, 39):
        spoil(small / "2-image.npy", HEADER_BYTES + row * ROW_BYTES)
    spoil(small / "0-id.npy", HEADER_BYTES + 8)
    spoil(small / "1-place.npy", 30)
    spoil(small / "1-place.crc32.npy", HEADER_BYTES)
    with pytest.raises(PackDamaged) as caught:
        check(small)
    found = str(caught.value).split("\n")
    assert len(found) == 5
    assert f"1 of 40 rows of {small / '0-id.npy'} are damaged or cannot be read: 1" in found
    few = "3, 17, 18, 19, 20, ..."
    assert f"7 of 40 rows of {small / '2-image.npy'} are damaged or cannot be read: {few}" in found
    assert any(line.startswith(f"the header of {small / '1-place.npy'} is not") for line in found)
    assert any(line.startswith(f"{small / '1-place.crc32.npy'} is damaged: its CRC-32 is") for line in found)
    assert found[-1] == f"Restore it from a copy, or delete {small} and pack again"


def test_a_check_counts_rows_that_are_missing_and_files_that_are(small):
    os.truncate(small / "2-image.npy", HEADER_BYTES + 30 * ROW_BYTES)
    (small / "0-id.npy").unlink()
    (small / "1-place.crc32.npy").unlink()
    with pytest.raises(PackDamaged) as caught:
        check(small)
    assert f"{small / '0-id.npy'} is missing\n" in str(caught.value)
    assert f"{small / '1-place.crc32.npy'} is missing\n" in str(caught.value)
    few = "30, 31, 32, 33, 34, ..."
    assert f"10 of 40 rows of {small / '2-image.npy'} are damaged or cannot be read: {few}" in str(caught.value)


def test_a_check_goes_on_where_a_disk_fails(small, monkeypatch):
    bad = HEADER_BYTES + 17 * ROW_BYTES
    read_at = os.preadv

    def fails(fd: int, buffers: Any, offset: int) -> int:
        if "2-image.npy" in os.readlink(f"/proc/self/fd/{fd}") and offset <= bad < offset + len(buffers[0]):
            raise OSError(errno.EIO, "Input/output error")
        return read_at(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", fails)
    with pytest.raises(PackDamaged, match=r"^1 of 40 rows of .*2-image.npy are damaged or cannot be read: 17\n"):
        check(small)


def spoil(path: Path, offset: int) -> None:
    """Invert a byte."""
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0xFF]))


@pytest.mark.parametrize("kind", ["pipe", "folder", "link to nothing"])
@pytest.mark.parametrize("file", [MANIFEST, "0-id.npy", "2-image.npy", "2-image.crc32.npy"])
def test_what_is_no_file_in_its_place_is_told_at_once(small, file, kind):
    (small / file).unlink()
    NO_FILES[kind](small / file)
    for opens in (PackedSource, check):
        with pytest.raises((PackDamaged, ReadFailed, BadSetting), match=file):
            opens(small)


def test_a_set_may_lie_behind_links(small, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    for file in list(small.iterdir()):
        file.rename(tmp_path / "elsewhere" / file.name)
        file.symlink_to(tmp_path / "elsewhere" / file.name)
    (tmp_path / "link").symlink_to(small)
    assert sum(len(tree["id"]) for tree in read(tmp_path / "link")) == check(tmp_path / "link").rows == ROWS


def test_tensors_of_the_other_byte_order_are_refused(tmp_path):
    pack({"x": torch.arange(5.0)}, tmp_path / "set")
    manifest = (tmp_path / "set" / MANIFEST).read_text().replace("<f4", ">f4")
    (tmp_path / "set" / MANIFEST).write_text(resealed(manifest))
    with pytest.raises(BadSetting, match=r"leaf batch\['x'\] .* machine of the other byte order"):
        PackedSource(tmp_path / "set")


def test_rows_beyond_what_32_bits_count_are_found_at_their_offset(tmp_path):
    rows = 2**31 + 3
    pack({"x": np.zeros((3, 2), np.uint8)}, tmp_path / "set")
    files = PackedFiles(tmp_path / "set", keep_bytes=0, verify=True)
    indices = np.array([rows - 2, rows - 1, 2, 3, 4, rows - 3])
    starts, counts = files.runs(0, indices)
    assert files.offsets(0, indices[starts]).tolist() == [
        HEADER_BYTES + 2 * (rows - 2),
        HEADER_BYTES + 4,
        HEADER_BYTES + 2 * (rows - 3),
    ]
    assert counts.tolist() == [2, 3, 1]
