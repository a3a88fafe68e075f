"""The GPU benchmark: trainers on one GPU, fed in each way in turn."""

from __future__ import annotations

import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
from benchmarks.measure.pool import MeasuredProcess, MemberFailed, ProcessPool
from benchmarks.measure.rates import Interval, IntervalWatch
from benchmarks.share import tensorsocket
from benchmarks.share.feeding import Feeding
from benchmarks.share.result import Result, measure
from benchmarks.share.trainers import TrainerPool, start_feeder
from benchmarks.share.workload import Workload

from penstock.errors import PenstockError
from penstock.feed.settings import bytes_from
from penstock.gpus.gpm import Activity, meter_of
from penstock.gpus.nvml import answer_of, nvml

ARMS = ("separate", "host ring", "GPU ring", "tensorsocket")
_ANSWER_S = 15.0
_BURST = 8  # batches that TensorSocket sends at once
_BURSTS_S = {"read": 25.0, "train": 12.0}


class Measured(msgspec.Struct, frozen=True):
    """One result, and its cost on the GPU."""

    result: Result = msgspec.field(name="cell")
    block_bytes: int  # size of one block or batch
    host_to_device_bytes: float = 0.0  # bytes copied to the GPU per block or batch for all trainers together
    device_bytes: int | None = None  # most GPU memory of any one trainer's tensors; None if not known
    activity: Activity = Activity()  # what NVML says of the GPU
    watts: float | None = None  # its power, by its counter of energy; None if not known


class Settings(msgspec.Struct, frozen=True):
    """How the benchmark runs."""

    device: str  # the GPU; "cpu" is a fake one, to try the script
    trainers: tuple[int, ...]  # numbers of trainers at once, one per case
    repeats: int
    seconds: float
    workers: int  # workers of a shared ``DataLoader``, or of all separate ones together
    window: str = "1GiB"
    width: int = 64  # channels of the ResNet's first layer; 64 is ResNet-18's
    warm_up: tuple[int, int] = (20, 6)  # blocks, and batches of images, that each trainer takes to warm up
    peer_limit_s: float = 30.0  # time within which a peer must be warm
    cpus: tuple[int, ...] = ()  # those that everything runs on; empty for all
    mps: bool = False  # whether all processes on the GPU are clients of one MPS daemon
    again: tuple[str, ...] = ()
    """Arms that repeats after the first measure, with the most trainers only; empty for all cases."""


class Case(NamedTuple):
    """One measurement of each repeat."""

    workload: Workload
    work: Literal["read", "train"]
    trainers: int
    arm: str

    @property
    def name(self) -> str:
        return "training" if self.work == "train" else self.workload.name


def cases(
    workloads: list[Workload], settings: Settings, arms: list[str], only: str = ""
) -> list[tuple[Case, int]]:
    """List the cases, each with its repeat, neighbours compared; ``arm:K`` is measured with K trainers only."""
    found: list[tuple[Case, int]] = []
    for repeat, workload, trainers in product(range(settings.repeats), workloads, settings.trainers):
        controls = ("device copies",) if workload.kind == "blocks" else ()
        works = ("read", "train") if workload.kind == "jpeg" else ("read",)
        for work, name in product(works, (*arms, *controls)):
            arm, _, only_with = name.partition(":")
            if only_with not in {"", str(trainers)}:
                continue
            claimed = arm in settings.again and trainers == max(settings.trainers)
            if only in {"", work} and (repeat == 0 or claimed or not settings.again):
                found.append((Case(workload, work, trainers, arm), repeat))
    if settings.mps:  # its processes are killed, and what clients of MPS leave under way may hurt the others
        found.sort(key=lambda each: each[0].arm == "tensorsocket")
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
        warm_up = settings.warm_up[case.workload.kind == "jpeg"]
        if "ring" in case.arm:  # blocks that lay ready before are not what a feed makes
            warm_up += bytes_from(settings.window) // case.workload.block_bytes
        interval = Interval(settings.seconds, warm_up)
        feeders = [self._feeder(case)] if "ring" in case.arm else []
        members = self._trainer_pool.members("torch", case.trainers)
        counts = [Counter(feeder) for feeder in feeders]
        meter, power = meter_of(settings.device), Power(settings.device)
        pids = [feeder.pid for feeder in feeders]
        result = measure(result, members, self._order(case), interval, pids, [*counts, meter, power])
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
        return Measured(result, case.workload.block_bytes, crossing, device_bytes, meter.activity, power.watts)

    def start_anew(self) -> None:
        """End all processes, one of which has failed."""
        self._trainer_pool.dismiss(kill=True)
        self._pool.dismiss(list(self._feeders.values()), kill=True)
        self._feeders.clear()

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
        meter, power = meter_of(settings.device), Power(settings.device)

        def watches(producer: MeasuredProcess) -> list[IntervalWatch]:
            counts.append(Counter(producer))
            return [*counts, meter, power]

        seconds = max(settings.seconds, _BURSTS_S[case.work])
        interval = Interval(seconds, 2 * _BURST, limit_s=settings.peer_limit_s, fixed=True)
        with tempfile.TemporaryDirectory() as folder:
            order["times"] = folder
            result = tensorsocket.measured(self._pool, result, case.workload, interval, order, shown, watches)
            if result.finished:
                times = [[float(line) for line in path.read_text().split()] for path in Path(folder).iterdir()]
                result = _in_bursts(result, times, seconds)
        if not result.finished:
            if result.note != tensorsocket.NOT_INSTALLED:
                self._too_many[case.name] = f"{case.trainers} {result.note}"
            return Measured(result, case.workload.block_bytes)
        crossing = sum(count.bytes_per_block for count in counts)
        return Measured(result, case.workload.block_bytes, crossing, None, meter.activity, power.watts)


