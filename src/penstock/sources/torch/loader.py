"""Torch ``DataLoader``s as sources. Over a plain map-style dataset Penstock takes over the order."""

# torch's own annotations leave a loader's samples and settings unknown.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from penstock.contracts import NO_JOINTS, Cursor, Ids, Joints, SourceBlock, Wanted
from penstock.errors import BadSetting, SourceError
from penstock.sources.order import Ordered, Planned, digest, planned
from penstock.sources.plain import InOnePass, length
from penstock.sources.seeds import data_seed, rows_seed, seed_process
from penstock.sources.torch.compat import loader_with_workers
from penstock.sources.torch.iterable import IterableDatasetSource, WholeBatchLoader
from penstock.sources.torch.planned import LoadsIntoSlots, PlannedLoader, describe_loader
from penstock.sources.torch.sampling import (
    SamplerPasses,
    canonical,
    draw,
    draws_with_replacement,
    hardly_ends,
    samplers_of,
    whole_batch_sampler,
)
from penstock.sources.torch.workers import begin_worker

_REPLICAS = ("num_replicas", "num_processes", "world_size", "_world_size", "data_parallel_size")


class MapStyleSource(LoadsIntoSlots, Ordered):
    """Feeds a ``DataLoader`` over a map-style dataset, in its order or shuffled; opens at any position.

    Without joints it gives, cycle by cycle, the batches that the loader alone
    would give epoch by epoch after ``torch.manual_seed(seed)``: the order is drawn
    as ``RandomSampler`` draws it, and workers are seeded as the loader seeds them.
    Two things differ, and are seeded by the position opened: a cycle opened in its
    middle, whose rows must not get the draws of its first ones; and, after the
    first cycle, what a dataset draws in the main process (``num_workers=0``). Such
    draws would move the loader's own seed, which a source that opens anywhere
    cannot follow. From where some is left out of a pass, draws are seeded by block.

    ``segments`` is how many parts of a cycle are shuffled each by itself, None for one; with ``in_order`` nothing
    is shuffled, even if the loader does.
    """

    def __init__(
        self, loader: DataLoader[Any], *, segments: int | None, seed: int, in_order: bool = False
    ) -> None:
        self._shuffle = isinstance(loader.sampler, RandomSampler) and not in_order
        self._dataset_size = len(loader.dataset)  # type: ignore[arg-type]
        assert loader.batch_size is not None
        size, drop_last = loader.batch_size, loader.drop_last
        self._visit(self._dataset_size, size, segments, seed, shuffle=self._shuffle, drop_last=drop_last)
        self.description = describe_loader(loader)
        self._seed = seed  # random seed of the order and of the workers
        self._persistent = loader.persistent_workers
        self._owned = loader.generator is not None
        self._begun = False
        start = torch.Generator().manual_seed(seed) if loader.generator is None else loader.generator
        self._drawn = 0, start.get_state()  # a cycle, and the generator's state at its beginning
        self._first = self._drawn
        self._loader = loader  # the loader, whose worker settings, ``collate_fn`` and ``worker_init_fn`` stay
        self._planned = PlannedLoader(loader)
        self.order = digest("map-style", self._order.digest)
        if self._shuffle:
            self.order = digest("as torch", self._order.digest, canonical(loader.generator), self._persistent)
        self.order_by_block = digest("by block", self.order)

    def open(self, at: Cursor, wanted: Wanted | None = None, joints: Joints = NO_JOINTS) -> Iterator[SourceBlock]:
        # The order must not refer to this, which refers to it: workers that persist would live on in the cycle.
        plans = self.plans(at, wanted, joints)
        generator = self._generator(at.cycle)
        workers = _clone(generator)
        self._draw_cycle(generator, at.cycle)
        if self._begun or at != Cursor(0, 0):
            seed_process(data_seed(self._seed, at))
        elif self._owned:
            torch.default_generator.manual_seed(self._seed)
        else:
            torch.default_generator.set_state(generator.get_state())  # as the loader alone would leave it
        if at.sample or (at.cycle and self._persistent):
            workers.manual_seed(data_seed(self._seed, at))
        self._begun = True
        yield from self._planned.open(
            plans,
            workers,
            at,
            partial(self._seed_of, at.cycle),
        )

    def plans(self, at: Cursor, wanted: Wanted | None = None, joints: Joints = NO_JOINTS) -> Iterator[Planned]:
        return planned(self._order.blocks(at, joints, self._order_as_torch), wanted)

    def load(self, plans: Iterator[Planned], cycle: int) -> Iterator[SourceBlock]:
        """Yield the blocks of a plan, each with draws of its own seed, unlike those of the loader alone."""
        return self._planned.each(plans, partial(self._seed_of, cycle))

    def work_here(self) -> None:
        if self._loader.num_workers:
            begin_worker(self._loader)
        self._planned = PlannedLoader(loader_with_workers(self._loader, 0))

    def _seed_of(self, cycle: int, plan: Planned) -> int:
        return rows_seed(self._seed, Cursor(cycle, plan.sample), plan.kept)

    def _generator(self, cycle: int) -> torch.Generator:
        """Return the loader's generator as it would be without Penstock at the beginning of this cycle."""
        known, state = self._drawn if self._drawn[0] <= cycle else self._first
        generator = torch.Generator()
        generator.set_state(state)
        for earlier in range(known, cycle):
            self._draw_cycle(generator, earlier)
        self._drawn = max(self._drawn, (cycle, generator.get_state()), key=lambda drawn: drawn[0])
        return generator

    def _draw_to_order(self, generator: torch.Generator, cycle: int) -> torch.Generator:
        """Draw what a loader draws from its generator before a cycle's order; return the generator of that."""
        if cycle == 0 or not self._persistent:  # else its workers live on, and need no seed
            draw(generator)
        if self._owned or not self._shuffle:
            return generator
        return torch.Generator().manual_seed(draw(generator))

    def _draw_cycle(self, generator: torch.Generator, cycle: int) -> None:
        """Draw what a loader draws from its generator in a cycle."""
        order = self._draw_to_order(generator, cycle)
        if self._shuffle and order is generator:
            for _ in range(2):  # RandomSampler draws one more whole order at its end, and does not use it
                torch.randperm(self._dataset_size, generator=generator)

    def _order_as_torch(self, cycle: int) -> Ids:
        order = self._draw_to_order(self._generator(cycle), cycle)
        return torch.randperm(self._dataset_size, generator=order).numpy()


