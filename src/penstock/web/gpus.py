"""The machine's GPUs as the page shows them: how busy each is now, and which runs are on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

import msgspec

from penstock.errors import GpuMissing, NoSuchRun
from penstock.gpus.gpm import Gpms
from penstock.gpus.nvml import NvmlGpu, gpu_processes, gpus, nvml, told, users_hidden
from penstock.linux.process import lineage, start_ticks
from penstock.runs.listeners.gpu import readings
from penstock.runs.store import Store


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """What runs compute on: a GPU, or an instance of one in MIG mode. None where NVML does not tell.

    Attributes:
        profile: MIG profile of an instance, such as "1g.10gb"; empty of a GPU.
        memory_bytes: Its memory.
        used_bytes: Memory in use.
        sm_active_percent: Multiprocessors busy since the last look, by GPM.
        runs: Bytes that each run on it uses there, by the run's id.
        others: Processes on it that belong to none of the runs.
    """

    profile: str
    memory_bytes: int
    used_bytes: int | None
    sm_active_percent: float | None
    runs: dict[str, int | None]
    others: int


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU at one moment.

    Attributes:
        index: Its place in NVML's order.
        name: Its model.
        readings: What NVML tells of it, by the names that listener ``gpu`` gives them.
        units: Its instances in MIG mode, else itself.
    """

    index: int
    name: str
    readings: dict[str, float]
    units: tuple[Unit, ...]


class Cards(msgspec.Struct, frozen=True):
    """The GPUs, and a sentence on what is not known of them; empty if all is."""

    cards: tuple[Card, ...] = ()
    note: str = ""


class Gpus:
    """Looks at all GPUs of the machine; asked by one thread at a time.

    Args:
        store: Knows the processes of the runs.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._gpms = Gpms("SM_UTIL")

    def look(self, running: Iterable[str]) -> Cards:
        """Return the GPUs now, and which of these runs, given by their ids, are on them."""
        try:
            machine = gpus()
        except GpuMissing as missing:
            return Cards(note=str(missing))
        keepers = self._keepers(running)
        active = self._gpms.read(unit.uuid for gpu, migs in machine for unit in migs or [gpu])
        cards = tuple(_card(gpu, migs, keepers, active) for gpu, migs in machine)
        used = any(unit.runs or unit.others for card in cards for unit in card.units)
        hidden = users_hidden() if used else ""
        return Cards(cards, f"Which run is on which GPU is not known: {hidden}." if hidden else "")

    def close(self) -> None:
        """Free what NVML keeps for it; the next look begins anew."""
        self._gpms.close()

    def _keepers(self, running: Iterable[str]) -> dict[int, str]:
        """Return the runs whose keepers live, by the keepers' numbers."""
        found: dict[int, str] = {}
        for id in running:
            with suppress(NoSuchRun):  # removed since
                keeper = self._store.run(id).keeper
                if keeper and start_ticks(keeper[0]) == keeper[1]:
                    found[keeper[0]] = id
        return found


def _card(
    gpu: NvmlGpu, migs: list[NvmlGpu], keepers: Mapping[int, str], active: Mapping[str, list[float | None]]
) -> Card:
    handle = told(nvml().nvmlDeviceGetHandleByUUID, gpu.uuid)
    return Card(
        index=gpu.index,
        name=gpu.name,
        readings=readings(handle) if handle else {},
        units=tuple(_unit(each, keepers, active.get(each.uuid, [None])[0]) for each in migs or [gpu]),
    )


def _unit(gpu: NvmlGpu, keepers: Mapping[int, str], sm_active_percent: float | None) -> Unit:
    known = nvml()
    handle = told(known.nvmlDeviceGetHandleByUUID, gpu.uuid)
    memory = handle and told(known.nvmlDeviceGetMemoryInfo, handle)
    runs: dict[str, int | None] = {}
    others = 0
    for pid, used in (gpu_processes(handle) if handle else {}).items():
        if id := None if users_hidden() else _run_of(pid, keepers):
            both = (runs.get(id, 0), used)
            runs[id] = None if None in both else sum(filter(None, both))
        else:
            others += 1
    return Unit(
        profile=gpu.profile,
        memory_bytes=gpu.memory_bytes,
        used_bytes=memory.used if memory else None,
        sm_active_percent=sm_active_percent,
        runs=runs,
        others=others,
    )


def _run_of(pid: int, keepers: Mapping[int, str]) -> str | None:
    """Return the run that a process belongs to: it descends from the run's keeper."""
    return next((keepers[each] for each in lineage(pid) if each in keepers), None)
