"""The files of a folder, as a log reads them: by whole lines, or as one record."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import accumulate

from penstock.contracts import Part
from penstock.errors import StreamTruncated

PIECE_BYTES = 1 << 20
ALL = 1 << 62
_REMEDY = (
    "only append to files, and rename new ones in under names that sort behind all others; "
    'on_loss="skip" counts this, and goes on with what is there'
)


class FolderFiles:
    """Reads records of files, each from a place on."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def size(self, name: str) -> int:
        try:
            return os.stat(self.path(name)).st_size
        except OSError:
            return 0

    def pieces(self, part: Part, last: Part | None, most: int = ALL) -> Iterator[tuple[list[bytes], Part]]:
        """Yield records of a file from a place on, each time with the place behind them."""
        if is_whole(part):
            return
        with open(self.path(part.name), "rb") as file:
            if not has_lines(part.name):
                data = file.read()
                if last is not None and last.byte != len(data):
                    raise self.changed(last, f"has {len(data):,} bytes now")
                yield [data], part._replace(offset=1, byte=len(data))
                return
            if part.byte and (file.seek(part.byte - 1) < 0 or file.read(1) != b"\n"):
                raise self.changed(part, "has no line that begins there now")
            until = last.byte if last is not None else os.fstat(file.fileno()).st_size
            rest, nbytes = b"", PIECE_BYTES
            while most and (read := file.read(max(0, min(nbytes, until - part.byte - len(rest))))):
                *lines, rest = (rest + read).split(b"\n")
                if not lines:  # a line longer than that
                    nbytes *= 2
                    continue
                if len(lines) - lines.count(b"") >= most:
                    ends = accumulate(map(bool, lines))
                    lines = lines[: next(i for i, count in enumerate(ends, 1) if count == most)]
                byte = part.byte + sum(map(len, lines)) + len(lines)
                records = [*filter(None, lines)]
                most, nbytes = most - len(records), PIECE_BYTES
                part = part._replace(offset=part.offset + len(records), byte=byte)
                yield records, part

    def changed(self, part: Part, there: str) -> StreamTruncated:
        read = f"it was read up to record {part.offset:,} at byte {part.byte:,}"
        return self.truncated(part.name, f"{read}, and {there}")

    def truncated(self, name: str, why: str) -> StreamTruncated:
        return StreamTruncated(f"{self.path(name)}: {why}: {_REMEDY}")


def counts(name: str) -> bool:
    return not name.startswith((".", "_")) and not name.endswith((".tmp", ".part"))


def is_text(name: str) -> bool:
    """Whether states and sentences can hold a name: one that is no UTF-8 has lone surrogates (PEP 383)."""
    return name.encode(errors="ignore").decode() == name


def has_lines(name: str) -> bool:
    return name.endswith(".jsonl")


def is_whole(part: Part) -> bool:
    return part.offset > 0 and not has_lines(part.name)
