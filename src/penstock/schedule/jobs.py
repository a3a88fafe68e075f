"""What a scheduler knows of a run, and of the machine."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import msgspec

from penstock.errors import GpuMissing
from penstock.gpus.nvml import answer_of, gpu_processes, nvml, visible_gpus
from penstock.linux.cgroups import cores, memory_limit_bytes
from penstock.runs.record import MachinePlan

GpuMode = Literal["plain", "mps"]


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run to be scheduled: what is left of it, and what a sample of it costs."""

    name: str  # unique among the jobs of a plan
    samples: float  # samples that it has yet to train on
    preparation_s: float
    """CPU-seconds in which its loader prepares a sample. A feed spends them once for its members."""
    own_s: float = 0.0  # CPU-seconds a sample in its own process
    gpu_s: float  # seconds a sample on a GPU that it has for itself
    start_s: float = 0.0  # CPU-seconds until its first batch: imports, mostly
    feed_start_s: float = 0.0  # CPU-seconds that it takes besides to start its feed, if none with its data runs
    sm_share: float = 1.0  # part of a GPU's multiprocessors that it keeps busy while it computes alone
    memory_bytes: int = 0  # GPU memory that it needs, on each of its GPUs; host memory on a machine without GPUs
    gpus: int = 1  # how many GPUs it computes on at once
    data: str = ""
    """Fingerprint of its data and loader: jobs with equal ones can be fed by one feed. Empty: by none."""
    kind: str = ""  # by what its interference with others was measured: its command and code
    priority: float = 1.0  # weight in a plan's objective
    deadline_s: float | None = None
    """When it must have ended, in seconds from the plan's beginning; None for no deadline."""
    after: tuple[str, ...] = ()  # names of the jobs that must end before it starts
    arrives_s: float = 0.0  # when it can start at the earliest, in seconds from the plan's beginning
    devices: tuple[int, ...] = ()  # numbers of the GPUs that it may use; empty for all
    alone: bool = False  # whether nobody may share its GPUs


class GpuMachine(msgspec.Struct, frozen=True, kw_only=True):
    """What jobs run on."""

    cores: float  # CPU cores
    memories: tuple[float, ...]
    """Memory of each GPU in bytes, less what must stay free; of the host, where there is no GPU."""
    mode: GpuMode = "plain"
    """How jobs share a GPU: by turns ("plain"), or each with the multiprocessors that it uses ("mps")."""
    pairs: Mapping[tuple[str, str], float] = {}
    """What was measured of two kinds on one GPU: the rate of the first, as a part of its rate alone; 0 if they do
    not fit together."""
    most_on_gpu: int = 1_000_000  # jobs that may share a GPU

    @property
    def gpus(self) -> int:
        return len(self.memories)

    def goes_beside(self, job: Job, neighbours: Sequence[Job]) -> bool:
        """Whether a GPU with these jobs may get one more."""
        apart = any(
            job.alone or other.alone or self.pairs.get((job.kind, other.kind)) == 0 for other in neighbours
        )
        return len(neighbours) < self.most_on_gpu and not apart

    def slowdown(self, job: Job, neighbours: Sequence[Job]) -> tuple[float, bool]:
        """How much slower a job computes beside others on its GPU, and whether that was measured.

        What was measured contains that a GPU's time is shared. What is assumed does not: 5% for each neighbour by
        turns, 3% under MPS (EuroMLSys'24's measurements of DLRM beside ResNet-152).
        """
        measured = [self.pairs.get((job.kind, other.kind)) for other in neighbours]
        if neighbours and all(each is not None for each in measured):
            rate = math.prod(each for each in measured if each is not None)
            return (1 / rate if rate > 0 else math.inf), True
        return 1 + (0.03 if self.mode == "mps" else 0.05) * len(neighbours), False


def alone_sample_s(job: Job, machine: GpuMachine) -> float:
    """Seconds in which a job trains on a sample with the machine for itself."""
    return max(job.gpu_s, job.own_s, (job.preparation_s + job.own_s) / machine.cores)


