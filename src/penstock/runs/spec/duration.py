"""Durations as people write them."""

from __future__ import annotations

import re

from penstock.errors import BadSetting

_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_from(what: str, text: str) -> float:
    """Read seconds from ``90``, ``90s``, ``1.5h``, ``2d``.

    Raises:
        BadSetting: it is no duration above 0; the message begins with ``what``.
    """
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([smhd]?)\s*", text)
    seconds = float(found[1]) * _UNITS_S[found[2]] if found else 0.0
    if not 0 < seconds < 1e10:
        raise BadSetting(f"{what} must be a time above 0, such as 90s, 30m, 2h or 1d, not {text!r}")
    return seconds
