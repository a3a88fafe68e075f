"""What changes, sent to open pages once a second: runs, feeds, and the machine's GPUs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool

from penstock.errors import GpuMissing, NoSuchRun, PenstockError
from penstock.feed.launch.feeds import feeds
from penstock.gpus.gpm import Gpms
from penstock.gpus.nvml import NvmlGpu, answer_of, gpu_processes, gpus, nvml, users_hidden
from penstock.linux.process import lineage, start_ticks
from penstock.runs.listeners.gpu import readings
from penstock.runs.store import Store
from penstock.web.views import Views


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """What runs compute on: a GPU, or an instance of one in MIG mode. None where NVML does not report it."""

    profile: str  # MIG profile of an instance, such as "1g.10gb"; empty of a GPU
    memory_bytes: int
    used_bytes: int | None  # memory in use
    sm_active_percent: float | None  # multiprocessors busy since the last look, by GPM
    runs: dict[str, int | None]  # bytes that each run on it uses there, by the run's id
    others: int  # processes on it that belong to none of the runs


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU at one moment."""

    index: int  # its place in NVML's order
    name: str
    readings: dict[str, float]  # NVML's readings, by their names in listener ``gpu``
    units: tuple[Unit, ...]  # its instances in MIG mode, else itself


class Cards(msgspec.Struct, frozen=True):
    """The GPUs, and a sentence on what is not known of them; empty if all is."""

    cards: tuple[Card, ...] = ()
    note: str = ""


class GpuLook:
    """Looks at all GPUs of the machine; asked by one thread at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store  # knows the processes of the runs
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
        """Free what NVML holds for it; the next look begins anew."""
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
    handle = answer_of(nvml().nvmlDeviceGetHandleByUUID, gpu.uuid)
    return Card(
        index=gpu.index,
        name=gpu.name,
        readings=readings(handle) if handle else {},
        units=tuple(_unit(each, keepers, active.get(each.uuid, [None])[0]) for each in migs or [gpu]),
    )


def _unit(gpu: NvmlGpu, keepers: Mapping[int, str], sm_active_percent: float | None) -> Unit:
    known = nvml()
    handle = answer_of(known.nvmlDeviceGetHandleByUUID, gpu.uuid)
    memory = handle and answer_of(known.nvmlDeviceGetMemoryInfo, handle)
    runs: dict[str, int | None] = {}
    others = 0
    for pid, used in (gpu_processes(handle) if handle else {}).items():
        its = () if users_hidden() else lineage(pid)  # of a run's processes, its keeper is one
        if id := next((keepers[each] for each in its if each in keepers), None):
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


_EVERY_S = 1.0
_ANSWER_S = 0.5
_MOST_WAITING = 30


class Live:
    """Looks once a second for all open pages together."""

    def __init__(self, store: Store, views: Views, ending: Callable[[], bool]) -> None:
        self._store = store  # what is looked at
        self._views = views  # reads it for the page
        self._gpus = GpuLook(store)
        self._ending = ending  # returns whether the server ends, and with it every stream
        self._pages: set[asyncio.Queue[str | None]] = set()
        self._one_looks = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None
        self._rows: dict[str, dict[str, Any]] = {}
        self._version: tuple[int, int] | None = None
        """The store's version when the rows were read."""

    async def events(self) -> AsyncGenerator[str]:
        """Yield server-sent events for one page, until it goes: first all runs, then what changes."""
        page: asyncio.Queue[str | None] = asyncio.Queue(_MOST_WAITING)
        changes = await self._look()
        self._pages.add(page)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_again())
        try:
            yield _event({**changes, "rows": [], "all": list(self._rows.values())})
            while event := await page.get():
                yield event
        finally:
            self._pages.discard(page)

    async def _look(self) -> dict[str, Any]:
        """Look once, and send what has changed to the pages that are open."""
        async with self._one_looks:
            changes = await run_in_threadpool(self._changes)
            self._send(_event(changes))
            return changes

    async def _look_again(self) -> None:
        try:
            while self._pages and not self._ending():
                await asyncio.sleep(_EVERY_S)
                await self._look()
        finally:
            self._gpus.close()
            self._views.let_go()
            self._looking = None
            self._send(None)

    def _send(self, event: str | None) -> None:
        for page in self._pages:
            if page.full():  # its browser is slow, or sleeps: as it missed changes, it begins anew
                while not page.empty():
                    page.get_nowait()
                page.put_nowait(None)
            else:
                page.put_nowait(event)

    def _changes(self) -> dict[str, Any]:
        try:
            version = self._store.version()
            rows = {row["id"]: row for row in self._views.rows(self._rows if version == self._version else None)}
            running = [id for id, row in rows.items() if row["status"] == "running"]
            changes = {
                "rows": [row for id, row in rows.items() if row != self._rows.get(id)],
                "removed": [id for id in self._rows if id not in rows],
                "glances": self._views.glances(running),
                "gpus": self._gpus.look(running),
                "feeds": feeds(_ANSWER_S),
            }
        except PenstockError as error:
            return {"error": str(error)}
        new = [id for id in rows if id not in self._rows]
        if new != list(rows)[len(rows) - len(new) :]:  # some came back to their places
            changes["all"] = list(rows.values())
        self._rows, self._version = rows, version
        return changes


def _event(value: dict[str, Any]) -> str:
    return f"data: {msgspec.json.encode(value).decode()}\n\n"
