"""The settings of a feed, read and checked once, compared when a later caller names its own."""

from __future__ import annotations

import mmap
from typing import Any

import msgspec

from penstock.errors import BadSetting
from penstock.sizes import size_from

DEFAULT_WINDOW = "512MiB"
DEFAULT_LINGER_S = 30.0


class Settings(msgspec.Struct, frozen=True):
    """What decides how a feed runs and what its trainers receive.

    Attributes:
        segments: Parts of a cycle at which a trainer may join.
        seed: Of the order, and of the workers.
        window_bytes: Size of the ring, a multiple of the page size.
        epochs: Epochs that each trainer gets; None for a feed without end.
        linger: Seconds that the feeder outlives its last trainer; None for ever.
        stall_timeout: Seconds after which a trainer that holds the feed back is
            evicted; None never.
        batch_granular: Trainers take the source's batches as they are.
        memory: Where the ring lies: "host", or a GPU.
    """

    segments: int = 16
    seed: int = 0
    window_bytes: int = 512 << 20
    epochs: int | None = None
    linger: float | None = None
    stall_timeout: float | None = None
    batch_granular: bool = False
    memory: str = "host"

    def difference(self, asked: dict[str, Any]) -> str:
        """Which of the asked values differ, in words, or an empty text."""
        return ", ".join(
            f"{name}={getattr(self, name)!r} where you asked for {value!r}"
            for name, value in asked.items()
            if getattr(self, name) != value
        )


def checked(
    *,
    segments: int | None = None,
    seed: int | None = None,
    window: int | str | None = None,
    epochs: int | None = None,
    linger: float | None = None,
    stall_timeout: float | None = None,
    batch_granular: bool | None = None,
    memory: str | None = None,
) -> dict[str, Any]:
    """The given settings (those that are not None) under the names that ``Settings`` has.

    Raises:
        BadSetting: a value is out of range.
    """
    given: dict[str, Any] = {
        "segments": segments,
        "seed": seed,
        "window_bytes": None if window is None else bytes_from(window),
        "epochs": epochs,
        "linger": linger,
        "stall_timeout": stall_timeout,
        "batch_granular": batch_granular,
        "memory": memory,
    }
    given = {name: value for name, value in given.items() if value is not None}
    for name, least, most in (("segments", 1, 4096), ("epochs", 1, 10**6), ("linger", 0, 10**9)):
        if name in given and not least <= given[name] <= most:
            raise BadSetting(f"{name}={given[name]!r}: it lies between {least} and {most}")
    if given.get("stall_timeout", 1) <= 0:
        raise BadSetting(f"stall_timeout={stall_timeout!r}: it is a time in seconds, or None for no limit")
    return given


def bytes_from(window: int | str) -> int:
    """A window from ``2048``, ``"512MiB"`` or ``"2 GB"``: bytes, rounded up to whole pages."""
    return -(-size_from("window", window) // mmap.PAGESIZE) * mmap.PAGESIZE
