"""The GPUs of this machine, by NVML, and those that a process sees."""

# pynvml has no annotations, and may not be there.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingImports=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec

from penstock.errors import GpuMissing
from penstock.linux.process import numbers_are_the_machines


class NvmlGpu(msgspec.Struct, frozen=True):
    """A GPU, or one instance of a GPU in MIG mode."""

    index: int  # its place, or that of its GPU, among the machine's GPUs in NVML's order
    uuid: str  # "GPU-…", or "MIG-…" of an instance
    name: str  # its model; behind it, of an instance, "MIG" and the profile
    memory_bytes: int
    parent: str = ""  # UUID of the GPU that an instance lies in; empty of a GPU

    @property
    def profile(self) -> str:
        """MIG profile of an instance, such as "1g.10gb"; empty of a GPU."""
        return self.name.rpartition(" MIG ")[2] if self.parent else ""


class Instance(NamedTuple):
    """An instance of a GPU in MIG mode: the number of its GPU instance, its UUID, and NVML's handle of it."""

    number: int
    uuid: str
    handle: Any


@cache
def nvml() -> Any:
    """Return the module ``pynvml``, initialised."""
    try:
        import pynvml
    except ImportError:
        raise GpuMissing("nvidia-ml-py is not installed", 'pip install "penstock[gpu]"') from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise GpuMissing(f"NVML cannot be used: {error}") from None
    return pynvml


def answer_of(call: Callable[..., Any], *args: Any) -> Any:
    """Return NVML's answer to a call; None without one: not supported, not permitted, the GPU is lost."""
    try:
        return call(*args)
    except nvml().NVMLError:
        return None


def answer(call: Callable[..., Any], *args: Any) -> Any:
    """Return NVML's answer to a call without which there is nothing to go on."""
    try:
        return call(*args)
    except nvml().NVMLError as error:
        raise GpuMissing(f"NVML cannot be used: {call.__name__}: {error}") from None


def gpus() -> list[tuple[NvmlGpu, list[NvmlGpu]]]:
    """List the machine's GPUs, each with its MIG instances; a GPU that is lost is left out."""
    known = nvml()
    found: list[tuple[NvmlGpu, list[NvmlGpu]]] = []
    for index in range(answer(known.nvmlDeviceGetCount)):
        handle = answer_of(known.nvmlDeviceGetHandleByIndex, index)
        if handle and (gpu := answer_of(_described, handle, index)):
            migs = [answer_of(_described, mig.handle, index, gpu.uuid) for mig in instances(handle)]
            found.append((gpu, [mig for mig in migs if mig]))
    return found


def visible_gpus(environment: Mapping[str, str]) -> list[NvmlGpu]:
    """List the GPUs that CUDA shows a process; instances in place of a GPU in MIG mode.

    CUDA_VISIBLE_DEVICES lists indices, UUIDs, or their beginnings; the first one that names no GPU, several, or
    one again ends the list. An index counts in NVML's order, which is that of the PCI bus. CUDA's is so too unless
    the models differ and CUDA_DEVICE_ORDER is not PCI_BUS_ID.
    """
    machine = gpus()
    given = environment.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return [each for gpu, migs in machine for each in _shown(gpu, migs)]
    found: list[NvmlGpu] = []
    for name in given.split(","):
        named = _named(name.strip(), machine)
        if not named or named[0] in found:
            break
        found += named
    return found


def _named(name: str, machine: list[tuple[NvmlGpu, list[NvmlGpu]]]) -> list[NvmlGpu]:
    if name.isdecimal():
        return [each for gpu, migs in machine if gpu.index == int(name) for each in _shown(gpu, migs)]
    if not name.upper().startswith(("GPU-", "MIG-")):
        return []
    units = [(each, _shown(each, migs)) for gpu, migs in machine for each in (gpu, *migs)]
    fitting = [shown for unit, shown in units if unit.uuid.lower().startswith(name.lower())]
    return fitting[0] if len(fitting) == 1 else []


def _shown(unit: NvmlGpu, migs: list[NvmlGpu]) -> list[NvmlGpu]:
    return migs if migs and not unit.parent else [unit]


def devices(environment: Mapping[str, str]) -> list[tuple[str, Any]]:
    """List UUID and NVML's handle of each GPU that CUDA shows a process, whole or an instance of it."""
    uuids = dict.fromkeys(gpu.parent or gpu.uuid for gpu in visible_gpus(environment))
    if not uuids:
        given = environment.get("CUDA_VISIBLE_DEVICES")
        raise GpuMissing("NVML finds no GPU" if given is None else f"CUDA_VISIBLE_DEVICES={given!r} shows no GPU")
    return [(uuid, answer(nvml().nvmlDeviceGetHandleByUUID, uuid)) for uuid in uuids]


def instances(handle: Any) -> Iterator[Instance]:
    """Yield the MIG instances of a GPU."""
    known = nvml()
    if (answer_of(known.nvmlDeviceGetMigMode, handle) or [0])[0]:
        for place in range(answer_of(known.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            mig = answer_of(known.nvmlDeviceGetMigDeviceHandleByIndex, handle, place)
            if mig and (found := answer_of(_instance, mig)):
                yield found


def _instance(mig: Any) -> Instance:
    known = nvml()
    return Instance(known.nvmlDeviceGetGpuInstanceId(mig), known.nvmlDeviceGetUUID(mig), mig)


def gpu_processes(handle: Any) -> dict[int, int | None]:
    """Return the processes that compute on a GPU, MPS's clients and those on its instances too.

    Returns:
        The bytes that each uses there, by its number; None where NVML does not report it.
    """
    known = nvml()
    found: dict[int, int | None] = {}
    for unit in (handle, *(mig.handle for mig in instances(handle))):
        for call in (known.nvmlDeviceGetComputeRunningProcesses, known.nvmlDeviceGetMPSComputeRunningProcesses):
            for process in answer_of(call, unit) or ():
                found[process.pid] = process.usedGpuMemory or found.get(process.pid)
    return found


def users_hidden() -> str:
    """Return why the numbers of ``gpu_processes`` are not those of processes here; empty if they are."""
    if numbers_are_the_machines():
        return ""
    return "this container numbers its processes itself, NVML as the host does; docker run --pid=host shows them"


def _described(handle: Any, index: int, parent: str = "") -> NvmlGpu:
    known = nvml()
    name, uuid = known.nvmlDeviceGetName(handle), known.nvmlDeviceGetUUID(handle)
    return NvmlGpu(index, uuid, name, known.nvmlDeviceGetMemoryInfo(handle).total, parent)
