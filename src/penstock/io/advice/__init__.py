"""Which mechanism reads from storage best on this machine, from measurements."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.io.advice.advice import Advice as Advice
    from penstock.io.advice.advice import advise as advise
    from penstock.io.advice.reader_choice import choose_reader as choose_reader
    from penstock.io.advice.requirement import Requirement as Requirement

_HOMES = {"Advice": "advice", "Requirement": "requirement", "advise": "advice", "choose_reader": "reader_choice"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock.io.advice' has no attribute {name!r}")
    return getattr(import_module(f"penstock.io.advice.{_HOMES[name]}"), name)
