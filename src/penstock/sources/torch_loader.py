"""A torch ``DataLoader`` as a source. Over a plain map-style dataset Penstock takes the order over."""

# torch's own annotations leave a loader's samples and settings unknown.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from penstock.contracts import Cursor, SourceBlock
from penstock.errors import SourceError
from penstock.memory.slots import Slots
from penstock.sources.order import Order
from penstock.sources.planned import IndexBatches, PlannedLoader, describe_loader, length
from penstock.sources.torch_stream import StreamLoader


class SeekableLoader:
    """A ``DataLoader`` over a map-style dataset, in its own order or shuffled, open at any position.

    With one segment it gives, cycle by cycle, the batches that
    ``torch.manual_seed(seed)`` and then one epoch after another of the loader
    alone would give: the order is drawn as ``RandomSampler`` draws it, and
    workers are seeded as the loader seeds them. A dataset that draws random
    numbers in the main process (``num_workers=0``) moves the loader's own seed
    from epoch to epoch, which a source that opens anywhere cannot follow:
    there only the first cycle is the same.

    Args:
        loader: Worker settings, ``collate_fn`` and ``worker_init_fn`` are kept.
        segments: Parts of a cycle at which a trainer may join.
        seed: Of the order and of the workers.
        in_order: Do not shuffle, whatever the loader says.
    """

    seekable = True

    def __init__(self, loader: DataLoader[Any], *, segments: int, seed: int, in_order: bool = False) -> None:
        self._shuffle = isinstance(loader.sampler, RandomSampler) and not in_order
        self._dataset_size = len(loader.dataset)  # type: ignore[arg-type]
        assert loader.batch_size is not None
        self._order = Order(
            self._dataset_size,
            loader.batch_size,
            segments,
            seed,
            shuffle=self._shuffle,
            drop_last=loader.drop_last,
        )
        self.samples = self._order.samples
        self.batches = self._order.batches
        self.batch_size = loader.batch_size
        self.segment_starts = self._order.segment_starts
        self.description = describe_loader(loader)
        self._as_torch = self._shuffle and len(self.segment_starts) == 1
        self._seed = seed
        self._user_state = loader.generator.get_state() if loader.generator is not None else None
        self._persistent = loader.persistent_workers
        self._draws_globally = loader.num_workers == 0 and self._user_state is None
        self._planned = PlannedLoader(loader, draws_globally=self._draws_globally)

    def open(self, at: Cursor) -> Iterator[SourceBlock]:
        workers = self._workers_generator(at.cycle)
        if self._draws_globally:
            # The loader draws its workers' seed from the global generator, and then
            # the order comes from there too, as it would alone.
            torch.default_generator.set_state(workers.get_state())
            order = torch.default_generator
        else:
            torch.manual_seed(self._seed + at.cycle)  # for a dataset that draws in this process
            order = torch.Generator()
            order.set_state(workers.get_state())
            _draw(order)
            if self._persistent and at.cycle:
                order = self._order_generator(at.cycle)
        batches = self._as_torch_draws(order, at) if self._as_torch else self._own(at)
        return self._planned.open(batches, workers)

    def fill(self, slots: Slots) -> int:
        return self._planned.fill(slots)

    def close(self) -> None:
        self._planned.close()

    def _workers_generator(self, cycle: int) -> torch.Generator:
        """A generator that draws the workers' seed next, as the loader's own would in this cycle."""
        return self._generator(0 if self._persistent else cycle)

    def _order_generator(self, cycle: int) -> torch.Generator:
        """A generator that draws the order next, where workers persist and are seeded only once."""
        generator = self._generator(0)
        _draw(generator)
        for _ in range(cycle):
            self._draw_order(generator)
        return generator

    def _generator(self, cycle: int) -> torch.Generator:
        generator = torch.Generator()
        if self._user_state is None:
            generator.manual_seed(self._seed)
        else:
            generator.set_state(self._user_state)
        for _ in range(cycle):
            _draw(generator)
            self._draw_order(generator)
        return generator

    def _draw_order(self, generator: torch.Generator) -> torch.Generator:
        """Draw what a ``RandomSampler`` draws from the loader's generator; return that of its order."""
        if not self._shuffle:
            return generator
        if self._user_state is None:
            return torch.Generator().manual_seed(_draw(generator))
        before = torch.Generator()
        before.set_state(generator.get_state())
        for _ in range(2):  # RandomSampler draws a whole order more when it ends, and uses none of it
            torch.randperm(self._dataset_size, generator=generator)
        return before

    def _as_torch_draws(self, generator: torch.Generator, at: Cursor) -> IndexBatches:
        indices = torch.randperm(self._dataset_size, generator=self._draw_order(generator)).tolist()
        size = self.batch_size
        for start in range(at.sample // size * size, self.samples, size):
            yield start, indices[start : min(start + size, self.samples)]

    def _own(self, at: Cursor) -> IndexBatches:
        for sample, indices in self._order.blocks(at):
            yield sample, indices.tolist()


class SampledLoader:
    """A ``DataLoader`` with a sampler or batch sampler of its own, which keeps the order.

    One segment; a position is reached by skipping indices, not by loading.
    Cycle c runs under ``torch.manual_seed(seed + c)``, and the sampler's
    ``set_epoch(c)`` is called where it has one.
    """

    seekable = False
    samples = None
    segment_starts = (0,)

    def __init__(self, loader: DataLoader[Any], *, seed: int) -> None:
        self._loader = loader
        self._seed = seed
        self.batches = length(loader)
        self.batch_size = loader.batch_size
        self.description = describe_loader(loader)
        self._planned = PlannedLoader(loader, draws_globally=True)

    def open(self, at: Cursor) -> Iterator[SourceBlock]:
        torch.manual_seed(self._seed + at.cycle)
        batch_sampler = self._loader.batch_sampler
        for sampler in (self._loader.sampler, batch_sampler, getattr(batch_sampler, "sampler", None)):
            if hasattr(sampler, "set_epoch"):
                cast(Any, sampler).set_epoch(at.cycle)
        return self._planned.open(self._indices(at), torch.default_generator)

    def fill(self, slots: Slots) -> int:
        return self._planned.fill(slots)

    def close(self) -> None:
        self._planned.close()

    def _indices(self, at: Cursor) -> IndexBatches:
        sample = 0
        for batch in cast("Iterable[list[int]]", self._loader.batch_sampler):
            if sample + len(batch) > at.sample:
                yield sample, batch
            sample += len(batch)
        if sample == 0:
            raise SourceError(
                f"the sampler gave no index in cycle {at.cycle}: it is empty, or can be iterated only once"
            )


def adapt_loader(
    loader: DataLoader[Any], *, segments: int, seed: int, in_order: bool = False
) -> SeekableLoader | SampledLoader | StreamLoader:
    """The source that fits this loader's kind."""
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        return StreamLoader(loader, seed=seed)
    sampler = loader.sampler
    plain = type(loader.batch_sampler) is BatchSampler and (
        type(sampler) is SequentialSampler
        or (
            type(sampler) is RandomSampler
            and not sampler.replacement
            and sampler.num_samples == len(loader.dataset)  # type: ignore[arg-type]
            and sampler.generator is loader.generator
        )
    )
    if plain and loader.batch_size is not None:
        return SeekableLoader(loader, segments=segments, seed=seed, in_order=in_order)
    return SampledLoader(loader, seed=seed)


def _draw(generator: torch.Generator) -> int:
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
