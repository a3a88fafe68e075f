"""Readers: mechanisms that move bytes from storage into memory; and which of them to use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.io.advice import Advice as Advice
    from penstock.io.advice import advise as advise
    from penstock.io.auto import choose_reader as choose_reader
    from penstock.io.need import Need as Need

_HOMES = {"Advice": "advice", "Need": "need", "advise": "advice", "choose_reader": "auto"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock.io' has no attribute {name!r}")
    return getattr(import_module(f"penstock.io.{_HOMES[name]}"), name)
