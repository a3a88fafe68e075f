"""Which decoder a worker uses: the fastest that is installed, or the one that is named."""

from __future__ import annotations

import os
from collections.abc import Callable

from penstock.contracts import Decoder
from penstock.errors import BadSetting
from penstock.sources.images.nvimagecodec import NvImageCodecDecoder, nvimagecodec_version
from penstock.sources.images.turbo import TurboDecoder, turbo_library
from penstock.sources.images.whole import WholeDecoder

DECODER = "PENSTOCK_DECODER"
"""Names one of the decoders, to be used in place of the fastest."""


def decoder() -> Decoder:
    """Make the fastest decoder that this machine has: by regions of images, or of whole images.

    Raises:
        BadSetting: ``PENSTOCK_DECODER`` names none that is installed, or ``PENSTOCK_TURBOJPEG`` no such library.
    """
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