def alone_s(job: Job, machine: GpuMachine) -> float:
    """Seconds that a job takes with the machine for itself."""
    return job.start_s + job.samples * alone_sample_s(job, machine)


def contention(jobs: Sequence[Job], machine: GpuMachine) -> float:
    """Return ρ: the cores that preparation would keep busy if one job ran on each GPU, per core that is there.

    Up to 1, sharing data saves CPU time and no other time.
    """
    wanted = [job.preparation_s / max(job.gpu_s, 1e-12) for job in jobs]
    return machine.gpus * sum(wanted) / max(1, len(wanted)) / machine.cores


SPARE = 0.95
"""Part of a memory that runs may fill."""
_ANY_MEMORY = float(1 << 60)


class HostMachine(NamedTuple):
    """What runs share here."""

    model: GpuMachine
    """The machine, as plans see it; without GPUs it has one that stands for the host and its memory."""
    devices: tuple[str, ...] = ()  # UUIDs of its GPUs; empty where there are none, or simulated ones
    gpu: str = ""  # name of its GPUs, by which profiles are kept
    simulated: bool = False  # whether its GPUs are numbers only

    @property
    def has_gpus(self) -> bool:
        return self.simulated or bool(self.devices)

    @property
    def names(self) -> tuple[str, ...]:
        """How plans of runs name its GPUs: UUIDs, or numbers of simulated ones."""
        return self.devices or tuple(map(str, range(self.model.gpus)))

    @property
    def claims(self) -> list[str]:
        """Names of what a scheduler takes for itself."""
        if self.devices:
            return [f"GPU {uuid}" for uuid in self.devices]
        simulated = [f"GPU {i} (simulated)" for i in range(self.model.gpus)]
        return simulated if self.simulated else ["the CPUs"]

    def variables(self, gpus: Sequence[int]) -> dict[str, str]:
        """Return the environment variables that give a run its GPUs."""
        if not self.has_gpus:
            return {}
        return {"CUDA_VISIBLE_DEVICES": ",".join(self.names[gpu] for gpu in gpus)}


def host_machine(plan: MachinePlan, mode: GpuMode) -> HostMachine:
    """Describe the machine that a file's runs share; the file has been checked."""
    its_cores = plan.cores or cores()
    if plan.simulated:
        assert isinstance(plan.gpus, int)
        memories = (SPARE * plan.memory_bytes if plan.memory_bytes else _ANY_MEMORY,) * plan.gpus
        return HostMachine(GpuMachine(cores=its_cores, memories=memories, mode=mode), (), "simulated", True)
    gpus = _visible()
    if isinstance(plan.gpus, tuple):
        gpus = [gpu for gpu in gpus if gpu.uuid in plan.gpus]
    elif plan.gpus is not None:
        gpus = gpus[: plan.gpus]
    if not gpus:
        memory = SPARE * (plan.memory_bytes or memory_limit_bytes())
        return HostMachine(GpuMachine(cores=its_cores, memories=(memory,), mode=mode))
    memories = tuple(SPARE * min(plan.memory_bytes or gpu.memory_bytes, gpu.memory_bytes) for gpu in gpus)
    model = GpuMachine(cores=its_cores, memories=memories, mode=mode)
    return HostMachine(model, tuple(gpu.uuid for gpu in gpus), gpus[0].name)


def strangers_bytes(devices: Sequence[str], ours: Mapping[int, Collection[int]]) -> list[int]:
    """Return the memory that processes of others use on each of these GPUs.

    ``devices`` are their UUIDs; ``ours`` are, by number of a GPU, the processes that do not count.
    """
    return [
        sum(used or 0 for pid, used in gpu_processes(_handle(uuid)).items() if pid not in ours.get(gpu, ()))
        for gpu, uuid in enumerate(devices)
    ]


def _handle(uuid: str) -> Any:
    return answer_of(nvml().nvmlDeviceGetHandleByUUID, uuid)


def _visible() -> list[Any]:
    with suppress(GpuMissing):
        return visible_gpus(os.environ)
    return []
