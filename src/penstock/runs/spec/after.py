"""Which runs a run comes after: what the names in ``after`` mean."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from penstock.errors import BadSetting
from penstock.runs.record import GroupPlan, RunRecord

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
