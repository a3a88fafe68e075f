"""How samples become blocks, as ``RecordSource`` is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from penstock.sources.rows.leaves import Ragged


class RowSettings(NamedTuple):
    """Arguments of ``RecordSource`` that all formats share."""

    decode: Callable[[dict[str, Any]], dict[str, Any]] | None
    ragged: Ragged
    on_bad: Literal["fail", "skip"]
    shuffle_bytes: int
    workers: int
    batch_size: int
    segments: int | None
    seed: int
    shuffle: bool
