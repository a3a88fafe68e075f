"""What tests give as ``decode``, in a file of its own: each worker imports it, and should import no more."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np


def doubled(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "pair": np.array([row["half"], 2 * row["half"]])}


def worded(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "text": "ü" * int(row["id"])}


def fails(row: dict[str, Any]) -> dict[str, Any]:
    if row["id"] == 13:
        raise KeyError("thirteen")
    return row


def at_13(value: Any, usual: Any = 1) -> Any:
    """A decoder whose result for row 13 has another value."""
    return AtThirteen(value, usual)


class AtThirteen:
    def __init__(self, value: Any, usual: Any) -> None:
        self.value, self.usual = value, usual

    def __call__(self, row: dict[str, Any]) -> Any:
        return {"id": row["id"], "x": self.value if row["id"] == 13 else self.usual}


def other_keys(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], **({"more": 1} if row["id"] == 13 else {})}


def no_dict(row: dict[str, Any]) -> Any:
    return [1] if row["id"] == 13 else row


def not_the_first(row: dict[str, Any]) -> dict[str, Any]:
    return {"inverse": 1 / int(row["id"])}


def never(row: dict[str, Any]) -> dict[str, Any]:
    raise RuntimeError("never")


def sized(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "list": np.arange(int(row["id"]) % 4), "text": "ü" * int(row["id"]), "raw": b"\0"}


def dies(row: dict[str, Any]) -> dict[str, Any]:
    if row["id"] == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    return row
