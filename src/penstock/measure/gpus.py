"""The GPUs of this machine as NVML tells them, and those that a process sees."""

# pynvml has no annotations, and may not be there.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingImports=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import msgspec

from penstock.errors import GpuMissing


class Gpu(msgspec.Struct, frozen=True):
    """A GPU, or one instance of a GPU in MIG mode.

    Attributes:
        index: Its place, or that of the GPU it lies in, among the machine's GPUs in NVML's order.
        uuid: "GPU-…", or "MIG-…" of an instance.
        name: Its model; behind it, of an instance, "MIG" and the profile.
        memory_bytes: Its memory.
        parent: UUID of the GPU that an instance lies in; empty of a GPU.
    """

    index: int
    uuid: str
    name: str
    memory_bytes: int
    parent: str = ""

    @property
    def profile(self) -> str:
        """MIG profile of an instance, such as "1g.10gb"; empty of a GPU."""
        return self.name.rpartition(" MIG ")[2] if self.parent else ""


@cache
def nvml() -> Any:
    """Return the module ``pynvml``, initialised.

    Raises:
        GpuMissing: nvidia-ml-py is not installed, or NVML says why it cannot be used.
    """
    try:
        import pynvml
    except ImportError:
        raise GpuMissing('nvidia-ml-py is not installed: pip install "penstock[gpu]"') from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise GpuMissing(f"NVML cannot be used: {error}; is there an NVIDIA GPU, and its driver?") from None
    return pynvml


def gpus() -> list[tuple[Gpu, list[Gpu]]]:
    """List the machine's GPUs, each with its MIG instances; a GPU that is lost is left out.

    Raises:
        GpuMissing: NVML cannot be used.
    """
    known = nvml()
    found: list[tuple[Gpu, list[Gpu]]] = []
    for index in range(known.nvmlDeviceGetCount()):
        try:
            handle = known.nvmlDeviceGetHandleByIndex(index)
            gpu = _described(known, handle, index, "")
            found.append((gpu, [_described(known, mig, index, gpu.uuid) for mig in _migs(known, handle)]))
        except known.NVMLError:
            continue
    return found


def visible_gpus(environment: Mapping[str, str]) -> list[Gpu]:
    """List the GPUs that CUDA shows a process; instances in place of a GPU in MIG mode.

    An index counts in NVML's order, which is that of the PCI bus. CUDA's is so too unless the models differ and
    CUDA_DEVICE_ORDER is not PCI_BUS_ID.

    Args:
        environment: Variables of the process. CUDA_VISIBLE_DEVICES lists indices, UUIDs, or their beginnings; the
            first one that names no GPU, several, or one again ends the list.

    Raises:
        GpuMissing: NVML cannot be used.
    """
    all = gpus()
    given = environment.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return [each for gpu, migs in all for each in _shown(gpu, migs)]
    found: list[Gpu] = []
    for name in given.split(","):
        named = _named(name.strip(), all)
        if not named or named[0] in found:
            break
        found += named
    return found


def _named(name: str, all: list[tuple[Gpu, list[Gpu]]]) -> list[Gpu]:
    if name.isdecimal():
        return [each for gpu, migs in all if gpu.index == int(name) for each in _shown(gpu, migs)]
    if not name.upper().startswith(("GPU-", "MIG-")):
        return []
    units = [(each, _shown(each, migs)) for gpu, migs in all for each in (gpu, *migs)]
    fitting = [shown for unit, shown in units if unit.uuid.lower().startswith(name.lower())]
    return fitting[0] if len(fitting) == 1 else []


def _shown(unit: Gpu, migs: list[Gpu]) -> list[Gpu]:
    return migs if migs and not unit.parent else [unit]


def _migs(known: Any, handle: Any) -> Iterator[Any]:
    try:
        if not known.nvmlDeviceGetMigMode(handle)[0]:
            return
    except known.NVMLError:  # this model has none
        return
    for place in range(known.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            yield known.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
        except known.NVMLError:
            continue


def _described(known: Any, handle: Any, index: int, parent: str) -> Gpu:
    name, uuid = known.nvmlDeviceGetName(handle), known.nvmlDeviceGetUUID(handle)
    return Gpu(index, uuid, name, known.nvmlDeviceGetMemoryInfo(handle).total, parent)
