"""A torch ``DataLoader`` under index batches of our own."""

# torch's own annotations leave a loader's samples and settings unknown.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch
from torch.utils.data import DataLoader

from penstock.contracts import SourceBlock
from penstock.memory.slots import Slots
from penstock.sources.collate import CollateIntoRing
from penstock.sources.workers import init_fn_of

IndexBatches = Iterable[tuple[int, list[int]]]
"""(first sample, the indices of a batch), batch after batch."""


class PlannedLoader:
    """A loader's dataset, workers and collation under index batches of our own."""

    def __init__(self, loader: DataLoader[Any], *, draws_globally: bool) -> None:
        self._iterator: Any = None
        self._plan = _Plan()
        self._generator = None if draws_globally else torch.Generator()
        options: dict[str, Any] = {}
        if loader.num_workers:
            options = {
                "prefetch_factor": loader.prefetch_factor,
                "persistent_workers": loader.persistent_workers,
                "multiprocessing_context": loader.multiprocessing_context,
                "timeout": loader.timeout,
            }
        self._loader: DataLoader[Any] = DataLoader(
            loader.dataset,
            batch_sampler=cast(Any, self._plan),
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            worker_init_fn=init_fn_of(loader),
            generator=self._generator,
            **options,
        )

    def open(self, batches: IndexBatches, workers: torch.Generator) -> Iterator[SourceBlock]:
        """Load these index batches; the workers' seed is drawn from ``workers`` first."""
        if self._generator is not None:
            self._generator.set_state(workers.get_state())
        self._plan.begin(batches)
        self._iterator = iterator = iter(self._loader)
        at_rest = False
        try:
            for tree in iterator:
                sample, rows = self._plan.loaded()
                yield SourceBlock(sample, rows, tree)
            at_rest = self._loader.persistent_workers
        except GeneratorExit:
            at_rest = self._loader.persistent_workers and self._finish(iterator)
            raise
        finally:
            if not at_rest:
                end_workers(iterator)
                self._loader._iterator = None  # pyright: ignore[reportPrivateUsage]  # it waits for the dead

    def _finish(self, iterator: Iterator[Any]) -> bool:
        """Let workers end what they have in hand; whether all of them did."""
        try:
            for _ in range(self._plan.end()):
                next(iterator)
        except Exception:  # of a batch that nobody wants any more
            return False
        return True

    def fill(self, slots: Slots) -> int:
        """Have batches written into slots; returns how many are of use: one a batch under way, and the next."""
        self._loader.collate_fn = CollateIntoRing(self._loader.collate_fn, slots)
        return max(1, self._loader.num_workers * (self._loader.prefetch_factor or 1)) + 1

    def close(self) -> None:
        end_workers(self._iterator)


class _Plan:
    """The batch sampler of a planned loader: index batches in order, and what became of them."""

    def __init__(self) -> None:
        self._batches: Iterator[tuple[int, list[int]]] = iter(())
        self._asked: deque[tuple[int, int]] = deque()

    def begin(self, batches: IndexBatches) -> None:
        self._batches = iter(batches)
        self._asked.clear()

    def __iter__(self) -> Iterator[list[int]]:
        while (planned := next(self._batches, None)) is not None:
            sample, batch = planned
            self._asked.append((sample, len(batch)))
            yield batch

    def end(self) -> int:
        """Hand out no more; returns how many batches the workers still have."""
        self._batches = iter(())
        return len(self._asked)

    def loaded(self) -> tuple[int, int]:
        """(first sample, rows) of the batch that the loader has just given; it keeps their order."""
        return self._asked.popleft()


def end_workers(iterator: Any) -> None:
    if hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()


def length(loader: DataLoader[Any]) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


def describe_loader(loader: DataLoader[Any]) -> str:
    try:
        size = f", {len(loader.dataset):,} samples"  # type: ignore[arg-type]
    except TypeError:
        size = ""
    return f"DataLoader({type(loader.dataset).__name__}{size}, {loader.num_workers} workers)"
