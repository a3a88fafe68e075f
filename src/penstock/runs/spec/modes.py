"""Modes: how the runs of a group share the machine."""

from __future__ import annotations

import re

from penstock.errors import BadSetting

MODES = {"alone": "one after the other", "plain": "all at once, taking turns on the GPU"}
"""Modes in which this version can start runs."""

MIG_PROFILE = re.compile(r"\d+c?\.?\d*g\.\d+gb(?:\+[\w.]+)?")
_PLANNABLE = re.compile(rf"alone|plain|mps|mig:{MIG_PROFILE.pattern}(?:,{MIG_PROFILE.pattern})*")


def mode_from(where: str, text: str) -> str:
    """Read a mode that a plan may have, whether or not this version can start runs in it.

    Raises:
        BadSetting: there is no such mode; the message begins with ``where``.
    """
    if not _PLANNABLE.fullmatch(text):
        raise BadSetting(f"{where}: there is no mode {text!r}; {_there_are()}")
    return text


def require_mode(where: str, mode: str) -> None:
    """Refuse a mode in which this version cannot start runs.

    Raises:
        BadSetting: it is such a mode; the message begins with ``where``.
    """
    if mode not in MODES:
        raise BadSetting(f"{where}: runs cannot be started in mode {mode} yet; {_there_are()}")


def _there_are() -> str:
    return "there are " + " and ".join(f"{mode} ({what})" for mode, what in MODES.items())