class SamplerSource(LoadsIntoSlots, InOnePass):
    """Feeds a ``DataLoader`` with its own sampler or batch sampler, in its order.

    It has one segment; a position is reached by skipping indices, not by loading.
    ``SamplerPasses`` gives the order of a cycle, wherever that is opened. What the
    dataset draws is seeded by where it was opened; the first cycle, opened at its
    beginning, runs as without Penstock under ``torch.manual_seed(seed)``.
    Where it draws with replacement, or hardly ends, an epoch is as many draws from any of its blocks on. What a
    sampler that never ends says of its length counts for nothing.
    """

    def __init__(self, loader: DataLoader[Any], *, seed: int) -> None:
        self._passes = SamplerPasses(loader, seed)
        batch_sampler = whole_batch_sampler(loader)
        self.samples = _samples(batch_sampler)
        self.batches = length(batch_sampler)
        self.batch_size = loader.batch_size
        self.drop_last = loader.drop_last
        known = self.samples is not None
        self.anywhere = hardly_ends(loader) or (known and draws_with_replacement(loader))
        if not self.anywhere and self._passes.never_end(self.batches):
            self.samples = self.batches = None
        elif not self.anywhere and self._passes.of_script:
            self.samples = None  # a script reads as many as its sampler gives, whatever that says
        if self.samples is None and self.batches is None:
            self.batches = self._passes.counted()
        self.order = digest("sampler", self._passes.order, loader.batch_size, self.samples)
        self.description = describe_loader(loader)
        self._planned = PlannedLoader(loader)

    def open(self, at: Cursor) -> Iterator[SourceBlock]:
        workers, batches = self._passes.open(at)
        with closing(self._planned.load(self._from(at, batches), workers, at)) as loaded:
            for (sample, rows, ids), tree in loaded:
                yield SourceBlock(sample, rows, tree, ids)

    def _from(
        self, at: Cursor, batches: Iterator[list[int]]
    ) -> Iterator[tuple[list[int], tuple[int, int, Ids | None]]]:
        """Number the samples of a pass, and leave out batches that end at or before ``at.sample``."""
        sample = 0
        for batch in batches:
            if self.samples is not None and sample + len(batch) > self.samples:
                self._refuse_length(at.cycle, sample + len(batch))
            if sample + len(batch) > at.sample:
                yield batch, (sample, len(batch), _ids_of(batch))
            sample += len(batch)
        if self.samples is not None and sample < self.samples:
            self._refuse_length(at.cycle, sample)

    def _refuse_length(self, cycle: int, given: int) -> NoReturn:
        raise SourceError(
            f"the sampler has a length that makes {self.samples:,} samples a cycle, and gave {given:,} in cycle "
            f"{cycle}: let its __len__ return how many indices its __iter__ gives in every pass"
        )


