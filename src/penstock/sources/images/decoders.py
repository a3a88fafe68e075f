"""What decodes images: whole by simplejpeg and OpenCV, by regions with nvImageCodec, or the fastest that is here.

Documentation: NVIDIA nvImageCodec 0.9, "Decoding a region of interest" (``CodeStream.get_sub_code_stream``).
"""

# nvImageCodec has no annotations.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingImports=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false, reportAttributeAccessIssue=false

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import simplejpeg  # pyright: ignore[reportMissingTypeStubs]

from penstock.basics.terminal import say
from penstock.contracts import ByteArray, Decoder, Region
from penstock.errors import BadSetting, SourceError
from penstock.sources.images.crops import with_margin
from penstock.sources.images.opencv import MOST_PIXELS, cv2
from penstock.sources.images.turbo import TurboDecoder, turbo_library

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


def checked(height: int, width: int) -> tuple[int, int]:
    """Return a size that an image says it has."""
    if height * width > MOST_PIXELS:
        raise ValueError(f"it says that it has {width:,} x {height:,} pixels, more than {MOST_PIXELS:,}")
    return height, width


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


_CUT_SHORT = "Premature end"
JPEG_END = b"\xff\xd9"
_FLAGS = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION


class WholeDecoder:
    """Decodes a whole JPEG for each region of it."""

    name = f"simplejpeg {simplejpeg.__version__}, whole images"

    def size(self, encoded: bytes) -> tuple[int, int]:
        height, width, *_ = simplejpeg.decode_jpeg_header(encoded)
        return int(height), int(width)

    def decode(self, encoded: bytes, region: Region) -> ByteArray:
        top, left, height, width = region
        return whole_jpeg(encoded)[top : top + height, left : left + width]


def size_of(encoded: bytes) -> tuple[int, int]:
    """Return height and width of an image."""
    if encoded.startswith(b"\xff\xd8"):
        return WholeDecoder().size(encoded)
    height, width, _ = whole_image(encoded).shape
    return height, width


def whole_jpeg(encoded: bytes) -> ByteArray:
    """Decode a JPEG of any kind; damage is an error where an end is missing, or pixels, as with Pillow."""
    try:
        return simplejpeg.decode_jpeg(encoded, "RGB")
    except ValueError as error:
        if _CUT_SHORT in str(error):
            raise
        damage = error
    try:
        # Without an error, memory where nothing was decoded stays as it was.
        height, width = WholeDecoder().size(encoded)
        dark, light = (
            simplejpeg.decode_jpeg(
                encoded, "RGB", strict=False, buffer=np.full((height, width, 3), value, np.uint8)
            )
            for value in (0, 255)
        )
    except ValueError:  # four colours, which OpenCV turns into three
        return whole_image(encoded)
    if not np.array_equal(dark, light):
        raise damage
    return dark


def whole_image(encoded: bytes) -> ByteArray:
    """Decode an image of any format that OpenCV knows; alpha is left out, as by Pillow."""
    encoded, most, has_alpha, is_multiplied = header_of(encoded)
    flags = cv2.IMREAD_UNCHANGED if has_alpha else _FLAGS | (cv2.IMREAD_ANYDEPTH if most else 0)
    try:
        image = cv2.imdecode(np.frombuffer(encoded, np.uint8), flags)
    except cv2.error as error:
        too_large = f"it says that it has more than {MOST_PIXELS:,} pixels" if "IO_MAX" in str(error) else ""
        raise ValueError(too_large or str(error).strip()) from None
    if image is None:  # pyright: ignore[reportUnnecessaryComparison]
        raise ValueError("no image of a known format")
    if most:
        scaled = np.rint(np.arange(2**16) * (255 / most)).clip(max=255).astype(np.uint8)
        return scaled[np.asarray(image, np.uint16)]
    return _without_alpha(image, is_multiplied=is_multiplied) if has_alpha else np.asarray(image, np.uint8)


