"""Packs one pass of a source into files, row after row; an interrupted packing can be continued."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from penstock.basics.sizes import random_seed, whole_number
from penstock.basics.tracebacks import users_traceback
from penstock.contracts import Cursor, Source, SourceBlock
from penstock.errors import BadSetting, PackStopped, PenstockError, SourceError
from penstock.linux.files import held
from penstock.sources.adapt import adapt
from penstock.sources.packed.format import (
    FORMAT,
    JOURNAL,
    MANIFEST,
    Manifest,
    folder_at,
    read_manifest,
    read_page,
    read_set,
)
from penstock.sources.packed.writer import Journal, Origin, Writer, stopping

_COMMIT_BYTES = 64 << 20
_COMMIT_S = 5.0


def pack(
    loader: Any,
    folder: str | Path,
    *,
    seed: int = 0,
    fingerprint: str | Mapping[str, str] = "",
    commit_bytes: int = _COMMIT_BYTES,
    progress: Callable[[int, int | None], None] | None = None,
) -> Manifest:
    """Write one pass of a source into a folder, from which ``PackedSource`` feeds it.

    A ``DataLoader`` that shuffles, and arrays, are packed in the order of their
    data set; any other source in the order of its first cycle. Random
    augmentations are packed as that pass draws them. If packing is interrupted,
    a call with these arguments goes on where it stopped.

    Args:
        loader: What ``Feeder`` takes.
        folder: Folder to write: a new one (only its last part is made), an empty one, or one whose packing was
            interrupted.
        seed: Random seed of the pass.
        fingerprint: Text that identifies this loader; packing goes on only under an equal one. If it is a
            mapping of texts by name, a refusal names those that differ.
        commit_bytes: Bytes after which what is written is made safe on the disk; after 5 s at the latest.
        progress: Function called with the number of rows written, and of all rows or None if that is not known.

    Returns:
        The manifest: leaves, rows, types and checksums of what was packed.

    Raises:
        BadSetting: the folder holds something else, cannot be made, or another process packs into it.
        UnsupportedLeaf: the rows of a leaf have no fixed size.
        SourceError: the source raised, or its blocks vary in shape.
        PackDamaged: something is missing of what was packed before an interruption.
        PackStopped: the disk is full, or fails.

    Examples:
        >>> manifest = penstock.pack(penstock.ArraySource({"id": np.arange(100)}, batch_size=20), "packed")
        >>> manifest.rows
        100
    """
    folder = folder_at(folder)
    random_seed(seed)
    whole_number("commit_bytes", commit_bytes, 1)
    with closing(adapt(loader, segments=1, seed=seed, in_order=True)) as source, _held(folder):
        texts = dict(fingerprint) if isinstance(fingerprint, Mapping) else {"the recipe": fingerprint}
        origin = Origin(source.description, source.samples, seed, texts)
        journal = _begun(folder, origin)
        if (folder / MANIFEST).exists():  # it was interrupted between its last two steps
            (folder / JOURNAL).unlink()
            return read_set(folder)
        with closing(Writer(folder, journal)) as writer:
            try:
                safe = time.monotonic()
                for block in _blocks(source, writer.journal.rows):
                    writer.add(block, source.samples)
                    if writer.unsafe_bytes >= commit_bytes or time.monotonic() - safe > _COMMIT_S:
                        writer.commit()
                        safe = time.monotonic()
                    if progress is not None:
                        progress(writer.rows, source.samples)
                writer.finish()
            except BaseException as error:
                writer.stop(disk_failed=isinstance(error, PackStopped))
                raise
    return read_set(folder)


def rows_begun(folder: Path) -> tuple[int, int | None]:
    """Return how many rows of an interrupted packing are safe in a folder, and of how many, if known."""
    try:
        journal = _read_journal(folder)
    except (FileNotFoundError, PenstockError):
        return 0, None
    return journal.rows, journal.origin.samples


@contextmanager
def _held(folder: Path) -> Generator[None]:
    """Hold the folder, made if need be, for this process alone."""
    if os.path.lexists(folder) and not folder.is_dir():
        to = f" but a link to {folder.readlink()}, which is none" if folder.is_symlink() else ""
        raise BadSetting(f"{folder} is no folder{to}")
    is_new = not folder.exists()
    if is_new and not folder.absolute().parent.is_dir():
        raise BadSetting(
            f"there is no folder {folder.parent} to make {folder.name} in: make it, or correct the name"
        )
    with stopping(folder, 0):
        folder.mkdir(exist_ok=True)
    with held(folder, "packed samples", "packing into"):
        try:
            yield
        except BaseException:
            if is_new:
                with suppress(OSError):  # rows are in it
                    folder.rmdir()
            raise


def _begun(folder: Path, origin: Origin) -> Journal:
    """Return the journal of this packing, new unless it was begun before."""
    if (folder / MANIFEST).exists() and not (folder / JOURNAL).exists():
        raise BadSetting(
            f"{folder} already holds a packed data set ({read_manifest(folder).rows:,} rows): feed it with "
            f"penstock feed packed:{folder}, choose another folder, or delete that one"
        )
    if not (folder / JOURNAL).exists():
        found = sorted(path.name for path in folder.iterdir() if path.name != JOURNAL + ".new")
        if found:
            raise BadSetting(f"{folder} is not empty: it holds {', '.join(found[:3])}. Give a new folder")
        return Journal(FORMAT, origin)
    journal = _read_journal(folder)
    if not journal.rows:
        return Journal(FORMAT, origin)
    if differs := _difference(journal, Journal(FORMAT, origin)):
        raise BadSetting(
            f"in {folder} the packing of something else was begun, and {journal.rows:,} rows of it are there: "
            f"{differs}. Undo that to go on, give another folder, or delete {folder} to begin again"
        )
    return journal


def _read_journal(folder: Path) -> Journal:
    return read_page(folder / JOURNAL, Journal, f"Delete {folder}, and pack again")


def _difference(begun: Journal, now: Journal) -> str:
    """Describe how a packing differs from the one that was begun."""
    before, after = _described(begun.origin), _described(now.origin)
    found = [
        f"{name} was {before.get(name, 'not there')} and is {after.get(name, 'not there')}"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]
    return "; ".join(found[:5]) + (f"; and {len(found) - 5} more" if len(found) > 5 else "")


def _described(origin: Origin) -> dict[str, str]:
    return {
        "the source": origin.source,
        "its length": "unknown" if origin.samples is None else f"{origin.samples:,} samples",
        "the seed": str(origin.seed),
        **origin.fingerprint,
    }


def _blocks(source: Source, rows: int) -> Iterator[SourceBlock]:
    """Yield the blocks of the first cycle from a row on; what the source raises becomes ``SourceError``."""
    if source.samples is not None and rows >= source.samples:
        return
    blocks = source.open(Cursor(0, rows))
    with closing(blocks):  # type: ignore[type-var]
        while True:
            try:
                block = next(blocks, None)
            except PenstockError:
                raise
            except Exception as error:
                what = f"the source raised {type(error).__name__}: {error}"
                raise SourceError(what, users_traceback(error)) from error
            if block is None:
                return
            yield block
