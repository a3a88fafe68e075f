"""How tests read feeds: a loader's samples by their numbers, and several trainers at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def ids_of(batches: Iterable[Any]) -> list[int]:
    """The samples of these batches, in order."""
    return [int(i) for batch in batches for i in batch["id"]]


def at_once(call: Callable[[int], T], times: int) -> list[T]:
    """What a function returns for each of 0 to ``times``, each called in a thread of its own."""
    with ThreadPoolExecutor(times) as threads:
        return list(threads.map(call, range(times)))
