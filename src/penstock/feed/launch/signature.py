"""Whether a function can be called without arguments, as ``make_loader`` is."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def missing_arguments(function: Callable[..., Any]) -> str:
    """Return which arguments a function requires, in Python's words; empty if none."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # some built-in callables have none
        return ""
    try:
        signature.bind()
    except TypeError as error:
        return str(error)
    return ""
