"""The order that a torch loader's own samplers give; a cycle's order does not depend on earlier draws."""

# torch's own annotations leave a loader's samples and settings unknown.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from copy import deepcopy
from itertools import islice
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from penstock.contracts import Cursor
from penstock.errors import SourceError
from penstock.fingerprint.objects import small_state
from penstock.sources.order import digest
from penstock.sources.plain import length
from penstock.sources.seeds import SamplersOwn, data_seed, order_seed, seed_process

_TORCHS = (BatchSampler, SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
"""Samplers that draw from global generators only at their first step, and remember nothing."""
_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (list, tuple, set, frozenset, dict, range)
_DATA_NAMES = ("data_source", "dataset")
_HARDLY = 16  # a pass of so many times the data set hardly ends
_COUNTED = 2  # a pass is counted to so many times the data set: samplers that never end are drawn so far
_PROBED = 8
"""Batches that are compared to learn whether two processes draw alike."""


class ToldLoader(DataLoader[Any]):
    """A script's loader in a feeder, whose name counts what the script has told the samplers.

    Each cycle is the pass that they give next: of what a pass changes, only what the name does not count goes on
    to the next (``small_state``).
    """


class SamplerPasses:
    """Passes over the sampler or batch sampler of a loader over no ``IterableDataset``, in any sequence of cycles.

    A copy of the sampler runs under separate global generators, seeded for each
    cycle, and gets the cycle by ``set_epoch``, but in a ``ToldLoader``. What it remembers from pass to
    pass (a generator that it holds, a list that it shuffles in place, a count of
    its passes) is restored by drawing the earlier passes again, without loading.
    """

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        self._seed = seed  # random seed of the feed
        self._persistent = loader.persistent_workers
        sampler = loader.sampler if loader.batch_sampler is None else whole_batch_sampler(loader)
        self._name = type(chain_of(sampler)[-1]).__name__
        self._given = sampler, loader.generator
        self._told = isinstance(loader, ToldLoader)
        not_state = data_of(sampler) if self._told else _not_state(sampler)
        self._shared = {id(thing): thing for thing in [loader.dataset, *not_state]}
        samplers = chain_of(sampler)
        own = [each for each in samplers if type(each) not in (*_TORCHS, *_CONTAINERS)]
        self._of_torch = not own
        self.of_script = bool(own) and self._told
        """Whether it is a ``ToldLoader`` whose samplers are not all torch's own."""
        by_cycle = all(hasattr(each, "set_epoch") and not self._told for each in own)
        holds = loader.generator is not None or any(
            isinstance(value, _GENERATORS) for each in samplers for value in attributes(each).values()
        )
        self._remembers = holds or not by_cycle
        self._most = _COUNTED * (length(loader.dataset) or 0)
        self._running: tuple[Any, torch.Generator | None] = self._given
        self._next: int | None = 0  # the cycle that the running copy gives next; None within a pass
        self._copied = True
        self._begun = False
        self._state = ""  # of a ToldLoader: what the feed's name counts, before the first pass
        self._restart()
        self._set_cycle(0)
        self.order = digest(
            seed,
            *map(_canonical_sampler, chain_of(self._running[0])),
            canonical(loader.generator),
            self._begins_with(),
        )

    def open(self, at: Cursor) -> tuple[torch.Generator, Iterator[Any]]:
        """Begin a pass at its first index; its data are loaded from ``at`` on.

        What the dataset draws in this process is seeded when the first index is
        taken: as without Penstock at the beginning of cycle 0, else by ``at``.

        Returns:
            A generator from which the seed of the loader's workers is drawn next;
            and what the sampler gives: indices, or lists of them.
        """
        changed = self._state != self._counted()
        if self._next != at.cycle or changed:
            if not self._copied and (self._next is None or self._next > at.cycle or changed):
                raise SourceError(
                    f"the sampler ({self._name}) cannot be brought back to cycle {at.cycle}: it holds what cannot "
                    "be copied. Give one that can, such as a class whose __iter__ starts afresh"
                )
            if self._copied:
                self._restart()
            first = cast("int", self._next) if self._remembers and not changed else at.cycle
            for earlier in range(first, at.cycle):
                for _ in self._steps(earlier, *self._begin(earlier)[1:]):
                    pass
                if self._state != self._counted():
                    self._restart()
                    break
        workers, batches, own = self._begin(at.cycle)
        if at.sample or (at.cycle and self._persistent):
            workers.manual_seed(data_seed(self._seed, at))
        return workers, self._seeding(at, self._steps(at.cycle, batches, own), own)

    def _seeding(self, at: Cursor, batches: Iterator[Any], own: SamplersOwn) -> Iterator[Any]:
        as_alone = at == Cursor(0, 0) and not self._begun
        self._begun = True
        if not as_alone:
            seed_process(data_seed(self._seed, at))
        for i, batch in enumerate(batches):
            if i == 0 and as_alone:  # as without Penstock, the dataset draws after the sampler
                torch.default_generator.set_state(own.torch_state)
            yield batch

    def _begins_with(self) -> Any:
        """Return the sampler's first indices; they differ by process if it draws from what cannot be seeded."""
        return self._probed(lambda batches, own: canonical(list(islice(self._steps(0, batches, own), _PROBED))))

    def never_end(self, steps: int | None) -> bool:
        """Whether a pass goes on when the sampler has given twice the steps of its length, if it has one."""
        if steps is None or self._of_torch:
            return False

        def goes_on(batches: Iterator[Any], own: SamplersOwn) -> bool:
            with own:
                return next(islice(batches, 2 * steps, None), None) is not None

        return bool(self._probed(goes_on))

    def counted(self) -> int | None:
        """Return how many steps a pass of a script's own sampler has; None if they are too many, or it is none."""
        if not self.of_script:
            return None

        def count(batches: Iterator[Any], own: SamplersOwn) -> int:
            steps = rows = 0
            with own:
                for batch in batches:
                    steps += 1
                    rows += len(batch) if isinstance(batch, (list, tuple, np.ndarray)) else 1
                    if rows > self._most:
                        return 0
            return steps

        return self._probed(count) or None

    def _probed(self, look: Callable[[Iterator[Any], SamplersOwn], Any]) -> Any:
        """Return what is found in a first pass, which is as if it had not been; None if that cannot be known."""
        if not self._copied:
            return None
        try:
            return look(*self._begin(0)[1:])
        except Exception:  # opening a pass will raise it
            return None
        finally:
            self._restart()

    def _restart(self) -> None:
        """Let the next pass be the sampler's first."""
        try:
            self._running = deepcopy(self._given, dict(self._shared))
        except Exception:  # whatever its parts raise: a generator function's result, a lock, a file
            self._copied = False
        self._next = 0
        self._state = self._counted()

    def _set_cycle(self, cycle: int) -> None:
        for each in () if self._told else chain_of(self._running[0]):
            if hasattr(each, "set_epoch"):
                each.set_epoch(cycle)

    def _counted(self) -> str:
        return small_state({"sampler": self._running[0]}, without=self._shared.values()) if self._told else ""

    def _begin(self, cycle: int) -> tuple[torch.Generator, Iterator[Any], SamplersOwn]:
        """Return a generator for the workers' seed, the sampler's iterator, and what that runs under."""
        sampler, generator = self._running
        own = SamplersOwn(order_seed(self._seed, cycle))
        with own:
            self._set_cycle(cycle)
            batches = iter(sampler)
            drawn_from = torch.default_generator if generator is None else generator
            workers = torch.Generator()
            workers.set_state(drawn_from.get_state())
            if cycle == 0 or not self._persistent:
                draw(drawn_from)
        self._next = None
        return workers, batches, own

    def _steps(self, cycle: int, batches: Iterator[Any], own: SamplersOwn) -> Iterator[Any]:
        first = True
        while True:
            with own if first or not self._of_torch else nullcontext():
                batch = next(batches, None)
            if batch is None:
                break
            first = False
            yield batch
        if first:
            raise SourceError(
                f"the sampler gave no index in cycle {cycle}: it is empty, or can be iterated only once"
            )
        self._next = cycle + 1


def whole_batch_sampler(loader: DataLoader[Any]) -> Any:
    """Return a loader's batch sampler; for ``drop_last``, which is the trainers', one that leaves nothing out."""
    given = loader.batch_sampler
    if loader.drop_last and type(given) is BatchSampler:
        return BatchSampler(given.sampler, given.batch_size, drop_last=False)
    return given


def samplers_of(loader: DataLoader[Any]) -> list[Any]:
    """Return what decides a loader's order: its batch sampler or sampler, and those that it draws from."""
    return chain_of(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)


def chain_of(sampler: Any) -> list[Any]:
    """Return a sampler and those that it draws from, the outermost first."""
    found: list[Any] = []
    left = [sampler]
    while left:
        each = left.pop(0)
        if each is not None and not any(each is other for other in found):
            found.append(each)
            left += [getattr(each, name, None) for name in ("batch_sampler", "sampler")]
    return found


def hardly_ends(loader: DataLoader[Any]) -> bool:
    """Whether a pass of a loader's sampler is so long that nobody waits for the next: 16 times the data set."""
    samples = length(loader.dataset)
    return samples is not None and any((length(each) or 0) > _HARDLY * samples for each in samplers_of(loader))


def draws_with_replacement(loader: DataLoader[Any]) -> bool:
    """Whether samples come again within a pass of a loader's sampler, as chance has it, and no epoch has."""
    told = isinstance(loader, ToldLoader) and any(hasattr(each, "set_epoch") for each in samplers_of(loader))
    return not told and any(getattr(each, "replacement", None) is True for each in samplers_of(loader))


def attributes(thing: Any) -> dict[str, Any]:
    return getattr(thing, "__dict__", {})


def canonical(thing: Any) -> Any:
    """Return what of a value can decide an order, in a form that does not depend on the process."""
    if isinstance(thing, str) and "/" in thing:
        return "path"
    if isinstance(thing, (*_PLAIN, range)):
        return repr(thing)
    if isinstance(thing, torch.Tensor):
        return canonical(thing.detach().cpu().numpy())
    if isinstance(thing, np.ndarray) and thing.dtype != object:
        return thing.dtype.str, thing.shape, digest(thing.tobytes())
    if isinstance(thing, torch.Generator):
        return canonical(thing.get_state())
    if isinstance(thing, random.Random):
        return thing.getstate()
    if isinstance(thing, np.random.RandomState):
        return canonical(thing.get_state(legacy=False))
    if isinstance(thing, np.random.Generator):
        return canonical(thing.bit_generator.state)
    if isinstance(thing, dict):
        return sorted((repr(key), canonical(value)) for key, value in thing.items())
    if isinstance(thing, (set, frozenset)):
        return sorted(repr(canonical(each)) for each in thing)
    if isinstance(thing, (list, tuple)):
        return [canonical(each) for each in thing]
    return type(thing).__qualname__


def _canonical_sampler(sampler: Any) -> Any:
    """Return a sampler's class and plain attributes; of its data only the length."""
    if isinstance(sampler, (*_CONTAINERS, torch.Tensor, np.ndarray)):
        return canonical(sampler)
    known = {
        name: len(value) if name in _DATA_NAMES and hasattr(value, "__len__") else canonical(value)
        for name, value in attributes(sampler).items()
    }
    return type(sampler).__qualname__, sorted(known.items())


def draw(generator: torch.Generator) -> int:
    """Draw a seed as a loader and a ``RandomSampler`` do."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def as_told(sampler: Any, dataset: Any) -> Any:
    """Return a copy of a sampler, with all that it holds but its data; itself if it cannot be copied."""
    try:
        return deepcopy(sampler, {id(thing): thing for thing in [dataset, *data_of(sampler)]})
    except Exception:  # whatever its parts raise
        return sampler


def data_of(sampler: Any) -> list[Any]:
    """Return the data that samplers hold by the names that torch's have for them."""
    held = (attributes(each).items() for each in chain_of(sampler))
    return [value for items in held for name, value in items if name in _DATA_NAMES]


def _not_state(sampler: Any) -> Iterator[Any]:
    """Yield what samplers hold and do not change, above all the data, which is not copied with them."""
    state = (*_PLAIN, *_CONTAINERS, *_GENERATORS, np.ndarray, torch.Tensor, Sampler)
    samplers = chain_of(sampler)
    for each in samplers:
        for name, value in attributes(each).items():
            if name in _DATA_NAMES or not (isinstance(value, state) or any(value is other for other in samplers)):
                yield value
