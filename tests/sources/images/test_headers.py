"""Images that OpenCV takes for others come as Pillow gives them, or are refused by name; none is a bomb."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, features

from penstock.sources.images.decoders import whole_image

Y, X = np.mgrid[:20, :30]
RGB = np.stack([X * 8, Y * 12, (X + Y) * 5], -1).astype(np.uint8)
ALPHA = (X * 8 + 7).astype(np.uint8)
RGBA = np.dstack([RGB, ALPHA])
needs_avif = pytest.mark.skipif(not features.check("avif"), reason="Pillow has no AVIF")


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def by_pillow(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


def netpbm(kind: int, most: int, pixels: np.ndarray) -> bytes:
    head = f"P{kind}\n# a comment 9 9 9\n{pixels.shape[1]} {pixels.shape[0]}\n{most}\n".encode()
    if kind in (2, 3):
        return head + " ".join(map(str, pixels.ravel())).encode() + b"\n"
    return head + pixels.astype(">u2" if most > 255 else "u1").tobytes()


@pytest.mark.parametrize("kind", [2, 3, 5, 6])
@pytest.mark.parametrize("most", [1, 15, 100, 254, 255, 256, 1023, 4095, 65534, 65535])
def test_netpbm_of_any_maxval_is_as_bright_as_it_says(kind, most):
    pixels = np.rint((RGB if kind in (3, 6) else RGB[..., :1]) / 255 * most).astype(int)
    found = whole_image(netpbm(kind, most, pixels))
    assert found.dtype == np.uint8 and found.shape == RGB.shape
    assert np.abs(found - pixels * 255 / most).max() <= 1


@pytest.mark.parametrize("options", [{}, {"compression": "tiff_lzw"}, {"compression": "jpeg"}, {"big_tiff": True}])
def test_colours_of_a_tiff_are_not_multiplied_by_its_alpha(options):
    data = saved(Image.fromarray(RGBA), "TIFF", **options)
    assert np.abs(whole_image(data) - by_pillow(data)).max() <= 1
    deep = tiff(16, 4, (RGBA.astype(np.uint16) * 257).tobytes(), extra=2)
    assert np.array_equal(whole_image(deep), RGB)


@pytest.mark.parametrize("order", ["<", ">"])
def test_colours_of_a_tiff_that_were_multiplied_by_alpha_are_divided_by_it(order):
    multiplied = np.dstack([(RGB * (ALPHA[..., None] / 255)).round(), ALPHA]).astype(np.uint8)
    data = tiff(8, 4, multiplied.tobytes(), extra=1, order=order)
    assert np.array_equal(whole_image(data), by_pillow(data))
    deep = tiff(16, 4, (multiplied.astype(order + "u2") * 257).tobytes(), extra=1, order=order)
    assert np.array_equal(whole_image(deep), by_pillow(data))
    opaque = tiff(8, 4, np.dstack([RGB, ALPHA * 0 + 255]).astype(np.uint8).tobytes(), extra=1, order=order)
    assert np.array_equal(whole_image(opaque), RGB)


@needs_avif
def test_colours_of_an_avif_are_not_multiplied_by_its_alpha():
    data = saved(Image.fromarray(RGBA), "AVIF", quality=100, subsampling="4:4:4")
    assert np.abs(whole_image(data) - by_pillow(data)).max() <= 2


def test_what_comes_right_without_a_look_at_its_header_still_does():
    for mode in ("1", "L", "LA", "P", "RGB", "RGBX", "CMYK"):
        image = Image.fromarray(RGBA, "RGBX") if mode == "RGBX" else Image.fromarray(RGB).convert(mode)
        for options in ({}, {"compression": "tiff_lzw"}, {"big_tiff": True}):
            data = saved(image, "TIFF", **options)
            assert np.abs(whole_image(data) - by_pillow(data)).max() <= 1, (mode, options)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (lambda: saved(Image.merge("LAB", Image.fromarray(RGB).split()), "TIFF"), "CIELAB colours is not read"),
        (lambda: saved(Image.merge("LAB", Image.fromarray(RGB).split()), "TIFF", big_tiff=True), "CIELAB colours"),
        (lambda: tiff(16, 3, RGB.astype(np.uint16).tobytes(), colours=8), "CIELAB colours"),
        (lambda: tiff(8, 2, RGBA[..., 2:].tobytes(), colours=1, extra=1), "its kind of alpha is not read"),
        (lambda: pam(100), "a PAM of MAXVAL 100 is not read"),
        (lambda: pam(1), "a PAM of MAXVAL 1 is not read"),
        (lambda: pam(1023), "a PAM of MAXVAL 1023 is not read"),
        (lambda: netpbm(5, 70_000, RGB[..., 0]), "its maxval is 70000, which is none from 1 to 65535"),
        (lambda: netpbm(6, 0, RGB), "its maxval is 0"),
        (lambda: saved(Image.fromarray(RGB), "TIFF")[:9], "a TIFF that was cut short, or is damaged"),
        (lambda: b"MM\0*" + b"\xff" * 60, "a TIFF that was cut short"),
    ],
)
def test_what_would_come_wrong_is_refused_by_name(data, why):
    with pytest.raises(ValueError, match=why):
        whole_image(data())


def pam(most: int) -> bytes:
    head = f"P7\nWIDTH 30\nHEIGHT 20\nDEPTH 3\nMAXVAL {most}\nTUPLTYPE RGB\nENDHDR\n".encode()
    return head + np.minimum(RGB.astype(int), most).astype(">u2" if most > 255 else "u1").tobytes()


def tiff(bits: int, samples: int, data: bytes, colours: int = 2, extra: int | None = None, **more: Any) -> bytes:
    """A TIFF of one strip, of 30 x 20 pixels unless ``size`` says otherwise; with a ``tile`` of that side."""
    (width, height), order, tile = more.get("size", (30, 20)), more.get("order", "<"), more.get("tile")
    tags: dict[int, list[int]] = {256: [width], 257: [height], 258: [bits] * samples, 259: [1], 262: [colours]}
    tags |= {277: [samples], **({} if extra is None else {338: [extra]})}
    tags |= (
        {322: [tile], 323: [tile], 324: [8], 325: [len(data)]}
        if tile
        else {273: [8], 278: [height], 279: [len(data)]}
    )
    at = 8 + len(data) + len(data) % 2
    entries, behind = b"", b""
    for tag, values in sorted(tags.items()):
        kind = 3 if tag in (258, 338) else 4
        raw = struct.pack(f"{order}{len(values)}{'H' if kind == 3 else 'I'}", *values)
        if len(raw) > 4:
            where, behind = at + 2 + 12 * len(tags) + 4 + len(behind), behind + raw
            raw = struct.pack(f"{order}I", where)
        entries += struct.pack(f"{order}HHI", tag, kind, len(values)) + raw.ljust(4, b"\0")
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", at)
    count = struct.pack(f"{order}H", len(tags))
    return head + data + b"\0" * (len(data) % 2) + count + entries + bytes(4) + behind


def bombs() -> dict[str, bytes]:
    """Small files that say that they have 900 million pixels, or 268, by name."""
    small, lossless = Image.fromarray(RGB), bytearray(saved(Image.fromarray(RGB), "WEBP", lossless=True))
    lossless[21:25] = (lossless[24] >> 4 << 28 | 16382 << 14 | 16382).to_bytes(4, "little")
    found = {
        "strips.tif": tiff(8, 3, bytes(300), size=(30_000, 30_000)),
        "tiles.tif": tiff(8, 3, bytes(300), tile=16_384),
        "lossless.webp": bytes(lossless),
        "canvas.webp": b"RIFF" + struct.pack("<I", 22 + 8) + b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4)
        + (30_000 - 1).to_bytes(3, "little") * 2 + bytes(8),
        "x.bmp": saved(small, "BMP").replace(struct.pack("<ii", 30, 20), struct.pack("<ii", 30_000, 30_000), 1),
        "x.ppm": netpbm(6, 255, RGB).replace(b"30 20", b"30000 30000"),
    }  # fmt: skip
    if features.check("avif"):
        at = (whole := saved(small, "AVIF")).index(b"ispe") + 8
        found["x.avif"] = whole[:at] + struct.pack(">II", 16_000, 16_000) + whole[at + 8 :]
    return found


_DECODES = """
import os, sys
from pathlib import Path
from penstock.sources.images import recipe
from penstock.sources.images.decoders import whole_image
print(os.environ.get("OPENCV_IO_MAX_IMAGE_PIXELS"))
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        print(path.name, whole_image(path.read_bytes()).shape)
    except ValueError as error:
        print(path.name, error)
"""


@pytest.mark.parametrize("own", ["", "1000"])
def test_no_image_of_any_format_is_larger_in_memory_than_a_jpeg_may_be(tmp_path: Path, own):
    for name, data in (every := bombs()).items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "good.ppm").write_bytes(netpbm(6, 255, RGB))
    others = {name: value for name, value in os.environ.items() if not name.startswith("OPENCV")}
    environ = others | ({"OPENCV_IO_MAX_IMAGE_PIXELS": own} if own else {})
    command = [sys.executable, "-c", _DECODES, str(tmp_path)]
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    limit, *lines = ran.stdout.splitlines()
    found = dict(line.split(" ", 1) for line in lines)
    assert limit == (own or "None")
    assert found.pop("good.ppm") == "(20, 30, 3)"
    assert {*found} == {*every}
    assert [name for name, why in found.items() if "more than 178,956,970" not in why] == []
