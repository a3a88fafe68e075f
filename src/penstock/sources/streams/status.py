"""How far a stream has been read, as a feed tells it."""

from __future__ import annotations

import msgspec


class StreamReport(msgspec.Struct, frozen=True):
    """How far a stream has been read.

    Attributes:
        lag: Records of the log that have not been read.
        lag_s: Age of the newest record that has been read, in seconds; None where nobody knows.
        partitions: Partitions, or files that may still grow.
        partition: What the log calls one of them.
        gathered: Records of the cycle that is being put together.
        cycle: Records of a full one.
        lost: Records (of a folder, files) that were gone and skipped.
        bad: Records that could not be decoded and were skipped.
        trouble: Why nothing comes at the moment; empty if nothing is known.
    """

    lag: int
    lag_s: float | None
    partitions: int
    partition: str
    gathered: int
    cycle: int
    lost: int
    bad: int
    trouble: str = ""
