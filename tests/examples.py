"""How many examples a property is tried on."""

from __future__ import annotations

from hypothesis import settings


def examples(usual: int) -> int:
    """So many, and twenty times as many under ``--hypothesis-profile soak``."""
    return usual * (20 if settings.get_current_profile_name() == "soak" else 1)
