"""Runs and groups as they are named on a command line, and completed there."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from penstock.basics.terminal import say
from penstock.cli.command import argument, option
from penstock.errors import NoSuchRun, PenstockError
from penstock.runs.record import RunRecord
from penstock.runs.store import Store
from penstock.runs.store.folder import chosen_folder


def _named(ctx: typer.Context, incomplete: str, groups: bool, runs: bool) -> list[tuple[str, str]]:
    """Return names and ids that begin so, and what they are, the newest first; nothing where no store is."""
    try:
        with Store.open(Path(ctx.params.get("store") or chosen_folder()), to_read=True) as store:
            there = store.runs()[::-1]
    except PenstockError:
        return []
    found: dict[str, str] = {}
    for run in there:
        if groups:
            found.setdefault(run.group, f"group ({run.mode})")
            found.setdefault(run.group_id, f"group {run.group} ({run.mode})")
        if runs:
            found[run.id] = f"{run.name} of {run.group}, {run.status}"
    # A name that a shell would split stands there by its id.
    return [(word, what) for word, what in found.items() if word.startswith(incomplete) and quote(word) == word]


def _groups(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    return _named(ctx, incomplete, groups=True, runs=False)


def _both(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    return _named(ctx, incomplete, groups=True, runs=True)


Groups = Annotated[list[str], argument("GROUP...", "Names or ids of groups.", autocompletion=_groups)]


All = Annotated[bool, option("--all", "Take all groups of one name and mode as one.")]


def words(metavar: str, text: str) -> Any:
    """Make an argument that takes runs and groups."""
    return argument(metavar, text, autocompletion=_both)


Named = Annotated[list[str], words("RUN|GROUP...", "Ids of runs, or their first letters; names or ids of groups.")]


def of_group(store: Store, group: str | None) -> list[RunRecord]:
    """Return the runs of groups of a name or id, or all."""
    runs = store.runs(group)
    if group is not None and not runs:
        of = next((each.group for each in store.runs() if each.id == group), None)
        hint = f": {group} is a run of group {of!r}" if of else "; `penstock runs ls` shows those it has"
        raise NoSuchRun(f"the store {store.folder} has no group {group!r}{hint}")
    return runs


def newest(store: Store, groups: list[str], together: bool) -> dict[str, list[RunRecord]]:
    """Return groups' runs, by ids; of groups of one name the newest of each mode, or all as one."""
    found: dict[str, list[RunRecord]] = {}
    for group in groups:
        runs = of_group(store, group)
        last = {run.mode: run.group_id for run in runs}
        for mode, id in last.items():
            same = [run for run in runs if run.mode == mode]
            older = list(dict.fromkeys(run.group_id for run in same if run.group_id != id))
            if older and not together:
                say(
                    f"{group!r} ({mode}) was started {len(older) + 1} times: the newest, {id}, is compared. --all "
                    f"takes all as one; to compare others, give their ids: {', '.join(reversed(older))}"
                )
            found[id] = same if together else [run for run in same if run.group_id == id]
    return found