def _without_alpha(image: Any, *, is_multiplied: bool) -> ByteArray:
    """Return the colours of blue, green, red and alpha."""
    if image.dtype == np.uint16 and is_multiplied:
        image = (image >> 8).astype(np.uint8)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 4:
        raise ValueError("its kind of alpha is not read: write it without, or pass decode=")
    colours = image[..., 2::-1]
    if is_multiplied:
        alpha = image[..., 3:].astype(np.uint32)
        colours = np.where(
            alpha > 0, np.minimum(255 * colours.astype(np.uint32) // np.maximum(alpha, 1), 255), colours
        )
    return np.ascontiguousarray(colours, np.uint8)


_PACKAGES = "nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13"
_VERBOSITY = "PYNVIMGCODEC_VERBOSITY"
_NO_GPU = -99999
_UNIT_PX = {"CSS_444": 8, "CSS_440": 8, "CSS_GRAY": 8, "CSS_422": 16, "CSS_420": 16}
_WIDEST_UNIT_PX = 32


class NvImageCodecDecoder(WholeDecoder):
    """Decodes regions by nvImageCodec."""

    def __init__(self, version: str) -> None:
        self.name = f"nvImageCodec {version}, regions"

    def decode(self, encoded: bytes, region: Region) -> ByteArray:
        if not encoded.endswith(JPEG_END):  # it does not report what was cut short
            return super().decode(encoded, region)
        codec, decoder, how = self._codec
        stream = codec.CodeStream(encoded)
        try:
            if stream.num_channels > 3:
                raise ValueError("its kind of colours is not decoded by regions")
            unit = _UNIT_PX.get(stream.chroma_subsampling.name, _WIDEST_UNIT_PX)
        except RuntimeError as error:
            raise ValueError(str(error)) from None
        wide = with_margin(region, stream.width, unit)
        box = codec.Region(wide.top, wide.left, wide.top + wide.height, wide.left + wide.width)
        with _unheard():  # libjpeg's warnings, which name no file
            image = decoder.decode(stream.get_sub_code_stream(region=box), params=how)
        if image is None:
            raise ValueError("nvImageCodec cannot decode it")
        return np.asarray(image)[:, region.left - wide.left :][:, : region.width]

    @cached_property
    def _codec(self) -> tuple[Any, Any, Any]:
        os.environ.setdefault(_VERBOSITY, "0")
        try:
            with _unheard():  # it names libraries for GPUs that it does not find
                from nvidia import nvimgcodec
        except ImportError as error:
            raise SourceError(
                f"nvImageCodec is installed and cannot be loaded ({error}): uninstall it, or set "
                "PENSTOCK_DECODER=simplejpeg"
            ) from None
        backends = [nvimgcodec.Backend(nvimgcodec.BackendKind.CPU_ONLY)]
        decoder = nvimgcodec.Decoder(device_id=_NO_GPU, max_num_cpu_threads=1, backends=backends)
        return nvimgcodec, decoder, nvimgcodec.DecodeParams(apply_exif_orientation=False)


def nvimagecodec_version() -> str:
    """Return the version of nvImageCodec; empty if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    for package in _PACKAGES:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return ""


@contextmanager
def _stderr_into(file: int) -> Generator[None]:
    """Have what this process writes to stderr go into a file, from C, too."""
    stderr = os.dup(2)
    try:
        os.dup2(file, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


@contextmanager
def _unheard() -> Generator[None]:
    with open(os.devnull, "wb", 0) as nothing, _stderr_into(nothing.fileno()):
        yield


@contextmanager
def named_lines(where: Callable[[], str]) -> Generator[None]:
    """Put the name of what is decoded before the lines that a C library writes to stderr: they have none."""
    with open(os.memfd_create("stderr"), "w+b", 0) as heard:
        try:
            with _stderr_into(heard.fileno()):
                yield
        finally:
            heard.seek(0)
            for line in heard.read().decode(errors="replace").splitlines():
                say(f"{where()}: {line}")


DECODER = "PENSTOCK_DECODER"
"""Names one of the decoders, to be used in place of the fastest."""


def decoder() -> Decoder:
    """Make the fastest decoder that this machine has: by regions of images, or of whole images."""
    named = os.environ.get(DECODER)
    for name, make in _DECODERS.items():
        if named in (None, "", name) and (found := make()) is not None:
            return found
    raise BadSetting(f"{DECODER}={named}: it is not installed, or is none of {', '.join(_DECODERS)}")


def _turbo() -> Decoder | None:
    library = turbo_library()
    return None if library is None else TurboDecoder(library)


def _nvimagecodec() -> Decoder | None:
    version = nvimagecodec_version()
    return NvImageCodecDecoder(version) if version else None


_DECODERS: dict[str, Callable[[], Decoder | None]] = {
    "libjpeg-turbo": _turbo,
    "nvimagecodec": _nvimagecodec,
    "simplejpeg": WholeDecoder,
}
"""By name, the fastest first."""
