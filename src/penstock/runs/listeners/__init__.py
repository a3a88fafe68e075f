"""Listeners, which sample what a run and its machine do, each into series of its own."""

from __future__ import annotations

_BEGIN = ("proc.", "host.", "disk.", "gpu.", "gpm.", "dcgm.", "energy.", "feed.", "run.", "sampler.")


def is_measured(name: str) -> bool:
    """Return whether Penstock measures the series of this name itself."""
    return name.startswith(_BEGIN)
