"""Which decoder a worker uses: the fastest that is installed."""

from __future__ import annotations

from penstock.contracts import Decoder
from penstock.sources.images.turbo import TurboDecoder, turbo_library


def decoder() -> Decoder:
    """Make the fastest decoder that this machine has: by regions of images, or of whole images.

    Raises:
        BadSetting: ``PENSTOCK_TURBOJPEG`` names no such library.
    """
    if (library := turbo_library()) is not None:
        return TurboDecoder(library)
    from penstock.sources.images.whole import WholeDecoder

    return WholeDecoder()
