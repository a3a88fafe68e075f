"""``penstock runs``: the runs that the store keeps."""

from __future__ import annotations

import re
import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.basics.sizes import size_from, size_text
from penstock.basics.terminal import say
from penstock.cli.command import AsJson, Command, Experiment, Group, Interval, StoreFolder, argument, option, watch
from penstock.cli.command import show as show_or_json
from penstock.errors import BadSetting, NoSuchRun
from penstock.runs.keeper.output import read_output
from penstock.runs.record import ENDED, STATUSES, RunRecord
from penstock.runs.store import Store
from penstock.runs.store.store import Removed

app = typer.Typer(cls=Group, help="List, show, compare, stop and remove runs.", no_args_is_help=True)

Id = Annotated[str, argument("ID", "Id of the run; its first letters are enough.")]
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_POLL_S = 0.2


@app.command(cls=Command)
def ls(
    group: Annotated[str | None, option("Only groups of this name or id.", metavar="GROUP")] = None,
    status: Annotated[str | None, option(f"Only {', '.join(STATUSES)}.", metavar="STATUS")] = None,
    live: Annotated[
        bool, option("--watch", "Refresh until Ctrl-C: running ones, with CPU, memory, wait for data, log.")
    ] = False,
    interval: Interval = 1.0,
    archived: Annotated[bool, option("--archived", "Also those that are archived.")] = False,
    as_json: AsJson = False,
    store: StoreFolder = None,
) -> None:
    """List runs, the newest last."""
    from penstock.cli.runs_table import runs_table

    if status is not None and status not in STATUSES:
        raise BadSetting(f"--status {status!r}: give one of {', '.join(STATUSES)}")
    with Store.open(store, to_read=True) as opened:
        found = _of_group(opened, group)
        if live:
            from penstock.cli.runs_table import Looks

            watch(partial(Looks(opened).table, group, status), interval, as_json)
    every = [run for run in found if status in {None, run.status}]
    found = [run for run in every if archived or not run.archived]
    show_or_json(as_json, [_fields(run) for run in found], lambda: runs_table(found))
    if hidden := len(every) - len(found):
        say(f"archived runs that are left out: {hidden:,}; --archived lists them, too")


@app.command(cls=Command, hidden=True)
def top(interval: Interval = 1.0, store: StoreFolder = None) -> None:
    """Show the runs that go on, live, until Ctrl-C: ``penstock runs ls --watch``."""
    ls(live=True, interval=interval, store=store)


@app.command(cls=Command)
def show(id: Id, as_json: AsJson = False, store: StoreFolder = None) -> None:
    """Show a run: command, parameters, environment, where its time goes, and the series that it recorded."""
    import numpy as np

    from penstock.cli.runs_table import run_page
    from penstock.runs.compare import group_figures

    with Store.open(store, to_read=True) as opened:
        run = opened.run(id)
        found = opened.series(run.id)
        begun = [each for each in opened.runs(run.group_id) if each.began is not None]
        beside = begun if run.began is not None else [run]
        group = group_figures(beside, lambda each: found if each.id == run.id else opened.series(each.id))
        folder, environment = opened.folder_of(run.id), opened.environment(run.id)
    with np.errstate(invalid="ignore"):  # infinity less infinity
        series = {
            name: {"last": float(values[-1]), "mean": float(values.mean()), "points": len(values)}
            for name, (_, values) in sorted(found.items())
        }
    figures, advice = next(each for each in group.runs if each.id == run.id), group.advice.get(run.id)
    known = {
        **_fields(run),
        "plan": run.plan,
        "parameters": run.plan.parameters,
        "environment": environment,
        "series": series,
        "parts": figures.parts,
        "advice": advice.text if advice else "",
        "folder": str(folder),
    }
    show_or_json(as_json, known, lambda: run_page(run, environment, series, folder, figures, advice))


@app.command(cls=Command)
def compare(
    groups: Annotated[list[str], argument("GROUP...", "Names or ids of groups.")],
    as_json: AsJson = False,
    store: StoreFolder = None,
) -> None:
    """Compare groups of runs: time, throughput, CPU, energy, wait for data, and what to change first.

    If several groups have one name, the newest of each mode is compared, and stderr lists the others.
    """
    from penstock.cli.runs_table import comparison_page
    from penstock.runs.compare import compare as compared

    with Store.open(store, to_read=True) as opened:
        found: dict[str, list[RunRecord]] = {}
        for group in groups:
            found |= _newest(opened, group)
        comparison = compared(found, lambda run: opened.series(run.id))
    show_or_json(as_json, comparison, lambda: comparison_page(comparison))


