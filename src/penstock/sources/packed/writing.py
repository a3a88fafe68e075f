"""Packing: one pass of a source into files, row after row, which can be interrupted and gone on with."""

from __future__ import annotations

import fcntl
import os
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from penstock.contracts import Cursor, Source, SourceBlock
from penstock.errors import BadSetting, PackDamaged, PenstockError, SourceError
from penstock.sources.adapt import adapt
from penstock.sources.packed.format import FORMAT, JOURNAL, MANIFEST, Manifest, read_manifest
from penstock.sources.packed.writer import Journal, Origin, Writer, stopping

_COMMIT_BYTES = 64 << 20
_COMMIT_S = 5.0


def pack(
    loader: Any,
    folder: str | Path,
    *,
    seed: int = 0,
    recipe: str = "",
    commit_bytes: int = _COMMIT_BYTES,
    progress: Callable[[int, int | None], None] | None = None,
) -> Manifest:
    """Write one pass of a source into a folder, from which ``PackedSource`` feeds it.

    A ``DataLoader`` that shuffles, and arrays, are packed in their own order;
    every other source in the order of its first cycle. Random augmentations
    are packed as they come in that pass. If it is interrupted, the same call
    goes on where it stopped.

    Args:
        loader: What a ``Feeder`` takes.
        folder: A new or empty one, or one whose packing was interrupted.
        seed: Of the pass.
        recipe: Anything that tells the loader from another; to go on, it must be the same.
        commit_bytes: After so many, or after 5 s, what is written is made safe.
        progress: Told the rows that are written, and of how many, if that is known.

    Raises:
        BadSetting: the folder holds something else, or another process packs into it.
        UnsupportedLeaf: a leaf's rows have no fixed size.
        SourceError: the source raised, or its blocks vary.
        PackStopped: the disk is full, or fails.
    """
    folder = Path(folder)
    with closing(adapt(loader, segments=1, seed=seed, in_order=True)) as source, _held(folder):
        origin = Origin(source.description, source.samples, seed, recipe)
        journal = _begun(folder, origin)
        if (folder / MANIFEST).exists():  # it was interrupted between its last two steps
            (folder / JOURNAL).unlink()
            return read_manifest(folder)
        with closing(Writer(folder, journal)) as writer:
            safe = time.monotonic()
            for block in _blocks(source, writer.journal.rows):
                writer.add(block, source.samples)
                if writer.unsafe_bytes >= commit_bytes or time.monotonic() - safe > _COMMIT_S:
                    writer.commit()
                    safe = time.monotonic()
                if progress is not None:
                    progress(writer.rows, source.samples)
            writer.finish()
    return read_manifest(folder)


@contextmanager
def _held(folder: Path) -> Generator[None]:
    """The folder, made if need be, for this process alone."""
    if folder.exists() and not folder.is_dir():
        raise BadSetting(f"{folder} is no folder")
    with stopping(folder, 0):
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadSetting(f"another process is packing into {folder}") from None
        yield
    finally:
        os.close(fd)


def _begun(folder: Path, origin: Origin) -> Journal:
    """The journal of this packing, which begins here unless it was begun before."""
    if (folder / MANIFEST).exists() and not (folder / JOURNAL).exists():
        raise BadSetting(
            f"{folder} holds a packed data set already ({read_manifest(folder).rows:,} rows): choose another "
            "folder, or delete that one"
        )
    if not (folder / JOURNAL).exists():
        found = sorted(path.name for path in folder.iterdir() if path.name != JOURNAL + ".new")
        if found:
            raise BadSetting(f"{folder} is not empty: it holds {', '.join(found[:3])}. Give a new folder")
        return Journal(FORMAT, origin)
    try:
        journal = msgspec.json.decode((folder / JOURNAL).read_bytes(), type=Journal)
    except msgspec.MsgspecError as error:
        raise PackDamaged(f"{folder / JOURNAL} is damaged ({error}): delete {folder}, and pack again") from None
    if journal.origin != origin or journal.format != FORMAT:
        raise BadSetting(
            f"in {folder} the packing of something else was begun: {_words(journal.origin)}, where you give "
            f"{_words(origin)}. Give another folder, or delete that one"
        )
    return journal


def _words(origin: Origin) -> str:
    return f"{origin.source}, seed {origin.seed}" + (f", {origin.recipe}" if origin.recipe else "")


def _blocks(source: Source, rows: int) -> Iterator[SourceBlock]:
    """The blocks of the first cycle from a row on; what the source raises comes as ``SourceError``."""
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
                raise SourceError(what, traceback.format_exc()) from error
            if block is None:
                return
            yield block
