"""Runs a torch ``DataLoader`` over index batches that Penstock plans."""

# torch's own annotations leave a loader's samples and settings unknown.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from itertools import chain
from typing import Any

import torch
from torch.utils.data import DataLoader

from penstock.contracts import Cursor, SourceBlock, Tree
from penstock.memory.slots import Slots
from penstock.sources.order import Planned
from penstock.sources.seeds import seed_process
from penstock.sources.torch.collate import CollateIntoRing
from penstock.sources.torch.compat import end_workers, forget_workers
from penstock.sources.torch.workers import init_fn_of, naming_who_died

Steps = Iterable[tuple[Any, Any]]
"""The indices of each batch (a single one for a loader that does not batch; None for one that is not loaded), and
what goes with them."""
Seed = Callable[[Any], int]
"""From what goes with a batch to the seed of what is drawn for it."""
_ANYWHERE = Cursor(-1, 0)


class PlannedLoader:
    """A loader's dataset, workers and collation, run over index batches that Penstock plans.

    What is drawn for a batch never comes again for other samples, in no feeder. Where all of a pass is loaded, a
    draw's place in the pass decides its sample. From the first batch that is not loaded whole on, each
    batch has a seed of its own. Generators that a dataset makes in its workers (from ``torch.initial_seed()``)
    cannot be seeded anew: there the workers are new ones, whose seed comes from the system. Workers persist only
    into passes that go on as theirs began.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._iterator: Any = None
        self._plan = _Plan(in_workers=loader.num_workers > 0)
        self._go_on_at: Cursor | None = None  # where workers that persist may go on
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

    def open(
        self,
        plan: Iterable[Planned],  # what is to be loaded, from ``at`` on
        workers: torch.Generator,  # generator from which the workers' seed is drawn, while all is loaded
        at: Cursor,  # where the pass is opened
        seed: Callable[[Planned], int],  # of the draws of a block that is not loaded whole, or comes after one
    ) -> Iterator[SourceBlock]:
        """Yield the blocks of a plan."""
        plan = iter(plan)
        partial: list[Planned] = []
        whole = _until(lambda each: each.kept is not None, plan, partial)
        if (first := next(whole, None)) is not None:
            yield from self._blocks(chain([first], whole), workers, at)
        if partial:
            yield from self.each(chain(partial, plan), seed)

    def each(self, plan: Iterable[Planned], seed: Callable[[Planned], int]) -> Iterator[SourceBlock]:
        """Yield the blocks of a plan, wherever it begins, each with draws of its own seed."""
        new = torch.Generator().manual_seed(int.from_bytes(os.urandom(7)))
        yield from self._blocks(plan, new, _ANYWHERE, seed)

    def _blocks(
        self, plan: Iterable[Planned], workers: torch.Generator, at: Cursor, seed: Seed | None = None
    ) -> Iterator[SourceBlock]:
        steps = ((each.ids.tolist() or None, each) for each in plan)
        with closing(self.load(steps, workers, at, seed)) as loaded:
            for each, tree in loaded:
                yield each.block(tree)

    def load(
        self, steps: Steps, workers: torch.Generator, at: Cursor, seed: Seed | None = None
    ) -> Generator[tuple[Any, Tree]]:
        """Yield what stands beside each step's indices, and the batch.

        Steps are all of a pass from ``at`` on, or with ``seed`` any. Each step's draws have its ``seed``; None to
        draw on from where the workers, or this process, stand. The seed of new workers is drawn from ``workers``.
        """
        if self._go_on_at != (_ANYWHERE if seed else at):
            self.close()
        self._go_on_at = None
        self._generator.set_state(workers.get_state())
        self._plan.begin(steps, seed)
        self._iterator = iterator = iter(self._loader)
        try:
            with naming_who_died(iterator):
                for tree in iterator:
                    yield from self._plan.passed()
                    yield self._plan.loaded(), tree
                yield from self._plan.passed()
            if self._loader.persistent_workers:
                self._go_on_at = _ANYWHERE if seed else Cursor(at.cycle + 1, 0)
        finally:
            if self._go_on_at is None:
                self.close()

    def fill(self, slots: Slots) -> int:
        """Have batches written into slots; return how many are of use: one per batch under way, and one more."""
        self._loader.collate_fn = CollateIntoRing(self._loader.collate_fn, slots)
        return max(1, self._loader.num_workers * (self._loader.prefetch_factor or 1)) + 1

    def close(self) -> None:
        """End the workers; a pass that is opened later begins with new ones."""
        end_workers(self._iterator)
        forget_workers(self._loader)


class LoadsIntoSlots:
    """A source whose blocks come from a planned loader."""

    _planned: PlannedLoader

    def fill(self, slots: Slots) -> int:
        return self._planned.fill(slots)

    def close(self) -> None:
        self._planned.close()


class _Seeding:
    """Indices that seed the process which unpickles them: a worker does so just before it loads them."""

    def __init__(self, indices: Any, seed: int) -> None:
        self._indices = indices
        self._seed = seed

    def __reduce__(self) -> Any:
        return _seeded, (self._indices, self._seed)


def _seeded(indices: Any, seed: int) -> Any:
    seed_process(seed)
    return indices


def _until(ends: Callable[[Planned], bool], plan: Iterator[Planned], rest: list[Planned]) -> Iterator[Planned]:
    """Yield the steps before the first for which ``ends`` is true; that one goes into ``rest``."""
    for each in plan:
        if ends(each):
            rest.append(each)
            return
        yield each


class _Plan:
    """The batch sampler of a planned loader: gives indices, and remembers what goes with those asked for."""

    def __init__(self, *, in_workers: bool) -> None:
        self._steps: Iterator[tuple[Any, Any]] = iter(())
        self._asked: deque[tuple[Any, Any]] = deque()
        self._seed: Seed | None = None
        self._give = _Seeding if in_workers else _seeded

    def begin(self, steps: Steps, seed: Seed | None) -> None:
        self._steps = iter(steps)
        self._asked.clear()
        self._seed = seed

    def __iter__(self) -> Iterator[Any]:
        for indices, beside in self._steps:
            self._asked.append((indices, beside))
            if indices is not None:
                yield indices if self._seed is None else self._give(indices, self._seed(beside))

    def loaded(self) -> Any:
        """Return what goes with the batch that the loader has just given: it gives them in order."""
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
