"""``penstock runs compare``: whether runs gain by running together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.basics.terminal import say
from penstock.cli.runs_options import AsJson, StoreFolder, print_json
from penstock.errors import NoSuchRun
from penstock.runs.store import Store

if TYPE_CHECKING:
    from penstock.runs.record import RunRecord


def compare(
    groups: Annotated[list[str], typer.Argument(metavar="GROUP...", help="Names or ids of groups.")],
    as_json: AsJson = False,
    store: StoreFolder = None,
) -> None:
    """Compare groups of runs: time, epochs, throughput, CPU, energy, wait for data, and what to change first.

    Of groups of one name, the newest of each mode is taken, and stderr names the others.
    """
    from penstock.runs.compare import compare as compared

    with Store.open(store) as opened:
        found: dict[str, list[RunRecord]] = {}
        for group in groups:
            found |= _newest(opened, group)
        comparison = compared(found, lambda run: opened.series(run.id))
    if as_json:
        print_json(comparison)
        return
    from penstock.basics.terminal import console
    from penstock.cli.runs_table import comparison_page

    console().print(comparison_page(comparison), soft_wrap=True)


def _newest(store: Store, group: str) -> dict[str, list[RunRecord]]:
    """Return the runs of a group, by its id; of several of one name, those of the newest of each mode."""
    runs = store.runs(group)
    if not runs:
        raise NoSuchRun(f"the store {store.folder} has no group {group!r}; `penstock runs ls` shows those it has")
    newest = {run.mode: run.group_id for run in runs}
    for mode, id in newest.items():
        if older := list(dict.fromkeys(run.group_id for run in runs if run.mode == mode and run.group_id != id)):
            say(
                f"{group!r} ({mode}) was started {len(older) + 1} times: the newest, {id}, is compared. "
                f"To compare others, give their ids: {', '.join(reversed(older))}"
            )
    return {id: [run for run in runs if run.group_id == id] for id in newest.values()}
