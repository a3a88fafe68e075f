"""What the sampling process is told; who tells it need not import what samples."""

from __future__ import annotations

import msgspec


class Begin(msgspec.Struct, tag="begin"):
    """A run begins, or has begun; it is sampled as soon as the store knows its processes.

    Attributes:
        listeners: What is sampled of it; None for all that can run here.
    """

    id: str
    listeners: tuple[str, ...] | None = None


class End(msgspec.Struct, tag="end"):
    """A run has ended."""

    id: str


class Rate(msgspec.Struct, tag="rate"):
    """Ticks per second from now on."""

    hz: float
