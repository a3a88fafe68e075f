"""Whether a function can be called as a feed's maker is: without arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def missing_arguments(function: Callable[..., Any]) -> str:
    """What a function needs that nobody will give it, in Python's words; empty if it needs nothing."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # some built-in callables have none
        return ""
    try:
        signature.bind()
    except TypeError as error:
        return str(error)
    return ""
