"""What runs need and come after: names in ``after``, the table ``machine``, and what runs may take together."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated

import msgspec

from penstock.basics.sizes import size_from, size_text
from penstock.errors import BadSetting
from penstock.gpus.nvml import NvmlGpu
from penstock.linux.cgroups import memory_limit_bytes
from penstock.runs.record import GroupPlan, MachinePlan, RunPlan, RunRecord
from penstock.runs.spec.checks import Gpus

_HOW = {"out_of_memory": "ran out of memory", "timed_out": "timed out", "killed": "was killed", "lost": "was lost"}
"""How a run ended that did not finish, where the status does not say it in a sentence."""


class Names:
    """What names mean: all runs of that name, and those of all groups of that name.

    To a run of a group that is there in several modes, that group is there in the run's own mode only.
    """

    def __init__(self, groups: Sequence[GroupPlan]) -> None:
        self.groups = groups
        self.runs = [(place, run) for place, group in enumerate(groups) for run in group.runs]
        """All runs, each with the place of its group."""

    def meant(self, name: str, by: int) -> list[int]:
        """Return the places, in ``runs``, of those that a name means to the group at a place."""
        names = [group.name for group in self.groups]
        return [
            place
            for place, (group, run) in enumerate(self.runs)
            if name in (run.name, names[group]) and (group == by or names[group] != names[by])
        ]

    def before(self) -> list[list[int]]:
        """Return, for each run, the places of those that it comes after."""
        keys = [(group, run.after) for group, run in self.runs]
        known = {
            (group, after): sorted({place for name in after for place in self.meant(name, group)})
            for group, after in dict.fromkeys(keys)
        }
        return [known[key] for key in keys]


def runs_before(groups: Sequence[Sequence[RunRecord]]) -> dict[str, list[str]]:
    """Return, for each run of some groups, the runs that it comes after, by ids."""
    ids = [record.id for group in groups for record in group]
    plans = [GroupPlan(name=group[0].group, runs=tuple(record.plan for record in group)) for group in groups]
    return {id: [ids[place] for place in places] for id, places in zip(ids, Names(plans).before(), strict=True)}


def after_unfinished(name: str, status: str) -> str:
    """Return why a run never began that comes after one of this name, which ended with this status."""
    return f"never began: it comes after {name}, which {_HOW.get(status, status)}"


def check_after(groups: Sequence[GroupPlan], where: Sequence[Mapping[str, str]], in_turn: str) -> None:
    """Check that each run of a file's groups can begin once those that it comes after have ended.

    ``where`` says of each run where each name of its ``after`` stands, as errors begin. ``in_turn`` has the groups
    run one after the other: "penstock run", or a key; empty if nothing has.
    """
    names = Names(groups)
    by_group = zip(names.runs, where, strict=True)
    written = {(name, group): at for (group, _), places in by_group for name, at in places.items()}
    for (name, group), at in written.items():
        if not (meant := names.meant(name, group)):
            there = {word for place, run in names.runs for word in (run.name, groups[place].name)}
            near = "".join(f"; did you mean {each!r}?" for each in difflib.get_close_matches(name, there, 1))
            raise BadSetting(f"{at}: there is no run or group {name!r}{near}")
        if in_turn and (later := names.runs[meant[-1]][0]) > group:
            instead = ", or use penstock schedule run" if in_turn == "penstock run" else ""
            raise BadSetting(
                f"{at}: {name!r} is in group {groups[later].name!r}, which {in_turn} starts later: put that group "
                f"first{instead}"
            )
    try:
        TopologicalSorter(dict(enumerate(names.before()))).prepare()
    except CycleError as error:
        circle: list[int] = error.args[1]
        said = " -> ".join(names.runs[place][1].name for place in circle)
        raise BadSetting(f"{next(iter(where[circle[0]].values()))}: these wait for each other: {said}") from None


Room = dict[str, int]
"""What there is to be taken: number of "gpus", memory in bytes of each GPU by UUID, and of the "host"."""


class MachineTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stands below ``machine``."""

    gpus: Annotated[int, msgspec.Meta(ge=0)] | list[str] | None = None
    cores: Annotated[float, msgspec.Meta(gt=0, le=1e6)] | None = None
    memory: str = ""
    objective: str = "makespan"
    simulated: bool = False
    groups: str = ""


def needs(run: RunPlan, room: Room) -> Room:
    """Return what a run takes; of all GPUs that it may use, where it is not known which it uses."""
    named = run.devices or (() if run.gpus == 0 else room)
    memories = [name for name in named if name in room and name not in ("gpus", "host")] or ["host"]
    memory_bytes = run.memory_bytes
    of_memory = {name: min(memory_bytes, room[name]) for name in memories} if memory_bytes else {}
    return ({"gpus": run.gpus} if run.gpus else {}) | of_memory


