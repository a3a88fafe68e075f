"""Images: which part of one is wanted, and what decodes it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from penstock.contracts.arrays import ByteArray


class Region(NamedTuple):
    """A part of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


class Decoder(Protocol):
    """Decodes JPEGs; equal bytes and regions give equal pixels from every decoder. Only one thread uses it."""

    @property
    def name(self) -> str:
        """What decodes, with its version, for a person."""
        ...

    def size(self, encoded: bytes) -> tuple[int, int]:
        """Return height and width, which the header says.

        Raises:
            ValueError: it is no JPEG that can be decoded.
        """
        ...

    def decode(self, encoded: bytes, region: Region) -> ByteArray:
        """Return a region's pixels, rows x columns x RGB, which may be reused by the next call.

        Raises:
            ValueError: it cannot be decoded.
        """
        ...
