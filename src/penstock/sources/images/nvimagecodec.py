"""nvImageCodec, asked for a region of an image, on the CPU alone.

Documentation: NVIDIA nvImageCodec 0.9, "Decoding a region of interest" (``CodeStream.get_sub_code_stream``).
"""

# The package has no annotations.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingImports=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false, reportAttributeAccessIssue=false

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from penstock.contracts import ByteArray, Region
from penstock.errors import SourceError
from penstock.sources.images.turbo import with_margin
from penstock.sources.images.whole import JPEG_END, WholeDecoder

_PACKAGES = "nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13"
_VERBOSITY = "PYNVIMGCODEC_VERBOSITY"
_NO_GPU = -99999
_UNIT_PX = {"CSS_444": 8, "CSS_440": 8, "CSS_GRAY": 8, "CSS_422": 16, "CSS_420": 16}
_WIDEST_UNIT_PX = 32


class NvImageCodecDecoder:
    """Decodes regions by nvImageCodec.

    Args:
        version: Its version.
    """

    def __init__(self, version: str) -> None:
        self.name = f"nvImageCodec {version}, regions"
        self._whole = WholeDecoder()

    def size(self, encoded: bytes) -> tuple[int, int]:
        return self._whole.size(encoded)

    def decode(self, encoded: bytes, region: Region) -> ByteArray:
        if not encoded.endswith(JPEG_END):  # it does not tell what was cut short
            return self._whole.decode(encoded, region)
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
        with _quietly():  # libjpeg's warnings, which name no file
            image = decoder.decode(stream.get_sub_code_stream(region=box), params=how)
        if image is None:
            raise ValueError("nvImageCodec cannot decode it")
        return np.asarray(image)[:, region.left - wide.left :][:, : region.width]

    @cached_property
    def _codec(self) -> tuple[Any, Any, Any]:
        os.environ.setdefault(_VERBOSITY, "0")
        try:
            with _quietly():  # it names libraries for GPUs that it does not find
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
    for package in _PACKAGES:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return ""


@contextmanager
def _quietly() -> Generator[None]:
    """Write nothing to stderr, not from C either."""
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)