def adapt_loader(
    loader: DataLoader[Any], *, segments: int | None, seed: int, in_order: bool = False
) -> MapStyleSource | SamplerSource | IterableDatasetSource | WholeBatchLoader:
    """Make the source that fits this kind of loader."""
    _check_whole(loader)
    _check_no_policy(loader)
    if isinstance(loader.dataset, IterableDataset):
        return IterableDatasetSource(loader, seed=seed)
    if loader.batch_sampler is None:
        return WholeBatchLoader(loader, seed=seed)
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
        return MapStyleSource(loader, segments=segments, seed=seed, in_order=in_order)
    return SamplerSource(loader, seed=seed)


def _check_whole(loader: DataLoader[Any]) -> None:
    """Refuse a loader that gives one rank's part of the data."""
    for each in [*samplers_of(loader), loader.dataset]:
        for name in _REPLICAS:
            replicas = getattr(each, name, None)
            if isinstance(replicas, int) and replicas > 1:
                raise BadSetting(
                    f"the loader's {type(each).__name__} ({name}={replicas}) gives one rank's part of the data: "
                    "every rank would get that one part from this feed. Give a loader of all the data "
                    "(shuffle=True instead of the sampler), and let each rank attach with "
                    f"shard=(rank, {replicas})"
                )


def _check_no_policy(loader: DataLoader[Any]) -> None:
    """Refuse a loader whose sampler asks a policy, which would hear nothing from the trainers in a feed."""
    for each in samplers_of(loader):
        if policy := getattr(each, "policy_name", None):  # of a SelectionSampler
            raise BadSetting(
                f"the loader's {type(each).__name__} asks a policy ({policy}) what each epoch holds, and in a "
                "feed that hears neither of the trainers' epochs nor of what they report. Give a loader without "
                "the sampler (shuffle=True), and the policy to share or attach: select=policy"
            )


def _samples(batch_sampler: Any) -> int | None:
    """Return the samples of a cycle, if torch's own ``BatchSampler`` cuts up a sampler that has a length."""
    if type(batch_sampler) is not BatchSampler:
        return None
    samples, size = length(batch_sampler.sampler) or 0, batch_sampler.batch_size
    return (samples // size * size if batch_sampler.drop_last else samples) or None


def _ids_of(batch: Sequence[Any]) -> Ids | None:
    """Return the indices that a sampler gave, where they are numbers."""
    return np.array(batch, np.int64) if all(isinstance(index, (int, np.integer)) for index in batch) else None


def _clone(generator: torch.Generator) -> torch.Generator:
    return torch.Generator().set_state(generator.get_state())
