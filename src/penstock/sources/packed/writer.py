"""The files of a packing that is under way, and its journal."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from penstock.basics.crc32 import crc32
from penstock.basics.sizes import size_text
from penstock.contracts import SourceBlock
from penstock.errors import PackDamaged, PackStopped, SourceError, UnsupportedLeaf
from penstock.sources.packed.format import (
    FORMAT,
    HEADER_BYTES,
    JOURNAL,
    MANIFEST,
    SUM,
    Leaf,
    Manifest,
    header,
    read_bytes,
    sealed,
)
from penstock.tree import Array, Described, Node, Ragged, array_nodes, bytes_of, describe, difference, leaf_names

_NEW = f"{JOURNAL}.new"


class Origin(msgspec.Struct, frozen=True):
    """What is being packed, to recognise it; ``fingerprint`` is texts by name."""

    source: str
    samples: int | None
    seed: int
    fingerprint: dict[str, str]


class Journal(msgspec.Struct, frozen=True):
    """How far packing has come: ``rows`` are safe on the disk. For ``crc32`` see ``Manifest``."""

    format: str
    origin: Origin
    rows: int = 0
    leaves: tuple[Leaf, ...] = ()
    layout: Node | None = None
    crc32: int = 0


@contextmanager
def stopping(path: Path, safe_rows: int) -> Generator[None]:
    """Turn a disk error into PackStopped, which names the number of safe rows."""
    try:
        yield
    except OSError as error:
        kept = f"{safe_rows:,} rows are kept: once that is mended, the same command goes on after them"
        raise PackStopped(
            f"{path}: {error.strerror}. {kept if safe_rows else 'Nothing has been packed'}"
        ) from error


class Writer:
    """The files of a packing."""

    def __init__(self, folder: Path, journal: Journal) -> None:
        self.journal = journal  # how far packing had come; what was written after that is cut off
        self.rows = journal.rows
        self.unsafe_bytes = 0
        self._folder = folder  # folder of the files
        self._files: list[list[Any]] = []  # of each leaf: rows, checksums
        if journal.layout is not None:
            try:
                for leaf in journal.leaves:
                    self._open(leaf)
            except BaseException:
                self.close()
                raise

    def add(self, block: SourceBlock, samples: int | None) -> None:
        """Append a block's rows, except those that are there."""
        parts = self._described(block)
        if self.journal.layout is None:
            self._begin(parts, samples)
        skipped = self.rows - block.sample
        assert 0 <= skipped < parts.rows
        nodes = array_nodes(parts.layout)
        with stopping(self._folder, self.journal.rows):
            for node, values, leaf, files in zip(
                nodes, parts.leaves, self.journal.leaves, self._files, strict=True
            ):
                size = leaf.row_bytes
                content = bytes_of(node, values)[skipped * size :]
                sums = [crc32(content[i * size : (i + 1) * size]) for i in range(parts.rows - skipped)]
                files[0].write(content)
                files[1].write(np.array(sums, SUM))
                self.unsafe_bytes += content.nbytes
        self.rows += parts.rows - skipped

    def commit(self) -> None:
        """Sync what is written to the disk, and record it in the journal."""
        with stopping(self._folder, self.journal.rows):
            for file in (file for pair in self._files for file in pair):
                file.flush()
                os.fsync(file.fileno())
        journal = msgspec.structs.replace(self.journal, rows=self.rows)
        self._write(JOURNAL, journal)
        self.journal = journal
        self.unsafe_bytes = 0

    def finish(self) -> None:
        """Write the headers, and last of all the manifest."""
        if self.journal.layout is None:
            raise SourceError("the source gave no sample: there is nothing to pack")
        leaves: list[Leaf] = []
        with stopping(self._folder, self.journal.rows):
            for leaf, (rows, sums) in zip(self.journal.leaves, self._files, strict=True):
                rows.seek(0)
                rows.write(header(leaf.dtype, (self.rows, *leaf.shape)))
                sums.seek(0)
                sums.write(header(SUM.str, (self.rows,)))
                sums.flush()
                content = read_bytes(self._folder / leaf.checksums, HEADER_BYTES)
                leaves.append(msgspec.structs.replace(leaf, checksums_crc32=crc32(content)))
        self.commit()
        manifest = Manifest(
            format=FORMAT,
            source=self.journal.origin.source,
            rows=self.rows,
            leaves=tuple(leaves),
            layout=self.journal.layout,
        )
        self._write(MANIFEST, manifest)
        (self._folder / JOURNAL).unlink()

    def stop(self, *, disk_failed: bool) -> None:
        """Commit what is written, unless the disk has failed; if no row is safe, remove the files."""
        # After a failed fsync, the next one succeeds without having written the bytes.
        if self.rows and not disk_failed:
            with suppress(PackStopped):
                self.commit()
        if not self.journal.rows:
            self._clear()

    def close(self) -> None:
        for file in (file for pair in self._files for file in pair):
            with suppress(OSError):  # a full disk has been reported
                file.close()

    def _described(self, block: SourceBlock) -> Described:
        parts = describe(block.tree)
        if parts.rows != block.rows:
            raise SourceError(f"the source made {parts.rows} rows of {block.rows} samples: each needs one")
        before = self.journal.layout
        if before is not None and parts.layout != before:
            raise SourceError(
                f"the source's batches changed at sample {block.sample:,}: {difference(before, parts.layout)}. "
                "Packed rows are of one size: pad or crop in the dataset"
            )
        return parts

    def _begin(self, parts: Described, samples: int | None) -> None:
        layout = parts.layout
        if msgspec.json.decode(msgspec.json.encode(layout), type=Node) != layout:  # pyright: ignore[reportArgumentType]
            raise UnsupportedLeaf(
                "a constant or key of the batch is of bytes, or no finite number, which cannot be packed: "
                "send it as text, or leave it out"
            )
        named = zip(leaf_names(layout), array_nodes(layout), parts.leaves, strict=True)
        leaves = tuple(_leaf(i, name, node, values) for i, (name, node, values) in enumerate(named))
        need = (samples or 0) * sum(leaf.row_bytes for leaf in leaves)
        free = shutil.disk_usage(self._folder).free
        if need > free:
            raise PackStopped(
                f"{samples:,} samples take {size_text(need)}, and {self._folder} has room for {size_text(free)}: "
                "make room, or give a folder on another disk"
            )
        self._clear()
        self._write(JOURNAL, self.journal)
        for leaf in leaves:
            self._open(leaf)
        self.journal = msgspec.structs.replace(self.journal, leaves=leaves, layout=layout)

    def _open(self, leaf: Leaf) -> None:
        """Open a leaf's files at the end of their safe rows."""
        pair: list[Any] = []
        self._files.append(pair)
        with stopping(self._folder, self.journal.rows):
            for name, size in ((leaf.file, leaf.row_bytes), (leaf.checksums, SUM.itemsize)):
                path = self._folder / name
                end = HEADER_BYTES + self.rows * size
                if self.rows and (not path.exists() or path.stat().st_size < end):
                    raise PackDamaged(
                        f"{path} is missing or has been cut short: delete {self._folder}, and pack again"
                    )
                file = open(path, "r+b" if self.rows else "wb")  # noqa: SIM115
                pair.append(file)
                file.truncate(end)
                file.seek(end)

    def _clear(self) -> None:
        """Remove the files of a packing without safe rows."""
        for left in (*self._folder.glob("*.npy"), self._folder / _NEW, self._folder / JOURNAL):
            left.unlink(missing_ok=True)

    def _write(self, name: str, content: Journal | Manifest) -> None:
        """Replace a file atomically: whenever the machine stops, the old or the new one is whole."""
        new = self._folder / _NEW
        with stopping(self._folder, self.journal.rows):
            with open(new, "wb") as file:
                file.write(sealed(content))
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self._folder / name)
            fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)


def _leaf(i: int, name: str, node: Node, values: Any) -> Leaf:
    if not isinstance(node, Array):
        what = "of ragged rows" if isinstance(node, Ragged) else "a list of strings or numbers"
        raise UnsupportedLeaf(
            f"leaf {name} is {what}, and packed rows are of one size: send numbers as an array (ragged ones as "
            "rows.padded(length=...)), names as an array of fixed length (np.array(names, 'S64')), or leave it out"
        )
    dtype = node.dtype if node.library != "torch" else _as_numpy(values.dtype, values.element_size())
    stem = "-".join([str(i), *re.findall(r"\w+", name.removeprefix("batch"), re.ASCII)])[:100]
    return Leaf(name=name, file=f"{stem}.npy", checksums=f"{stem}.crc32.npy", dtype=dtype, shape=node.shape)


def _as_numpy(dtype: Any, nbytes: int) -> str:
    """Return the NumPy type of a torch type, or an unsigned integer of its width."""
    torch = sys.modules["torch"]
    try:
        return torch.empty(0, dtype=dtype).numpy().dtype.str
    except TypeError:
        return np.dtype(f"u{nbytes}").str
