"""Images that OpenCV takes for others without a word: told by their headers, and mended or refused.

Formats: netpbm's pgm(5), ppm(5) and pam(5); TIFF 6.0, sections 2, 18 and 23, and BigTIFF.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

from penstock.sources.images.opencv import checked

_GAP = rb"(?:\s|#[^\n]*\n)+"
_NETPBM = re.compile(rb"P([2356])" + _GAP + rb"\d+" + _GAP + rb"\d+" + _GAP + rb"(\d+)")
_PAM = re.compile(rb"P7\s(?:(?!ENDHDR).*\n)*?MAXVAL\s+(\d+)")
_FULL = (255, 65535)
_TIFF = {b"II*\0": "<", b"II+\0": "<", b"MM\0*": ">", b"MM\0+": ">"}
_WIDTH, _HEIGHT, _COLOURS, _TILE_WIDTH, _TILE_HEIGHT, _EXTRA_SAMPLES = 256, 257, 262, 322, 323, 338
_TYPES = {1: "B", 3: "H", 4: "I", 16: "Q"}
_CIELAB = 8
_UNSPECIFIED, _MULTIPLIED, _APART = 0, 1, 2
"""What a TIFF's fourth sample is: unknown, alpha that colours are multiplied by, or alpha that they are not."""
_AVIF_ALPHA = b"urn:mpeg:mpegB:cicp:systems:auxiliary:alpha"


class Header(NamedTuple):
    """How an image is to be decoded."""

    encoded: bytes  # the image, or a copy that OpenCV does not misread
    most: int = 0  # the value of white, to which OpenCV does not scale; 0 where it does
    has_alpha: bool = False  # whether alpha must be decoded too: else OpenCV multiplies by it
    is_multiplied: bool = False  # whether the image's own colours are multiplied by alpha


def header_of(encoded: bytes) -> Header:
    """Tell how to decode an image of any format."""
    if encoded[:4] in _TIFF:
        return _tiff(encoded)
    if encoded[4:8] == b"ftyp" and _AVIF_ALPHA in encoded:
        return Header(encoded, has_alpha=True)
    if (pam := _PAM.match(encoded)) and int(pam[1]) not in _FULL:
        raise ValueError(f"a PAM of MAXVAL {int(pam[1])} is not read: write it with 255 or 65535")
    if (found := _NETPBM.match(encoded)) and (most := int(found[2])) not in _FULL:
        if not 0 < most < _FULL[1]:
            raise ValueError(f"its maxval is {most}, which is none from 1 to 65535")
        is_scaled = found[1] in b"23" and most < _FULL[0]
        return Header(encoded, 0 if is_scaled else most)
    return Header(encoded)


def _tiff(encoded: bytes) -> Header:
    try:
        tags = _tags(encoded)
    except struct.error:
        raise ValueError("it is a TIFF that was cut short, or is damaged") from None
    for height, width in ((_HEIGHT, _WIDTH), (_TILE_HEIGHT, _TILE_WIDTH)):
        checked(tags.get(height, (0,))[0], tags.get(width, (0,))[0])
    if tags.get(_COLOURS, (0,))[0] == _CIELAB:
        raise ValueError("a TIFF of CIELAB colours is not read: write it as RGB, or pass decode=")
    extra, at, nbytes = tags.get(_EXTRA_SAMPLES, (_UNSPECIFIED, 0, 0))
    if extra == _APART:
        return Header(encoded[:at] + bytes(nbytes) + encoded[at + nbytes :])
    return Header(encoded, has_alpha=extra == _MULTIPLIED, is_multiplied=extra == _MULTIPLIED)


def _tags(encoded: bytes) -> dict[int, tuple[int, ...]]:
    """Return of each number in a TIFF's first directory: its first value, where that lies, and its bytes."""
    order, is_big = _TIFF[encoded[:4]], encoded[2:4].strip(b"\0") == b"+"
    offset, count = ("Q", "Q") if is_big else ("I", "H")
    head = struct.Struct(f"{order}HH{offset}")
    (at,) = struct.unpack_from(order + offset, encoded, 8 if is_big else 4)
    (entries,) = struct.unpack_from(order + count, encoded, at)
    at += struct.calcsize(order + count)
    found: dict[int, tuple[int, ...]] = {}
    for _ in range(entries):
        tag, kind, values = head.unpack_from(encoded, at)
        if code := _TYPES.get(kind):
            nbytes, where = struct.calcsize(code), at + head.size
            if values * nbytes > struct.calcsize(offset):
                (where,) = struct.unpack_from(order + offset, encoded, where)
            found.setdefault(tag, (*struct.unpack_from(order + code, encoded, where), where, nbytes))
        at += head.size + struct.calcsize(offset)
    return found
