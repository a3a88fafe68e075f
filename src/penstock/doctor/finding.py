"""One finding of ``penstock doctor``."""

from __future__ import annotations

from typing import Literal

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """One thing that was tried: whether it works, what was seen, and what to do if it does not."""

    what: str
    verdict: Literal["works", "limited", "fails"]
    found: str
    remedy: str = ""
