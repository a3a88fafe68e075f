"""The files of a folder, as a log reads them: by whole lines, or as one record."""

from __future__ import annotations

import os
from collections.abc import Iterator

from penstock.contracts import Part
from penstock.errors import StreamTruncated

PIECE_BYTES, _BUFFER_BYTES = 1 << 20, 1 << 17
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
        with open(self.path(part.name), "rb", _BUFFER_BYTES) as file:
            if not has_lines(part.name):
                data = file.read()
                if last is not None and last.byte != len(data):
                    raise self.changed(last, f"has {len(data):,} bytes now")
                yield [data], part._replace(offset=1, byte=len(data))
                return
            if part.byte and (file.seek(part.byte - 1) < 0 or file.read(1) != b"\n"):
                raise self.changed(part, "has no line that begins there now")
            until = last.byte if last is not None else os.fstat(file.fileno()).st_size
            lines, byte = list[bytes](), part.byte
            for line in file:
                if byte + len(line) > until or line[-1:] != b"\n":
                    break
                byte += len(line)
                if len(line) > 1:
                    lines.append(line[:-1])
                if len(lines) == most or byte - part.byte >= PIECE_BYTES:
                    part, most = part._replace(offset=part.offset + len(lines), byte=byte), most - len(lines)
                    yield lines, part
                    if not most:
                        return
                    lines = []
            if byte > part.byte:
                yield lines, part._replace(offset=part.offset + len(lines), byte=byte)

    def changed(self, part: Part, there: str) -> StreamTruncated:
        read = f"it was read up to record {part.offset:,} at byte {part.byte:,}"
        return self.truncated(part.name, f"{read}, and {there}")

    def truncated(self, name: str, why: str) -> StreamTruncated:
        return StreamTruncated(f"{self.path(name)}: {why}: {_REMEDY}")


def counts(name: str) -> bool:
    return not name.startswith((".", "_")) and not name.endswith((".tmp", ".part"))


def has_lines(name: str) -> bool:
    return name.endswith(".jsonl")


def is_whole(part: Part) -> bool:
    return part.offset > 0 and not has_lines(part.name)
