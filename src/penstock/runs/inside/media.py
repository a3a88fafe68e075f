"""What a script logs besides numbers: images, histograms and texts, as files of its run (``files/log/NAME/``)."""

from __future__ import annotations

import hashlib
import io
import json
import math
import struct
import sys
import zlib
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import quote

from penstock.errors import BadSetting
from penstock.runs.store.folder import usable
from penstock.runs.store.points import check_name

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


MOST_IMAGE_BYTES = 50_000_000
MOST_CHARACTERS = 100_000
BINS = 64
_AT_ONCE = 1 << 20
_COLOURS = {1: 0, 3: 2, 4: 6}  # PNG's types of colour, by channels


class Media(NamedTuple):
    """An image, a histogram or a text."""

    kind: Literal["image", "histogram", "text"]  # which of them
    content: bytes  # a PNG of an image; of the others, what their line has besides the step and the time (JSON)


def media_of(value: Any) -> Media:
    """Return what is stored of a value. It is read at once, as the script may change it."""
    if isinstance(value, str):
        if len(value) > MOST_CHARACTERS:
            raise BadSetting(f"it has {len(value):,} characters, more than {MOST_CHARACTERS:,}")
        return Media("text", json.dumps({"text": value}).encode())
    file = io.BytesIO()
    if _is_of("matplotlib.figure", "Figure", value):
        width, height = value.get_size_inches() * value.dpi
        _check_image(round(width), round(height), 4)
        value.savefig(file, format="png", dpi="figure")
        return Media("image", file.getvalue())
    if _is_of("PIL.Image", "Image", value):
        _check_image(value.width, value.height, len(value.getbands()))
        plain = value if value.mode in {"1", "L", "LA", "P", "RGB", "RGBA"} else value.convert("RGB")
        plain.save(file, "PNG", compress_level=1)
        return Media("image", file.getvalue())
    array = _array(value)
    if array is None or array.dtype.kind not in "biuf":
        raise BadSetting(f"it is no number, array, image or text but {type(value).__name__}")
    if not array.size:
        raise BadSetting(f"an array of shape {array.shape} holds nothing")
    if array.dtype == "uint8" and array.ndim == 3:
        if array.shape[2] not in _COLOURS and array.shape[0] in _COLOURS:  # channels first, as torch has them
            array = array.transpose(1, 2, 0)
        if array.shape[2] in _COLOURS:
            _check_image(array.shape[1], array.shape[0], array.shape[2])
            return Media("image", _png(array))
    return Media("histogram", json.dumps(_histogram(array.reshape(-1))).encode())


def _is_of(module: str, name: str, value: Any) -> bool:
    return module in sys.modules and isinstance(value, getattr(sys.modules[module], name))


def _array(value: Any) -> NDArray[Any] | None:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if "bfloat16" in str(value.dtype) else value  # which numpy does not have
    if not hasattr(value, "__array__"):
        return None
    import numpy as np

    return np.asarray(value)


def _check_image(width: int, height: int, channels: int) -> None:
    nbytes = width * height * channels
    if nbytes > MOST_IMAGE_BYTES:
        pixels, most_mb = f"{width:,} x {height:,} pixels", MOST_IMAGE_BYTES / 1e6
        raise BadSetting(f"{pixels} are {nbytes / 1e6:,.0f} MB, more than {most_mb:.0f}: log a smaller image")


def _png(pixels_HWC: NDArray[np.uint8]) -> bytes:
    import numpy as np

    height, width, channels = pixels_HWC.shape
    rows = np.zeros((height, 1 + width * channels), np.uint8)  # each begins with its filter: none
    rows[:, 1:] = pixels_HWC.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, _COLOURS[channels], 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows.data, 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


def _histogram(values: NDArray[Any]) -> dict[str, Any]:
    """Count values in bins of one width, those that are no numbers apart; a few MB of them at a time."""
    import numpy as np

    ends, nans, infinite = list[tuple[float, float]](), 0, 0
    for part in (parts := [values[at : at + _AT_ONCE] for at in range(0, len(values), _AT_ONCE)]):
        nans += int(np.isnan(part).sum())
        infinite += int(np.isinf(part).sum())
        if len(finite := part[np.isfinite(part)]):
            ends.append((float(finite.min()), float(finite.max())))
    low, high = (min(low for low, _ in ends), max(high for _, high in ends)) if ends else (0.0, 0.0)
    counts = np.zeros(BINS, np.int64)
    width = high / 2 - low / 2  # halves, as the whole of it may be more than a float holds
    for part in parts:
        finite = part[np.isfinite(part)].astype(np.float64)
        places = (finite / 2 - low / 2) / width * BINS if width > 0 else np.zeros(len(finite))
        counts += np.bincount(np.minimum(places.astype(np.int64), BINS - 1), minlength=BINS)
    return {"low": low, "high": high, "counts": counts.tolist(), "nan": nans, "infinite": infinite}


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
