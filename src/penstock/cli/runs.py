"""``penstock runs``: the runs that the store keeps."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.basics.sizes import size_from, size_text
from penstock.basics.terminal import say
from penstock.cli.command import (
    AsJson,
    AsLatex,
    Command,
    Experiment,
    Group,
    Interval,
    StoreFolder,
    option,
    print_json,
    print_latex,
    watch,
)
from penstock.cli.command import show as show_or_json
from penstock.cli.runs_figure import figure
from penstock.cli.runs_logs import logs
from penstock.cli.runs_notes import fields, note, restore
from penstock.cli.runs_words import All, Groups, Named, newest, of_group, words
from penstock.errors import BadSetting, StoreUnusable
from penstock.runs.record import ENDED, STATUSES
from penstock.runs.store import Store
from penstock.runs.store.removal import Removed

app = typer.Typer(cls=Group, help="List, show, compare, stop and remove runs.", no_args_is_help=True)
for verb in (figure, logs, note, restore):
    app.command(cls=Command)(verb)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@app.command(cls=Command)
def ls(
    group: Annotated[str | None, option("Only groups of this name or id.", metavar="GROUP")] = None,
    status: Annotated[str | None, option(f"Only {', '.join(STATUSES)}.", metavar="STATUS")] = None,
    live: Annotated[
        bool, option("--watch", "Refresh until Ctrl-C: running ones, with CPU, memory, wait for data, log.")
    ] = False,
    interval: Interval = 1.0,
    archived: Annotated[bool, option("--archived", "Also those that are archived.")] = False,
    as_latex: AsLatex = False,
    as_json: AsJson = False,
    store: StoreFolder = None,
) -> None:
    """List runs, the newest last."""
    from penstock.cli.runs_table import runs_table
    from penstock.runs.figures import MEMORY, memory_bytes

    if as_latex and (live or as_json):
        raise BadSetting(f"--latex: not with {'--watch' if live else '--json'}")
    if status is not None and status not in STATUSES:
        raise BadSetting(f"--status {status!r}: give one of {', '.join(STATUSES)}")
    with Store.open(store, to_read=True) as opened:
        found = of_group(opened, group)
        if live:
            from penstock.cli.runs_table import Looks

            watch(partial(Looks(opened).table, group, status), interval, as_json)
        every = [run for run in found if status in {None, run.status}]
        found = [run for run in every if archived or not run.archived]
        memory: dict[str, float | None] = {}
        for run in found:
            try:
                memory[run.id] = memory_bytes([opened.series(run.id, MEMORY.__contains__)])
            except StoreUnusable as error:  # the others stand
                memory[run.id] = None
                say(f"run {run.id}: {error}")
    if as_latex:
        print_latex(runs_table(found, memory))
    else:
        more = [{"memory_bytes": memory[run.id], "parameters": run.plan.settings} for run in found]
        rows = [fields(run) | its for run, its in zip(found, more, strict=True)]
        show_or_json(as_json, rows, lambda: runs_table(found, memory))
    if hidden := len(every) - len(found):
        say(f"archived runs that are left out: {hidden:,}; --archived lists them, too")


@app.command(cls=Command)
def show(named: Named, as_json: AsJson = False, store: StoreFolder = None) -> None:
    """Show runs: command, parameters, environment, where the time goes, and the series that they recorded.

    JSON is an object for one run, and a list for several.
    """
    from penstock.cli.runs_show import facts_of, run_pages

    with Store.open(store, to_read=True) as opened:
        known = facts_of(opened, opened.named(named))
    as_fields = [each.fields() for each in known]
    show_or_json(as_json, as_fields if len(known) > 1 else as_fields[0], lambda: run_pages(known))


@app.command(cls=Command)
def compare(
    groups: Groups,
    together: All = False,
    as_latex: AsLatex = False,
    as_json: AsJson = False,
    store: StoreFolder = None,
) -> None:
    """Compare groups of runs: time, throughput, CPU, energy, wait for data, and what to change first.

    If several groups have one name, the newest of each mode is compared, and stderr lists the others; or --all.
    """
    from penstock.cli.runs_table import comparison_page, comparison_table
    from penstock.runs.compare import compare as compared

    if as_latex and as_json:
        raise BadSetting("--latex: not with --json")
    with Store.open(store, to_read=True) as opened:
        comparison = compared(newest(opened, groups, together), lambda run: opened.series(run.id))
    if as_latex:
        print_latex(comparison_table(comparison))
    else:
        show_or_json(as_json, comparison, lambda: comparison_page(comparison))


@app.command(cls=Command)
def stop(
    named: Named,
    as_json: AsJson = False,
    store: StoreFolder = None,
) -> None:
    """End runs, wherever they were started: SIGTERM, and SIGKILL 5 s later."""
    from penstock.runs.stop import stop as end

    done: list[dict[str, Any]] = []
    with Store.open(store, to_read=True) as opened:
        for before, now in end(opened, [run.id for run in opened.named(named)]):
            done.append({"id": now.id, "name": now.name, "before": before.status, "status": now.status})
            status = f"had ended already: {now.status}" if before.status in ENDED else now.status
            if not as_json:
                typer.echo(f"Run {now.id} ({now.name}): {status}.")
    if as_json:
        print_json(done)


@app.command(cls=Command)
def rm(
    named: Annotated[list[str], words("RUN|GROUP...", "Ids of runs that have ended, names or ids of groups.")],
    force: Annotated[
        bool,
        option("--force", "Also remove runs of other machines or containers, though they may still go on."),
    ] = False,
    as_json: AsJson = False,
    store: StoreFolder = None,
) -> None:
    """Remove runs and their files from the store."""
    with Store.open(store, to_read=True) as opened:
        _print_removed(opened.remove([run.id for run in opened.named(named)], force=force), as_json)


@app.command(cls=Command)
def prune(
    keep: Annotated[str | None, option("Remove runs that ended longer ago: 90d, 12h, 2w.", metavar="AGE")] = None,
    most: Annotated[str | None, option("--max", "Disk space that runs may take: 20GB.", metavar="SIZE")] = None,
    dry_run: Annotated[bool, option("--dry-run", "Remove nothing; list what would be removed.")] = False,
    as_json: AsJson = False,
    store: StoreFolder = None,
) -> None:
    """Remove old runs that have ended."""
    if keep is None and most is None:
        raise BadSetting("give --keep, such as 90d, or --max, such as 20GB, or both")
    keep_s = None if keep is None else _seconds_from(keep)
    max_bytes = None if most is None else size_from("--max", most)
    with Store.open(store, to_read=True) as opened:
        _print_removed(opened.prune(keep_s=keep_s, max_bytes=max_bytes, dry_run=dry_run), as_json, dry_run)


@app.command(cls=Command)
def export(
    named: Annotated[
        list[str],
        words("RUN|GROUP... FILE", "Ids of runs, names or ids of groups; then a file in .csv or .parquet."),
    ],
    as_json: AsJson = False,
    store: StoreFolder = None,
) -> None:
    """Write all series of runs into a CSV or Parquet file, a line for each point, with the run's parameters."""
    from penstock.runs.export import export as write

    *chosen, file = named
    if not chosen:
        raise BadSetting(f"give runs or groups before {file!r}; `penstock runs ls` shows them")
    with Store.open(store, to_read=True) as opened:
        runs = opened.named(chosen)
        points = write(opened, runs, Path(file))
        for damage in filter(None, (opened.damage(run.id) for run in runs)):
            say(damage)
    if as_json:
        print_json({"file": file, "points": points, "runs": [run.id for run in runs]})
    else:
        typer.echo(f"Wrote {points:,} points into {file}.")


