"""Torch ``DataLoader``s whose order Penstock cannot take over: their batches, as they come."""

# torch's own annotations leave a loader's samples and settings unknown.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import torch
from torch.utils.data import DataLoader

from penstock.contracts import Cursor, SourceBlock
from penstock.sources.order import digest
from penstock.sources.plain import InOnePass, counted, length
from penstock.sources.seeds import order_seed, seed_process
from penstock.sources.torch.compat import end_workers, without_persistent_workers
from penstock.sources.torch.planned import PlannedLoader, describe_loader
from penstock.sources.torch.sampling import SamplerPasses, canonical, draw, hardly_ends
from penstock.sources.torch.workers import init_fn_of, naming_who_died


class IterableDatasetSource(InOnePass):
    """Feeds a ``DataLoader`` over an ``IterableDataset``.

    It has one segment; a position is reached by loading what lies before it, with
    the random numbers of a whole pass, as what a stream draws may decide its order.
    Cycle 0 runs under ``torch.manual_seed(seed)``, as without Penstock, every other
    under its own seed. Workers end with each cycle, even persistent ones: a worker
    that has drawn in earlier cycles could not be restored after a failover.
    """

    def __init__(self, loader: DataLoader[Any], *, seed: int) -> None:
        self._loader = without_persistent_workers(loader)
        self._loader.worker_init_fn = init_fn_of(loader)
        self._user_state = None if loader.generator is None else loader.generator.get_state()
        self._loader.generator = torch.Generator()
        self._iterator: Any = None
        self._seed = seed
        self.batches = length(loader)
        self.batch_size = loader.batch_size
        self.order = digest(
            "stream",
            type(loader.dataset).__qualname__,
            self.batches,
            loader.batch_size,
            loader.drop_last,
            loader.num_workers,  # each worker gives its own part
            canonical(loader.generator),
            seed,
        )
        self.description = describe_loader(loader)

    def open(self, at: Cursor) -> Iterator[SourceBlock]:
        seed_process(order_seed(self._seed, at.cycle))
        assert self._loader.generator is not None
        if self._user_state is None:
            self._loader.generator.set_state(torch.get_rng_state())
            draw(torch.default_generator)
        else:
            self._loader.generator.set_state(self._user_state)
            for _ in range(at.cycle):
                draw(self._loader.generator)
        self._iterator = iter(self._loader)
        try:
            with naming_who_died(self._iterator):
                yield from counted(self._iterator, at)
        finally:
            end_workers(self._iterator)

    def close(self) -> None:
        end_workers(self._iterator)


class WholeBatchLoader(InOnePass):
    """Feeds a ``DataLoader`` whose map-style dataset gives whole batches (``batch_size=None``), in sampler order.

    It has one segment; a position is reached by loading what lies before it, as
    only a batch shows how many rows it has.
    """

    def __init__(self, loader: DataLoader[Any], *, seed: int) -> None:
        self._passes = SamplerPasses(loader, seed)
        self._planned = PlannedLoader(loader)
        self.anywhere = hardly_ends(loader)
        batches = length(loader)
        self.batches = None if not self.anywhere and self._passes.never_end(batches) else batches
        self.batches = self.batches or self._passes.counted()
        self.order = digest("whole batches", self._passes.order)
        self.description = describe_loader(loader)

    def open(self, at: Cursor) -> Iterator[SourceBlock]:
        beginning = Cursor(at.cycle, 0)
        workers, indices = self._passes.open(beginning)
        with closing(self._planned.load(((index, None) for index in indices), workers, beginning)) as loaded:
            yield from counted((tree for _, tree in loaded), at)

    def close(self) -> None:
        self._planned.close()