def _in_bursts(result: Result, times: list[list[float]], seconds: float) -> Result:
    """Count whole bursts, from the first of one to the first of another, in place of a fixed time's batches."""
    rates = [bursts_of(mine, seconds) for mine in times]
    rows = result.samples_per_s[0] / result.batches_per_s[0]
    thousands = sum(result.samples_per_s) / (rows * sum(rates)) if sum(rates) else 1.0
    return msgspec.structs.replace(
        result,
        batches_per_s=tuple(rates),
        samples_per_s=tuple(rate * rows for rate in rates),
        feeder_cpu_s=result.feeder_cpu_s * thousands,
        trainers_cpu_s=result.trainers_cpu_s * thousands,
    )


def _shown(device: str) -> tuple[dict[str, str], str]:
    """Return an environment that shows TensorSocket only this GPU, as it takes the first; and its name there."""
    return {"CUDA_VISIBLE_DEVICES": _uuid(device)}, "cpu" if device == "cpu" else "cuda:0"


def _uuid(device: str) -> str:
    if device == "cpu":
        return ""
    import torch

    from penstock.memory.cuda import index_of, uuid_of

    return uuid_of(torch, index_of(torch, device))


def bursts_of(times: list[float], seconds: float) -> float:
    """Return the rate of the last seconds' batches, of whole bursts only, which begin with the first batch."""
    begins = times[::_BURST]
    first = bisect_left(begins, times[-1] - seconds) if times else 0
    bursts = len(begins) - 1 - first
    return _BURST * bursts / (begins[-1] - begins[first]) if bursts > 0 else 0.0


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


class Power:
    """Watches a GPU's counter of energy over an interval."""

    def __init__(self, device: str) -> None:
        self._uuid = _uuid(device)
        self.watts: float | None = None

    def begin(self) -> None:
        self._began, self._mJ = time.monotonic(), self._counted()

    def end(self) -> None:
        now, before = self._counted(), self._mJ
        if now is not None and before is not None:
            self.watts = (now - before) / 1e3 / (time.monotonic() - self._began)

    def _counted(self) -> int | None:
        with suppress(PenstockError):
            known = nvml()
            return answer_of(
                lambda: known.nvmlDeviceGetTotalEnergyConsumption(known.nvmlDeviceGetHandleByUUID(self._uuid))
            )
        return None


def run(
    pool: ProcessPool,
    planned: list[tuple[Case, int]],
    settings: Settings,
    tell: Callable[[list[Measured], str], None],
) -> list[Measured]:
    """Measure every case; one whose process died or failed is not finished, and its note says why."""
    bench = Bench(pool, settings)
    found: list[Measured] = []
    for case, repeat in planned:
        tell(found, f"{case.name}, {case.trainers} × {case.arm}")
        try:
            found.append(bench.measured(case, repeat))
        except MemberFailed as error:
            note = f"{error}\n{pool.errors()}"
            result = Result(case.name, case.arm, case.trainers, repeat, finished=False, note=note)
            found.append(Measured(result, case.workload.block_bytes))
            bench.start_anew()
    tell(found, "")
    return found