@app.command(cls=Command)
def push(
    mlflow: Annotated[
        str, option("MLflow server: http://host:5000.", metavar="URI", envvar="MLFLOW_TRACKING_URI")
    ],
    named: Annotated[
        list[str] | None, words("[RUN|GROUP...]", "Ids of runs, names or ids of groups; all unless given.")
    ] = None,
    experiment: Experiment = "",
    as_json: AsJson = False,
    store: StoreFolder = None,
) -> None:
    """Push runs that have ended to an MLflow server; those that it has are skipped."""
    from penstock.basics.packages import require

    require("--mlflow", "mlflow", "mlflow")
    from penstock.runs.push.to_mlflow import Push

    with Store.open(store, to_read=True) as opened:
        chosen = opened.named(named) if named else opened.runs()
        found = [run for run in chosen if run.status in ENDED]
        push = Push(opened, mlflow, experiment)
        for group in dict.fromkeys(run.group_id for run in found):
            push.runs([run for run in found if run.group_id == group])
    if as_json:
        print_json({"points": push.points, "files": push.files, "runs": [run.id for run in found]})
    else:
        typer.echo(f"{push.points:,} points and {push.files:,} files of {len(found):,} runs were new there.")
    if left := len(chosen) - len(found):
        say(f"runs that have not ended, and are left out: {left:,}")


def _print_removed(removed: list[Removed], as_json: bool, dry_run: bool = False) -> None:
    from penstock.basics.terminal import printable

    if as_json:
        print_json([fields(run) | {"bytes": nbytes, "removed": not dry_run} for run, nbytes in removed])
        return
    for run, nbytes in removed:
        typer.echo(f"{run.id}  {printable(run.name)} of {printable(run.group)}, {run.status}, {size_text(nbytes)}")
    freed = size_text(sum(nbytes for _, nbytes in removed))
    count = f"{len(removed):,} run{'' if len(removed) == 1 else 's'}"
    typer.echo(f"{count} would be removed: {freed}." if dry_run else f"{count} removed: {freed} are free again.")


def _seconds_from(age: str) -> float:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*", age)
    if not match:
        raise BadSetting(f"--keep {age!r}: give a number with s, m, h, d or w, such as 90d")
    return float(match[1]) * _SECONDS[match[2]]
