"""Samplers that are functions of a seed, an epoch and ids, in the ways in which people write them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler, SubsetRandomSampler

SIZE = 24
KEEPS = ("attribute", "list", "object", "slot", "picked", "python", "numpy", "torch", "array in place")
FORMS = ("sampler", "batch sampler", "in a batch sampler", "round a batch sampler", "whole batches", "subclass")


class Kind(NamedTuple):
    """A kind of samplers."""

    keeps: str  # where they keep what they are told: as it is, as the ids that it picks, or in a generator
    form: str  # what of a loader they are
    members: bool  # whether the epoch decides which ids, and how many
    goes_on: str  # when they count an epoch on by themselves: at a pass's begin or end, or never
    says: str  # what they say of their length: what is true, one number for all epochs, or nothing
    replaces: bool  # whether they say that they draw with replacement
    seed: int  # seed of the order


class Rows(Dataset[int]):
    def __init__(self) -> None:
        self.made: list[int] = []

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, i: int) -> int:
        self.made.append(i)
        return i


class Whole(Rows):
    """Gives whole batches, each of one sample."""

    def __getitem__(self, i: int) -> Any:
        return torch.tensor([super().__getitem__(i)])


class _Slot:
    __slots__ = ("told",)

    def __init__(self) -> None:
        self.told = 0


class Told(Sampler[Any]):
    """A sampler, or batch sampler."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.shuffle = True
        if kind.replaces:
            self.replacement = True
        self.held: Any = {
            "attribute": 0,
            "list": [0],
            "object": SimpleNamespace(told=0),
            "slot": _Slot(),
            "array in place": np.zeros(1, np.int64),
        }.get(kind.keeps)
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        match self.kind.keeps:
            case "attribute":
                self.held = epoch
            case "list" | "array in place":
                self.held[0] = epoch
            case "object" | "slot":
                self.held.told = epoch
            case "picked":
                self.held = _ids(random.Random(f"{self.kind.seed} {epoch}"), self.kind)
            case "python":
                self.held = random.Random(f"{self.kind.seed} {epoch}")
            case "numpy":
                self.held = np.random.default_rng([self.kind.seed, epoch])
            case _:
                self.held = self.held or torch.Generator()
                self.held.manual_seed(1000 * self.kind.seed + epoch)

    def _ids(self) -> list[int]:
        match self.kind.keeps:
            case "picked":
                return list(self.held)
            case "python":
                return _ids(self.held, self.kind)
            case "numpy":
                return _ids(random.Random(int(self.held.integers(2**60))), self.kind)
            case "torch":
                return _ids(random.Random(int(torch.randint(2**60, (), generator=self.held))), self.kind)
            case _:
                return _ids(random.Random(f"{self.kind.seed} {self._told}"), self.kind)

    @property
    def _told(self) -> int:
        keeps = self.kind.keeps
        return int(self.held[0] if keeps in ("list", "array in place") else getattr(self.held, "told", self.held))

    def _goes_on(self, when: str) -> None:
        if self.kind.goes_on == when and self.kind.keeps in KEEPS[:4]:
            self.set_epoch(self._told + 1)

    def __iter__(self) -> Iterator[Any]:
        ids = self._ids()
        self._goes_on("begin")
        if self.kind.form == "batch sampler":
            yield from _batches(ids, self.kind.seed)
        else:
            yield from ids
        self._goes_on("end")

    def __len__(self) -> int:
        if self.kind.says == "truth" and self.kind.keeps not in ("python", "numpy", "torch"):
            ids = self._ids()
            return len(_batches(ids, self.kind.seed)) if self.kind.form == "batch sampler" else len(ids)
        if self.kind.says == "nothing":
            raise TypeError("it has no length")
        return 17


class Stages(SubsetRandomSampler):
    """Picks its ids by the epoch, and draws their order as torch does."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        super().__init__(range(6))

    def set_epoch(self, epoch: int) -> None:
        self.indices = [(i + 3 * epoch + self._kind.seed) % SIZE for i in range(6 + epoch * self._kind.members)]


class Round(Sampler[list[int]]):
    """A batch sampler round another, as frameworks have them."""

    def __init__(self, batch_sampler: BatchSampler) -> None:
        self.batch_sampler = batch_sampler

    def set_epoch(self, epoch: int) -> None:
        self.batch_sampler.sampler.set_epoch(epoch)  # type: ignore[attr-defined]

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batch_sampler)

    def __len__(self) -> int:
        return len(self.batch_sampler)


def loader_of(kind: Kind, workers: int = 0) -> tuple[DataLoader[Any], Any]:
    """Return a script's loader, and what the script tells the epoch."""
    told: Any = Stages(kind) if kind.form == "subclass" else Told(kind)
    match kind.form:
        case "batch sampler":
            return DataLoader(Rows(), batch_sampler=told, num_workers=workers), told
        case "in a batch sampler":
            return DataLoader(Rows(), batch_sampler=BatchSampler(told, 5, kind.members), num_workers=workers), told
        case "round a batch sampler":
            told = Round(BatchSampler(told, 5, False))
            return DataLoader(Rows(), batch_sampler=told, num_workers=workers), told
        case "whole batches":
            return DataLoader(Whole(), batch_size=None, sampler=told, num_workers=workers), told
        case _:
            return DataLoader(Rows(), 5, sampler=told, num_workers=workers), told


def _ids(draws: random.Random, kind: Kind) -> list[int]:
    ids = draws.sample(range(SIZE), draws.randint(4, SIZE) if kind.members else 17)
    return [draws.choice(ids) for _ in ids] if kind.replaces else ids


def _batches(ids: list[int], seed: int) -> list[list[int]]:
    """Cut ids by a budget of tokens, as batches of texts are."""
    batches: list[list[int]] = [[]]
    for i in ids:
        if batches[-1] and sum((seed + j) % 9 for j in (*batches[-1], i)) > 12:
            batches.append([])
        batches[-1].append(i)
    return batches
