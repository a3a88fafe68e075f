"""Runs a torch ``DataLoader`` over index batches that Penstock plans."""

# torch's own annotations leave a loader's samples and settings unknown.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from typing import Any

import torch
from torch.utils.data import DataLoader

from penstock.contracts import SourceBlock, Tree
from penstock.memory.slots import Slots
from penstock.sources.order import Planned
from penstock.sources.torch.collate import CollateIntoRing
from penstock.sources.torch.compat import end_workers, forget_workers
from penstock.sources.torch.workers import init_fn_of, naming_who_died

Steps = Iterable[tuple[Any, Any]]
"""The indices of each batch (a single one for a loader that does not batch; None for one that is not loaded), and
what goes with them."""


class PlannedLoader:
    """A loader's dataset, workers and collation, run over index batches that Penstock plans."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._iterator: Any = None
        self._plan = _Plan()
        self._generator = torch.Generator()
        options: dict[str, Any] = {"batch_sampler": self._plan}
        if loader.batch_sampler is None:
            options = {"sampler": self._plan, "batch_size": None}
        if loader.num_workers:
            options |= {
                "prefetch_factor": loader.prefetch_factor,
                "persistent_workers": loader.persistent_workers,
                "multiprocessing_context": loader.multiprocessing_context,
                "timeout": loader.timeout,
            }
        self._loader: DataLoader[Any] = DataLoader(
            loader.dataset,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            worker_init_fn=init_fn_of(loader),
            generator=self._generator,
            **options,
        )

    def open(self, plan: Iterable[Planned], workers: torch.Generator) -> Iterator[SourceBlock]:
        """Yield the blocks of a plan, loaded in workers whose seed is drawn from ``workers``."""
        steps = ((each.ids.tolist() or None, each) for each in plan)
        with closing(self.load(steps, workers)) as loaded:
            for each, tree in loaded:
                yield each.block(tree)

    def load(self, steps: Steps, workers: torch.Generator) -> Generator[tuple[Any, Tree]]:
        """Yield what stands beside each step's indices, and the batch; see ``open``."""
        self._generator.set_state(workers.get_state())
        self._plan.begin(steps)
        self._iterator = iterator = iter(self._loader)
        at_rest = False
        try:
            with naming_who_died(iterator):
                for tree in iterator:
                    yield from self._plan.passed()
                    yield self._plan.loaded(), tree
                yield from self._plan.passed()
            at_rest = self._loader.persistent_workers
        except GeneratorExit:
            at_rest = self._loader.persistent_workers and self._finish(iterator)
            raise
        finally:
            if not at_rest:
                end_workers(iterator)
                forget_workers(self._loader)

    def _finish(self, iterator: Iterator[Any]) -> bool:
        """Let workers finish their batches; return whether all did."""
        try:
            for _ in range(self._plan.end()):
                next(iterator)
        except Exception:  # whatever a batch raised that nobody wants any more
            return False
        return True

    def fill(self, slots: Slots) -> int:
        """Have batches written into slots; return how many are of use: one per batch under way, and one more."""
        self._loader.collate_fn = CollateIntoRing(self._loader.collate_fn, slots)
        return max(1, self._loader.num_workers * (self._loader.prefetch_factor or 1)) + 1

    def close(self) -> None:
        end_workers(self._iterator)


class _Plan:
    """The batch sampler of a planned loader: gives indices, and remembers what goes with those asked for."""

    def __init__(self) -> None:
        self._steps: Iterator[tuple[Any, Any]] = iter(())
        self._asked: deque[tuple[Any, Any]] = deque()

    def begin(self, steps: Steps) -> None:
        self._steps = iter(steps)
        self._asked.clear()

    def __iter__(self) -> Iterator[Any]:
        for indices, beside in self._steps:
            self._asked.append((indices, beside))
            if indices is not None:
                yield indices

    def end(self) -> int:
        """Give out no more; return how many batches the workers still have."""
        self._steps = iter(())
        return sum(indices is not None for indices, _ in self._asked)

    def loaded(self) -> Any:
        """Return what goes with the batch that the loader, which keeps their order, has just given."""
        return self._asked.popleft()[1]

    def passed(self) -> Iterator[tuple[Any, None]]:
        """Yield what goes with the steps without indices that come next."""
        while self._asked and self._asked[0][0] is None:
            yield self._asked.popleft()[1], None


def describe_loader(loader: DataLoader[Any]) -> str:
    try:
        size = f", {len(loader.dataset):,} samples"  # type: ignore[arg-type]
    except TypeError:
        size = ""
    return f"DataLoader({type(loader.dataset).__name__}{size}, {loader.num_workers} workers)"
