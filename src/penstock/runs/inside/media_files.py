"""The files of a run's images, histograms and texts: ``files/log/NAME/``."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any
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
    """

    def __init__(self, run_folder: Path, writer: str) -> None:
        self._folder = run_folder / "files" / "log"
        self._half = run_folder / f"log-{writer}.half"
        self._writer = writer  # what no other process of the run is called
        self._counts = Counter[tuple[str, str]]()
        self._images = defaultdict[Path, list[Path]](list)
        self._lines = Counter[Path]()

    def add(self, name: str, media: Media, step: float | None, time_s: float) -> bool:
        """Write one of them; return whether older ones of its name had to be thinned out.

        Without a step it stands at its number among those of its name; the time is in seconds since 1970.
        """
        check_name(name)
        number = self._counts[name, media.kind]
        if not number and len(self._counts) == _MOST_NAMES:
            raise BadSetting(
                f"{name!r} would be the {_MOST_NAMES + 1:,}th: a name stands for a quantity, not a step"
            )
        self._counts[name, media.kind] += 1
        place = f"{number if step is None or not math.isfinite(step) else step:.15g}"
        folder = self._folder / folder_name(name)
        with usable(folder):
            folder.mkdir(parents=True, exist_ok=True)
            if media.kind == "image":
                return self._add_image(folder / f"{place}.{self._writer}.{number}.png", media.content)
            line = b'{"step":%s,"time":%.6f,%s\n' % (place.encode(), time_s, media.content[1:])
            return self._add_line(folder / f"{media.kind}.{self._writer}.jsonl", line)

    def _add_image(self, path: Path, content: bytes) -> bool:
        self._write(path, content)
        paths = [*self._images[path.parent], path]
        self._images[path.parent] = kept = _thinned(paths)
        for each in set(paths).difference(kept) if len(kept) < len(paths) else ():
            each.unlink(missing_ok=True)
        return len(kept) < len(paths)

    def _add_line(self, path: Path, line: bytes) -> bool:
        with path.open("ab") as file:
            file.write(line)
        self._lines[path] += 1
        if self._lines[path] <= MOST:
            return False
        kept = _thinned(path.read_bytes().splitlines(keepends=True))
        self._write(path, b"".join(kept))
        self._lines[path] = len(kept)
        return True

    def _write(self, path: Path, content: bytes) -> None:
        try:
            self._half.write_bytes(content)
            self._half.replace(path)
        finally:
            self._half.unlink(missing_ok=True)


def _thinned(items: list[Any]) -> list[Any]:
    return items[: MOST // 2 : 2] + items[MOST // 2 :] if len(items) > MOST else items


def folder_name(name: str) -> str:
    """Return the name of a folder for a name of any characters: quoted as in a URL; a long one is cut."""
    quoted = quote(name, safe=" ")
    if len(quoted) > _LONGEST:
        quoted = f"{quote(name[:14], safe=' ')}~{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted
