"""``penstock run``: start training runs, and wait for them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from penstock.runs.plan import GroupPlan
    from penstock.runs.record import RunRecord
    from penstock.runs.spec.open import Spec
    from penstock.runs.store import Store


def run(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND",
            help="A script (*.py), a command, or a spec (*.yaml, *.csv); what comes after is its own.",
        ),
    ],
    repeat: Annotated[int, typer.Option("-n", "--repeat", min=1, help="Number of runs, of each combination.")] = 1,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUES", help="Values for {NAME} in the command: lr=0.1,0.03; more than once."),
    ] = None,
    random: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Combinations drawn from the grid; all unless given.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the draws.")] = 0,
    name: Annotated[str, typer.Option(help="Name of the run, instead of the script's.")] = "",
    group: Annotated[str, typer.Option(help="Name of the group, instead of the run's.")] = "",
    mode: Annotated[
        str, typer.Option(metavar="MODE", help="alone: one after the other; plain: all at once (unless set).")
    ] = "",
    time_limit: Annotated[
        str, typer.Option(metavar="TIME", help="Time after which a run is ended: 90s, 10m, 1h30m.")
    ] = "",
    listeners: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="What is sampled: proc,host; all unless given, or none."),
    ] = None,
    store: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the store, instead of $PENSTOCK_STORE.")
    ] = None,
    detached: Annotated[
        bool, typer.Option("--detach", help="Print the runs' ids and return; they go on by themselves.")
    ] = False,
) -> None:
    """Run a script or a command, and keep what it was, what it printed and how it ended."""
    from penstock.runs.command_line import SPECS, listeners_from, seconds_from

    options: dict[str, Any] = {
        "repeat": repeat,
        "grid": tuple(grid or ()),
        "take": random,
        "seed": seed,
        "name": name,
        "group": group,
        "mode": mode,
        "time_limit_s": seconds_from("--time-limit", time_limit) if time_limit else None,
        "listeners": None if listeners is None else listeners_from("--listeners", listeners),
    }
    if words[0].endswith(SPECS):
        _refuse_beside_spec(words, options)
        with _spec(words[0]) as spec:
            _start(spec.groups, store, tell=spec.tell, detached=detached)
    else:
        from penstock.runs.spec.from_words import group_of

        _start([group_of(words, **options)], store, tell=None, detached=detached)


def _refuse_beside_spec(words: list[str], options: dict[str, Any]) -> None:
    """Refuse what a spec says itself.

    Raises:
        BadSetting: something else was given.
    """
    from penstock.errors import BadSetting

    nothing: dict[str, Any] = {"repeat": 1, "grid": (), "seed": 0, "name": "", "group": "", "mode": ""}
    flags = {"take": "random", "time_limit_s": "time-limit"}
    given = [f"--{flags.get(name, name)}" for name, value in options.items() if value != nothing.get(name)]
    if words[1:] or given:
        raise BadSetting(
            f"{' '.join([*given, *words[1:]])} beside {words[0]}: a spec says all of its runs; write it there"
        )


def _spec(path: str) -> Spec:
    """Open a spec, and say what it asks for that is not done."""
    from penstock.runs.spec.open import Spec

    spec = Spec(Path(path))
    for sentence in spec.left_out:
        typer.echo(f"penstock: {sentence}", err=True)
    return spec


def _start(
    groups: list[GroupPlan], folder: Path | None, *, tell: Callable[[int, RunRecord], None] | None, detached: bool
) -> None:
    """Run groups, and exit as they did; or leave them to a process of their own."""
    from penstock.runs.launch.launcher import Launcher, detach
    from penstock.runs.store import Store

    if not groups:
        typer.echo("Nothing is left to run: all runs of this file have ended.")
        return
    listeners = [group.listeners for group in groups]
    with Store.open(folder) as opened:
        records = add(opened, groups)
        if not detached:
            sys.exit(_exit_code(Launcher(opened, records, listeners=listeners, tell=tell).run()))

    def run() -> None:
        with Store.open(opened.folder) as store:
            for group in records:
                store.own(group[0].group_id)
            Launcher(store, records, listeners=listeners, tell=tell, orphans="keep").run()

    detach(run)
    for group in records:
        for record in group:
            typer.echo(record.id)


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


def _exit_code(ended: list[RunRecord]) -> int:
    """Show how runs ended; return the exit code of the first that did not finish, else 0."""
    if len(ended) > 1:
        from penstock.cli.runs_table import ended_table
        from penstock.terminal import console

        console().print(ended_table(ended), soft_wrap=True)
    elif ended[0].status not in ("finished", "failed"):
        typer.echo(f"penstock: run {ended[0].id}: {ended[0].status}: {ended[0].reason}", err=True)
    return next((record.exit_code or 1 for record in ended if record.status != "finished"), 0)