@app.command(cls=Command)
def logs(
    id: Id,
    follow: Annotated[bool, option("-f", "--follow", "Go on until the run has ended.")] = False,
    store: StoreFolder = None,
) -> None:
    """Print a run's output."""
    with Store.open(store, to_read=True) as opened:
        run = opened.run(id)
        path = opened.folder_of(run.id) / "output"
        while follow and not path.exists() and run.status not in ENDED:
            time.sleep(_POLL_S)
            run = opened.run(run.id)
        if not path.exists():
            typer.echo(f"Run {run.id} ({run.status}) has printed nothing.", err=True)
            return
        at = 0
        with path.open("rb") as file:
            while True:
                run = opened.run(run.id)  # before the rest is read: what it prints last is read, too
                text, at = read_output(file, at)
                sys.stdout.buffer.write(text)
                sys.stdout.buffer.flush()
                if not follow or run.status in ENDED:
                    return
                time.sleep(_POLL_S)


@app.command(cls=Command)
def stop(
    words: Annotated[
        list[str], argument("RUN|GROUP...", "Ids of runs, or their first letters; names or ids of groups.")
    ],
    store: StoreFolder = None,
) -> None:
    """End runs, wherever they were started: SIGTERM, and SIGKILL 5 s later."""
    from penstock.runs.stop import stop as end

    with Store.open(store, to_read=True) as opened:
        for before, now in end(opened, [run.id for run in opened.named(words)]):
            status = f"had ended already: {now.status}" if before.status in ENDED else now.status
            typer.echo(f"Run {now.id} ({now.name}): {status}.")


@app.command(cls=Command)
def rm(
    words: Annotated[list[str], argument("RUN|GROUP...", "Ids of runs that have ended, names or ids of groups.")],
    force: Annotated[
        bool,
        option("--force", "Also remove runs of other machines or containers, though they may still go on."),
    ] = False,
    store: StoreFolder = None,
) -> None:
    """Remove runs and their files from the store."""
    with Store.open(store, to_read=True) as opened:
        _print_removed(opened.remove([run.id for run in opened.named(words)], force=force))


@app.command(cls=Command)
def prune(
    keep: Annotated[str | None, option("Remove runs that ended longer ago: 90d, 12h, 2w.", metavar="AGE")] = None,
    most: Annotated[str | None, option("--max", "Disk space that runs may take: 20GB.", metavar="SIZE")] = None,
    dry_run: Annotated[bool, option("--dry-run", "Remove nothing; list what would be removed.")] = False,
    store: StoreFolder = None,
) -> None:
    """Remove old runs that have ended."""
    if keep is None and most is None:
        raise BadSetting("give --keep, such as 90d, or --max, such as 20GB, or both")
    keep_s = None if keep is None else _seconds_from(keep)
    max_bytes = None if most is None else size_from("--max", most)
    with Store.open(store, to_read=True) as opened:
        _print_removed(opened.prune(keep_s=keep_s, max_bytes=max_bytes, dry_run=dry_run), dry_run)


@app.command(cls=Command)
def export(
    words: Annotated[
        list[str], argument("RUN|GROUP... FILE", "Ids of runs, names or ids of groups; then a file in .csv.")
    ],
    store: StoreFolder = None,
) -> None:
    """Write all series of runs into a CSV file, a line for each point, with the run's parameters."""
    *names, file = words
    if not names:
        raise BadSetting(f"give runs or groups before {file!r}; `penstock runs ls` shows them")
    with Store.open(store, to_read=True) as opened:
        points = opened.export(opened.named(names), Path(file))
    typer.echo(f"Wrote {points:,} points into {file}.")


