"""The files of a run's images, histograms and texts: ``files/log/NAME/``."""

from __future__ import annotations

import hashlib
import math
import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from penstock.errors import BadSetting
from penstock.runs.inside.media import Media
from penstock.runs.store.folder import usable
from penstock.runs.store.points import check_name

MOST = 1000
_MOST_NAMES = 1000
_LONGEST = 200


class MediaFiles:
    """Writes what one process logs besides numbers; no other process writes into its files.

    An image is a file, ``STEP.WRITER.NUMBER.png``, which is there whole or not at all. Histograms and texts are
    lines of ``histogram.WRITER.jsonl`` and ``text.WRITER.jsonl``; a kill may leave half of the last. Of each name,
    the newest are all kept, and of the older ever fewer.

    Args:
        run_folder: The run's folder in the store.
        writer: What no other process of the run is called.
    """

    def __init__(self, run_folder: Path, writer: str) -> None:
        self._folder = run_folder / "files" / "log"
        self._half = run_folder / f"log-{writer}.half"
        self._writer = writer
        self._counts: dict[tuple[str, str], int] = {}
        self._images: dict[str, list[Path]] = {}
        self._lines: dict[tuple[str, str], int] = {}

    def add(self, name: str, media: Media, step: float | None, time_s: float) -> bool:
        """Write one of them; return whether older ones of its name had to be thinned out.

        Args:
            name: What it is called.
            media: What it is.
            step: Where it belongs; if None, or no number, its number among those of its name.
            time_s: Seconds since 1970.

        Raises:
            BadSetting: the name cannot be one, or there are too many.
            StoreUnusable: the disk does not take it.
        """
        check_name(name)
        key = name, media.kind
        if key not in self._counts and len(self._counts) == _MOST_NAMES:
            raise BadSetting(
                f"{name!r} would be the {_MOST_NAMES + 1:,}th: a name stands for a quantity, not for a step"
            )
        number = self._counts[key] = self._counts.get(key, -1) + 1
        place = _step_text(number if step is None or not math.isfinite(step) else step)
        folder = self._folder / folder_name(name)
        with usable(folder):
            folder.mkdir(parents=True, exist_ok=True)
            if media.kind == "image":
                path = folder / f"{place}.{self._writer}.{number}.png"
                self._write(path, media.content)
                return self._thin_images(name, path)
            line = b'{"step":%s,"time":%.6f,%s\n' % (place.encode(), time_s, media.content[1:])
            return self._append(key, folder / f"{media.kind}.{self._writer}.jsonl", line)

    def _write(self, path: Path, content: bytes) -> None:
        try:
            self._half.write_bytes(content)
            self._half.replace(path)
        finally:
            self._half.unlink(missing_ok=True)

    def _thin_images(self, name: str, newest: Path) -> bool:
        paths = self._images.setdefault(name, [])
        paths.append(newest)
        if len(paths) <= MOST:
            return False
        older = paths[: MOST // 2]
        for path in older[1::2]:
            path.unlink(missing_ok=True)
        paths[: MOST // 2] = older[::2]
        return True

    def _append(self, key: tuple[str, str], path: Path, line: bytes) -> bool:
        with path.open("ab", buffering=0) as file:
            end = file.tell()
            try:
                if file.write(line) < len(line):
                    raise OSError("the disk is full")
            except OSError:
                with suppress(OSError):
                    os.ftruncate(file.fileno(), end)
                raise
        count = self._lines[key] = self._lines.get(key, 0) + 1
        if count <= MOST:
            return False
        lines = path.read_bytes().splitlines(keepends=True)
        kept = lines[: MOST // 2 : 2] + lines[MOST // 2 :]
        self._write(path, b"".join(kept))
        self._lines[key] = len(kept)
        return True


def folder_name(name: str) -> str:
    """Return the name of a folder for a name of any characters: quoted as in a URL; a long one is cut."""
    quoted = quote(name, safe=" ")
    if len(quoted) > _LONGEST:
        quoted = f"{quote(name[:14], safe=' ')}~{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted


def _step_text(step: float) -> str:
    return str(int(step)) if abs(step) < 1e15 and step == int(step) else repr(step)
