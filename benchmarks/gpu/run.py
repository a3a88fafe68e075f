"""The GPU benchmark: trainers on one GPU, fed in each way in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import product
from typing import Any, Literal, NamedTuple

import msgspec
from benchmarks.share import tensorsocket
from benchmarks.share.feeding import Feeding
from benchmarks.share.result import Result, measure
from benchmarks.share.trainers import TrainerPool, start_feeder
from benchmarks.share.workload import Workload

from penstock.bench.measure.pool import MeasuredProcess, MemberFailed, ProcessPool
from penstock.bench.measure.rates import Interval, IntervalWatch
from penstock.gpus.gpm import Activity, meter_of

ARMS = ("separate", "host ring", "GPU ring", "tensorsocket")
_ANSWER_S = 15.0
_BURSTS_S = 2.0  # TensorSocket sends eight batches at once


class Measured(msgspec.Struct, frozen=True):
    """One result, and its cost on the GPU.

    Attributes:
        block_bytes: Size of one block or batch.
        host_to_device_bytes: Bytes copied to the GPU per block or batch for all trainers together.
        device_bytes: Most GPU memory of any one trainer's tensors; None if not known.
        activity: What NVML says of the GPU.
    """

    result: Result = msgspec.field(name="cell")
    block_bytes: int
    host_to_device_bytes: float = 0.0
    device_bytes: int | None = None
    activity: Activity = Activity()


class Settings(msgspec.Struct, frozen=True):
    """How the benchmark runs.

    Attributes:
        device: The GPU; "cpu" is a fake one, to try the script.
        trainers: Numbers of trainers at once, one per case.
        workers: Workers of a shared ``DataLoader``, or of all separate ones together.
        width: Channels of the ResNet's first layer; 64 is ResNet-18's.
        warm_up: Blocks, and batches of images, that each trainer takes to warm up.
        peer_limit_s: Time within which a peer must be warm.
    """

    device: str
    trainers: tuple[int, ...]
    repeats: int
    seconds: float
    workers: int
    window: str = "1GiB"
    width: int = 64
    warm_up: tuple[int, int] = (20, 6)
    peer_limit_s: float = 30.0


class Case(NamedTuple):
    """One measurement of each repeat."""

    workload: Workload
    work: Literal["read", "train"]
    trainers: int
    arm: str

    @property
    def name(self) -> str:
        return "training" if self.work == "train" else self.workload.name


def cases(workloads: list[Workload], settings: Settings, *, train: bool, peers: bool) -> list[Case]:
    """List the cases of one repeat; those to be compared are neighbours."""
    arms = ARMS if peers else ARMS[:-1]
    found: list[Case] = []
    for workload, trainers in product(workloads, settings.trainers):
        controls = ("device copies",) if workload.kind == "blocks" else ()
        found += [Case(workload, "read", trainers, arm) for arm in (*arms, *controls)]
        if workload.kind == "jpeg" and train:
            found += [Case(workload, "train", trainers, arm) for arm in arms]
    return found


class Bench:
    """Measures cases; feeders and trainers are started once, TensorSocket anew each time."""

    def __init__(self, pool: ProcessPool, settings: Settings) -> None:
        self._pool = pool
        self._settings = settings
        self._trainer_pool = TrainerPool(pool)
        self._feeders: dict[str, MeasuredProcess] = {}
        self._too_many: dict[str, str] = {}  # by case, what TensorSocket did not finish

    def measured(self, case: Case, repeat: int) -> Measured:
        """Measure a case once."""
        result = Result(case.name, case.arm, case.trainers, repeat, finished=False)
        if case.arm == "tensorsocket":
            return self._tensorsocket(case, result)
        settings = self._settings
        interval = Interval(settings.seconds, settings.warm_up[case.workload.kind == "jpeg"])
        feeders = [self._feeder(case)] if "ring" in case.arm else []
        members = self._trainer_pool.members("torch", case.trainers)
        counts = [Counter(feeder) for feeder in feeders]
        meter = meter_of(settings.device)
        pids = [feeder.pid for feeder in feeders]
        result = measure(result, members, self._order(case), interval, pids, [*counts, meter])
        if not result.finished:
            self._trainer_pool.dismiss(kill=True)
            return Measured(result, case.workload.block_bytes)
        for member in members:
            member.send({"do": "device memory", "device": settings.device})
        taken = [
            member.hear_of("device_bytes", time.monotonic() + _ANSWER_S)["device_bytes"] for member in members
        ]
        crossing = case.trainers * result.copied_bytes_per_batch + sum(count.bytes_per_block for count in counts)
        device_bytes = None if settings.device == "cpu" else max(taken)
        return Measured(result, case.workload.block_bytes, crossing, device_bytes, meter.activity)

    def _order(self, case: Case) -> dict[str, Any]:
        settings = self._settings
        order: dict[str, Any] = {"device": settings.device, "work": case.work, "width": settings.width}
        if "ring" in case.arm:
            return {"kind": "feed", "feed": f"gpu-bench/{case.workload.name}/{case.arm}", "borrow": False, **order}
        if case.workload.kind == "jpeg":
            workers = max(1, settings.workers // case.trainers)
            return {"kind": "loader", "workload": msgspec.to_builtins(case.workload), "workers": workers, **order}
        kind = "own copies" if case.arm == "separate" else case.arm
        return {"kind": kind, "nbytes": case.workload.block_bytes, **order}

    def _feeder(self, case: Case) -> MeasuredProcess:
        name = self._order(case)["feed"]
        if name not in self._feeders:
            memory = self._settings.device if case.arm == "GPU ring" else "host"
            feeding = Feeding(name, self._settings.window, case.workload, memory=memory)
            self._feeders[name] = start_feeder(self._pool, feeding)
        return self._feeders[name]

    def _tensorsocket(self, case: Case, result: Result) -> Measured:
        """Measure TensorSocket, started anew; once a number of trainers was too many, more are not tried."""
        if case.name in self._too_many:
            result = msgspec.structs.replace(result, note=f"not tried: {self._too_many[case.name]}")
            return Measured(result, case.workload.block_bytes)
        settings = self._settings
        order = self._order(case._replace(arm="separate"))
        shown, order["device"] = _shown(settings.device)
        counts: list[Counter] = []
        meter = meter_of(settings.device)

        def watches(producer: MeasuredProcess) -> list[IntervalWatch]:
            counts.append(Counter(producer))
            return [*counts, meter]

        interval = Interval(max(settings.seconds, _BURSTS_S), 2, limit_s=settings.peer_limit_s, fixed=True)
        result = tensorsocket.measured(self._pool, result, case.workload, interval, order, shown, watches)
        if not result.finished:
            if result.note != tensorsocket.NOT_INSTALLED:
                self._too_many[case.name] = f"{case.trainers} {result.note}"
            return Measured(result, case.workload.block_bytes)
        crossing = sum(count.bytes_per_block for count in counts)
        return Measured(result, case.workload.block_bytes, crossing, None, meter.activity)


def _shown(device: str) -> tuple[dict[str, str], str]:
    """Return an environment that shows TensorSocket only this GPU, as it takes the first; and its name there."""
    if device == "cpu":
        return {"CUDA_VISIBLE_DEVICES": ""}, "cpu"
    import torch

    from penstock.memory.cuda import index_of, uuid_of

    return {"CUDA_VISIBLE_DEVICES": uuid_of(torch, index_of(torch, device))}, "cuda:0"


class Counter:
    """Watches what a feeder has copied to the GPU per block since it began, as few come in an interval."""

    def __init__(self, feeder: MeasuredProcess) -> None:
        self._feeder = feeder
        self.bytes_per_block = 0.0

    def begin(self) -> None:
        pass

    def end(self) -> None:
        self._feeder.send({"do": "count"})
        seen = self._feeder.hear_of("copied_bytes", time.monotonic() + _ANSWER_S)
        self.bytes_per_block = seen["copied_bytes"] / max(1, seen["blocks"])


def run(
    pool: ProcessPool, planned: list[Case], settings: Settings, tell: Callable[[int, int, str], None]
) -> list[Measured]:
    """Measure every case in each repeat.

    Args:
        tell: Called with (results done, results in all, the case that comes now).

    Raises:
        MemberFailed: a measured process died or failed.
    """
    bench = Bench(pool, settings)
    found: list[Measured] = []
    in_all = len(planned) * settings.repeats
    for repeat, case in product(range(settings.repeats), planned):
        tell(len(found), in_all, f"{case.name}, {case.trainers} × {case.arm}")
        try:
            found.append(bench.measured(case, repeat))
        except MemberFailed as error:
            raise MemberFailed(f"{case.name}, {case.trainers} × {case.arm}: {error}\n{pool.errors()}") from error
    return found