@app.command(cls=Command)
def push(
    mlflow: Annotated[
        str, option("MLflow server: http://host:5000.", metavar="URI", envvar="MLFLOW_TRACKING_URI")
    ],
    words: Annotated[
        list[str] | None, argument("[RUN|GROUP...]", "Ids of runs, names or ids of groups; all unless given.")
    ] = None,
    experiment: Experiment = "",
    store: StoreFolder = None,
) -> None:
    """Push runs to an MLflow server; what it already has is skipped."""
    from penstock.basics.packages import require

    require("--mlflow", "mlflow", "mlflow")
    from penstock.runs.push.to_mlflow import Push

    with Store.open(store, to_read=True) as opened:
        found = opened.named(words) if words else opened.runs()
        push = Push(opened, mlflow, experiment)
        for group in dict.fromkeys(run.group_id for run in found):
            push.runs([run for run in found if run.group_id == group])
    typer.echo(f"{push.points:,} points and {push.files:,} files of {len(found):,} runs were new there.")


@app.command(cls=Command)
def note(
    words: Annotated[
        list[str], argument("RUN|GROUP...", "Ids of runs, or their first letters; names or ids of groups.")
    ],
    text: Annotated[str | None, option("What is worth knowing of them.", metavar="TEXT")] = None,
    tag: Annotated[list[str] | None, option("A word to find them again; repeatable.", metavar="WORD")] = None,
    untag: Annotated[list[str] | None, option("A tag that they lose; repeatable.", metavar="WORD")] = None,
    archive: Annotated[
        bool | None, option("--archive/--unarchive", "Whether lists leave them out from now on.")
    ] = None,
    as_json: AsJson = False,
    store: StoreFolder = None,
) -> None:
    """Write a note or tags to runs, or archive them."""
    from penstock.cli.runs_table import runs_table
    from penstock.runs.store.notes import Change

    change = Change(note=text, tag=tuple(tag or ()), untag=tuple(untag or ()), archived=archive)
    if change == Change():
        raise BadSetting("give --text, --tag, --untag, --archive or --unarchive")
    with Store.open(store, to_read=True) as opened:
        changed = opened.annotate([run.id for run in opened.named(words)], change)
    show_or_json(as_json, [_fields(run) for run in changed], lambda: runs_table(changed))


@app.command(cls=Command)
def restore(
    words: Annotated[
        list[str] | None, argument("[RUN|GROUP...]", "Whole ids of runs, names or ids of groups.")
    ] = None,
    as_json: AsJson = False,
    store: StoreFolder = None,
) -> None:
    """Bring back runs that were deleted on the page less than a week ago; list them, unless some are named."""
    from penstock.cli.runs_table import runs_table

    with Store.open(store, to_read=True) as opened:
        found = opened.runs(deleted=True)
        if words:
            names = {name for run in found for name in (run.id, run.group, run.group_id)}
            if missing := sorted(set(words) - names):
                raise NoSuchRun(f"no run or group {missing[0]!r} was deleted; `penstock runs restore` lists all")
            found = opened.restore([run.id for run in found if {run.id, run.group, run.group_id} & set(words)])
    none = "No run was deleted on the page within a week."
    show_or_json(as_json, [_fields(run) for run in found], lambda: runs_table(found) if found else none)


def _of_group(store: Store, group: str | None) -> list[RunRecord]:
    """Return the runs of groups of a name or id, or all.

    Raises:
        NoSuchRun: there is no such group.
    """
    runs = store.runs(group)
    if group is not None and not runs:
        raise NoSuchRun(f"the store {store.folder} has no group {group!r}; `penstock runs ls` shows those it has")
    return runs


def _newest(store: Store, group: str) -> dict[str, list[RunRecord]]:
    """Return a group's runs, by its id; if several groups have one name, the newest of each mode."""
    runs = _of_group(store, group)
    newest = {run.mode: run.group_id for run in runs}
    for mode, id in newest.items():
        if older := list(dict.fromkeys(run.group_id for run in runs if run.mode == mode and run.group_id != id)):
            say(
                f"{group!r} ({mode}) was started {len(older) + 1} times: the newest, {id}, is compared. "
                f"To compare others, give their ids: {', '.join(reversed(older))}"
            )
    return {id: [run for run in runs if run.group_id == id] for id in newest.values()}


def _fields(run: RunRecord) -> dict[str, Any]:
    names = "id name group group_id index mode status exit_code reason began seconds pid note tags archived"
    return {name: getattr(run, name) for name in names.split()}


def _print_removed(removed: list[Removed], dry_run: bool = False) -> None:
    from penstock.basics.terminal import printable

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
