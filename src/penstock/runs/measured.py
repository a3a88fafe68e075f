"""Which series of a run Penstock measures; the others are what its script logs."""

from __future__ import annotations

_BEGIN = ("proc.", "host.", "disk.", "gpu.", "gpm.", "dcgm.", "energy.", "feed.", "run.", "sampler.")


def is_measured(name: str) -> bool:
    """Return whether Penstock measures the series of this name itself."""
    return name.startswith(_BEGIN)