class SpecMachine:
    """What a file says of the machine, and what its runs may ask of it."""

    def __init__(self, path: Path, table: MachineTable, gpus: Gpus, *, is_obeyed: bool = True) -> None:
        where = partial("{}.{}".format, f"{path}: machine")
        if table.objective not in ("makespan", "jct"):
            raise BadSetting(f"{where('objective')}={table.objective!r}: there are makespan and jct")
        if table.groups not in ("", "in turn"):
            raise BadSetting(f"{where('groups')}={table.groups!r}: leave it out, or write: in turn")
        if table.simulated and (not isinstance(table.gpus, int) or table.gpus < 1):
            raise BadSetting(f"{where('simulated')}: gpus must say how many GPUs these are")
        self.gpus = gpus  # GPUs that ``penstock run`` sees
        self.simulates = table.simulated and is_obeyed  # whether runs' GPUs are numbers: ``penstock run`` has none
        self.room: Room = {}
        """What runs may take together; empty as long as none was checked that says what it needs."""
        self.plan = MachinePlan(
            gpus=self._gpus(where("gpus"), table),
            cores=table.cores,
            memory_bytes=size_from(where("memory"), table.memory) if table.memory else None,
            objective=table.objective,
            simulated=table.simulated,
            in_turn=bool(table.groups),
        )
        """The table ``machine``."""

    def _gpus(self, where: str, table: MachineTable) -> tuple[str, ...] | int | None:
        if isinstance(table.gpus, list):
            return self.gpus.devices(where, table.gpus) or 0
        number = table.gpus if table.simulated else self.gpus.count(table.gpus)
        if not number or table.simulated or self.gpus.elsewhere:
            return number
        try:
            there = len(self.gpus.seen(where))
        except BadSetting as error:
            raise BadSetting(f"{error}; simulated: true is for GPUs that are not there") from None
        if number > there:
            raise BadSetting(
                f"{where}={number}: {there} can be used; simulated: true is for GPUs that are not there"
            )
        return number

    def devices(self, what: str, names: Sequence[str]) -> tuple[str, ...]:
        """Return the GPUs that a run names: their UUIDs, or numbers of simulated ones."""
        if not self.simulates:
            return self.gpus.devices(what, names)
        assert isinstance(self.plan.gpus, int)
        numbers = tuple(str(int(name)) if name.isdecimal() else name for name in names)
        for name in numbers:
            if not name.isdecimal() or int(name) >= self.plan.gpus:
                raise BadSetting(f"{what}: there is no GPU {name!r}; simulated are 0 to {self.plan.gpus - 1}")
            if numbers.count(name) > 1:
                raise BadSetting(f"{what}: {name!r} is there twice")
        return numbers

    def check(self, where: Callable[[str], str], run: RunPlan) -> None:
        """Check that a run has a place on the machine; ``where`` returns where its key stands, as errors begin."""
        named = self.plan.gpus
        if isinstance(named, int) and run.devices and not self.plan.simulated:
            named = tuple(gpu.uuid for gpu in self.gpus.seen(where("devices"))[:named])
        if isinstance(named, tuple) and (others := {*run.devices} - {*named}):
            there = ", ".join(named) or "none"
            raise BadSetting(f"{where('devices')}: {min(others)} is not among machine.gpus ({there})")
        if run.gpus is not None and run.devices and run.gpus != len(run.devices):
            raise BadSetting(f"{where('gpus')}={run.gpus} beside devices, which are {len(run.devices)}")
        if (not run.gpus and not run.memory_bytes) or self.gpus.elsewhere:
            return
        if named is None and run.gpus:
            self.gpus.seen(where("gpus"))
        self.room = room = self.room or self._room()
        if (run.gpus or 0) > room["gpus"]:
            raise BadSetting(f"{where('gpus')}={run.gpus}: the machine has {room['gpus']}")
        most = max(room[name] for name in needs(run, room) if name != "gpus") if run.memory_bytes else 0
        if (run.memory_bytes or 0) > most:
            limit = "machine.memory is" if self.plan.memory_bytes else "the machine has"
            raise BadSetting(f"{where('memory')}={size_text(run.memory_bytes or 0)}: {limit} {size_text(most)}")

    def _room(self) -> Room:
        import psutil  # 5 ms, for files that say what runs need

        named, memory_bytes = self.plan.gpus, self.plan.memory_bytes
        shown: list[NvmlGpu] = []
        if named != 0 and not self.plan.simulated:
            with suppress(BadSetting):  # there is none: memory is the host's
                shown = self.gpus.seen("")
        if isinstance(named, tuple):
            shown = [gpu for gpu in shown if gpu.uuid in named]
        host = min(psutil.virtual_memory().available, memory_limit_bytes())
        return {
            "gpus": named if isinstance(named, int) else len(shown),
            "host": memory_bytes if memory_bytes and not shown else host,
            **{gpu.uuid: memory_bytes or gpu.memory_bytes for gpu in shown},
        }
