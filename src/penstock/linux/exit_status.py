"""Describes how a process ended."""

from __future__ import annotations

import signal


def in_words(status: int) -> str:
    """Describe an exit status other than 0, as ``subprocess`` gives it."""
    return f"died of {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
