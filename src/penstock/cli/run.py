"""``penstock run``: start training runs, and wait for them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from penstock.runs.plan import GroupPlan
    from penstock.runs.record import RunRecord
    from penstock.runs.store import Store


def run(
    words: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND", help="A script (*.py) or a command; what comes after is its own."),
    ],
    repeat: Annotated[int, typer.Option("-n", "--repeat", min=1, help="Number of runs.")] = 1,
    name: Annotated[str, typer.Option(help="Name of the run, instead of the script's.")] = "",
    group: Annotated[str, typer.Option(help="Name of the group, instead of the run's.")] = "",
    mode: Annotated[
        str, typer.Option(metavar="MODE", help="alone: one after the other; plain: all at once (unless set).")
    ] = "",
    time_limit: Annotated[
        str, typer.Option(metavar="TIME", help="Time after which a run is ended: 90s, 10m, 1h30m.")
    ] = "",
    store: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the store, instead of $PENSTOCK_STORE.")
    ] = None,
    detached: Annotated[
        bool, typer.Option("--detach", help="Print the runs' ids and return; they go on by themselves.")
    ] = False,
) -> None:
    """Run a script or a command, and keep what it was, what it printed and how it ended."""
    from penstock.runs.command_line import plan, seconds_from
    from penstock.runs.store import Store

    groups = plan(
        words,
        repeat=repeat,
        name=name,
        group=group,
        mode=mode,
        time_limit_s=seconds_from("--time-limit", time_limit) if time_limit else None,
    )
    with Store.open(store) as opened:
        records = add(opened, groups)
        if not detached:
            sys.exit(_run(opened, records))
    _detach(opened.folder, records)


def add(store: Store, groups: list[GroupPlan]) -> list[list[RunRecord]]:
    """Add groups to the store, where secrets are masked; return their runs as they are to be started."""
    import msgspec

    from penstock.runs.launch.secrets import masked_group

    return [
        [
            msgspec.structs.replace(record, plan=run)
            for record, run in zip(store.add(masked_group(group)), group.runs, strict=True)
        ]
        for group in groups
    ]


def _run(store: Store, records: list[list[RunRecord]]) -> int:
    """Run all; return the exit code: the first one's that did not finish."""
    from penstock.runs.launch.launcher import Launcher

    ended = Launcher(store, records).run()
    if len(ended) > 1:
        from penstock.cli.ended_table import ended_table
        from penstock.terminal import console

        console().print(ended_table(ended), soft_wrap=True)
    elif ended[0].status not in ("finished", "failed"):
        typer.echo(f"penstock: run {ended[0].id}: {ended[0].status}: {ended[0].reason}", err=True)
    return next((record.exit_code or 1 for record in ended if record.status != "finished"), 0)


def _detach(folder: Path, records: list[list[RunRecord]]) -> None:
    from penstock.runs.launch.launcher import Launcher, detach
    from penstock.runs.store import Store

    def run() -> None:
        with Store.open(folder) as store:
            for group in records:
                store.own(group[0].group_id)
            Launcher(store, records, orphans="keep").run()

    detach(run)
    for group in records:
        for record in group:
            typer.echo(record.id)
