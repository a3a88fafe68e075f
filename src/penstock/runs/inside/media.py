"""What a script logs besides numbers, as it is stored: images, histograms of arrays, and texts."""

from __future__ import annotations

import io
import json
import struct
import sys
import zlib
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from penstock.errors import BadSetting

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
