"""Numbers of bytes and times as people write and read them, and checks of settings."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from contextlib import suppress
from operator import index
from typing import SupportsIndex

from penstock.errors import BadSetting

_UNITS = {"": 1, "B": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("KMGT", 1)
    for suffix, base in (("B", 1000), ("IB", 1024), ("", 1024))
}

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_EXAMPLES = {"sample": "110KB", "bs": "64KiB", "dataset": "100GB", "rate": "2GB"}
"""Example of each setting; 512MiB for others."""


def size_from(name: str, size: int | str) -> int:
    """Read bytes from ``2048``, ``"110KB"``, ``"512MiB"`` or ``"2 GB"``; ``"4k"`` is 4 KiB, as in fio."""
    if isinstance(size, str):
        match = re.fullmatch(r"\s*([0-9.]+)\s*([KMGT]?I?B?)\s*", size, re.IGNORECASE)
        unit = _UNITS.get(match[2].upper()) if match else None
        try:
            nbytes = int(float(match[1]) * unit) if match and unit else 0
        except (ValueError, OverflowError):  # "1.2.3", or 400 digits
            nbytes = 0
    else:
        try:
            nbytes = 0 if isinstance(size, bool) else operator.index(size)
        except TypeError:
            nbytes = 0
    if nbytes <= 0:
        example = _EXAMPLES.get(name.removeprefix("--"), "512MiB")
        raise BadSetting(f'{name}={size!r}: give bytes as a number above 0 or as text, such as "{example}"')
    return nbytes


def seconds_from(setting: str, text: str) -> float:
    """Read a time such as ``90``, ``"10m"`` or ``"1h30m"``, in seconds."""
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)\s*([smhd]?)\s*", text)
    whole = re.fullmatch(r"\s*(?:[0-9]+(?:\.[0-9]+)?\s*[smhd]\s*)+|\s*[0-9]+(?:\.[0-9]+)?\s*", text)
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts) if whole else 0.0
    if seconds <= 0:
        raise BadSetting(f'{setting}={text!r}: give a time above 0, such as "90s", "10m" or "1h30m"')
    return seconds


def whole_number(name: str, value: SupportsIndex, least: int, most: int = 2**63 - 1) -> int:
    """Check that a setting is a whole number, of Python's or NumPy's, within a range."""
    with suppress(TypeError):  # a user may give anything
        if not isinstance(value, bool) and least <= (number := index(value)) <= most:
            return number
    raise BadSetting(f"{name}={value!r}: it must be a whole number between {least:,} and {most:,}")


def check_one_of(name: str, value: object, known: Iterable[str]) -> None:
    """Check that a setting is one of the words that are known."""
    if value not in (words := tuple(known)):
        raise BadSetting(f"{name}={value!r}: it must be one of {', '.join(words)}")


def random_seed(value: SupportsIndex) -> int:
    """Check that ``seed=`` is a whole number that generators take."""
    return whole_number("seed", value, -(2**63), 2**64 - 1)


def size_text(nbytes: float) -> str:
    """Format bytes for a person: ``"64 KiB"``, or ``"110 KB"`` where that is rounder."""
    for base, names in ((1024, ("KiB", "MiB", "GiB", "TiB")), (1000, ("KB", "MB", "GB", "TB"))):
        power = next((p for p in (4, 3, 2, 1) if nbytes >= base**p), 0)
        if power and (base == 1000 or nbytes * 4 % base**power == 0):
            return f"{nbytes / base**power:,.4g} {names[power - 1]}"
    return f"{nbytes:,.0f} bytes"
