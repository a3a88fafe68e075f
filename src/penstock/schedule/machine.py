"""The machine that a schedule's runs share, as its file and the system describe it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from penstock.errors import GpuMissing
from penstock.gpus.nvml import answer_of, gpu_processes, nvml, visible_gpus
from penstock.linux.cgroups import cores, memory_limit_bytes
from penstock.runs.record import MachinePlan
from penstock.schedule.jobs import GpuMachine, GpuMode

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
        names = [self.devices[gpu] if self.devices else str(gpu) for gpu in gpus]
        return {"CUDA_VISIBLE_DEVICES": ",".join(names)}


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
