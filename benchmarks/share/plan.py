"""What the sharing benchmark measures: its settings, and the cases of one repeat in their order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
from benchmarks.measure.rates import Interval
from benchmarks.share.workload import Workload


class Settings(msgspec.Struct, frozen=True):
    """How the benchmark runs."""

    trainers: tuple[int, ...] = (1, 2, 4, 8)  # numbers of trainers at once, one per case
    step_ms: float = 0.0  # time that a trainer waits for each batch, in place of training on it
    repeats: int = 5
    seconds: float = 4.0  # measured time of each JPEG case; cases of synthetic blocks take 0.3 of it
    blocks: tuple[str, ...] = ("128KB", "1MB", "10MB")  # sizes of synthetic blocks
    workers: int = 2  # workers of a shared or lone ``DataLoader``, or of all separate ones together
    window: str = "512MiB"  # size of each feed's ring
    jpeg: bool = True
    peers: bool = True
    peer_limit_s: float = 20.0  # time within which a peer must be warm
    quick: bool = False

    def quickly(self) -> Settings:
        """Reduce to the cases of few trainers, each once and short: a smoke run."""
        few = tuple(k for k in self.trainers if k <= 2) or self.trainers[:1]
        return msgspec.structs.replace(
            self, trainers=few, repeats=1, seconds=min(self.seconds, 0.6), peer_limit_s=5.0, quick=True
        )

    def interval_of(self, workload: Workload) -> Interval:
        """Return the measured interval for a case of this workload."""
        if workload.kind == "jpeg":
            return Interval(self.seconds, warm_up=6, step_s=self.step_ms / 1e3)
        return Interval(0.3 * self.seconds, warm_up=20, step_s=self.step_ms / 1e3)


class Case(NamedTuple):
    """A case to be measured."""

    workload: Workload
    arm: str
    trainers: int
    order: dict[str, Any]  # order for each of the trainers; see ``trainer.open_source``
    kind: str  # "plain" trainers never import torch, "torch" ones do
    fed: bool  # whether the workload's feeder feeds it


def feed_of(workload: Workload) -> str:
    return f"bench/{workload.name}"


def cases(workload: Workload, settings: Settings) -> Iterator[Case]:
    """Yield the cases of one repeat; those to be compared are neighbours."""
    jpeg = workload.kind == "jpeg"
    plain = msgspec.to_builtins(workload)
    kind = "torch" if jpeg else "plain"

    def with_loaders(arm: str, trainers: int) -> Case:
        workers = max(1, settings.workers // trainers)
        order = {"kind": "loader", "workload": plain, "workers": workers}
        return Case(workload, arm, trainers, order, "torch", False)

    if jpeg:
        yield with_loaders("alone", 1)
    for trainers in settings.trainers:
        for arm in ("penstock", "borrow"):
            order = {"kind": "feed", "feed": feed_of(workload), "borrow": arm == "borrow"}
            yield Case(workload, arm, trainers, order, kind, True)
        if not jpeg:
            order = {"kind": "copy", "nbytes": workload.block_bytes}
            yield Case(workload, "copy", trainers, order, "plain", False)
        if trainers > 1 or not jpeg:
            yield with_loaders("separate", trainers)
