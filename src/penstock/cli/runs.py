"""``penstock runs``: the runs that the store keeps."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from penstock.basics.packages import require
from penstock.basics.terminal import listed, printable, say
from penstock.cli.command import (
    AsJson,
    AsLatex,
    Command,
    Experiment,
    Group,
    Interval,
    StoreFolder,
    counted,
    option,
    print_latex,
    watch,
)
from penstock.cli.command import show as show_or_json
from penstock.cli.runs_changes import note, prune, restore, rm, stop
from penstock.cli.runs_logs import logs
from penstock.cli.runs_words import All, Groups, Named, newest, of_group, words
from penstock.errors import BadSetting, StoreUnusable
from penstock.runs.record import ENDED, STATUSES
from penstock.runs.store import Store

app = typer.Typer(cls=Group, help="List, show, compare, stop and remove runs.", no_args_is_help=True)


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
        more = [{"memory_bytes": memory[run.id], "parameters": run.parameters} for run in found]
        rows = [run.fields | its for run, its in zip(found, more, strict=True)]
        show_or_json(as_json, rows, lambda: runs_table(found, memory))
    if hidden := len(every) - len(found):
        say(f"archived runs that are left out: {hidden:,}; --archived lists them, too")


def show(named: Named, as_json: AsJson = False, store: StoreFolder = None) -> None:
    """Show runs: command, parameters, environment, where the time goes, and the series that they recorded.

    JSON is an object for one run, and a list for several.
    """
    from penstock.cli.runs_show import facts_of, run_pages

    with Store.open(store, to_read=True) as opened:
        known = facts_of(opened, opened.named(named))
    as_fields = [each.fields() for each in known]
    show_or_json(as_json, as_fields if len(known) > 1 else as_fields[0], lambda: run_pages(known))


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
        print_latex(comparison_table(comparison.groups))
    else:
        show_or_json(as_json, comparison, lambda: comparison_page(comparison))


def figure(
    named: Annotated[list[str], words("GROUP...|RUN...", "Names or ids of groups; with --series, of runs, too.")],
    out: Annotated[Path, option("--out", "File: .pdf, .svg or .png.", metavar="FILE")],
    series: Annotated[
        list[str] | None, option("A chart of this series of each run; may be repeated.", metavar="NAME")
    ] = None,
    over: Annotated[str, option("Its x axis: time, clock, step, epoch or series:NAME.", metavar="AXIS")] = "time",
    smoothing: Annotated[float, option("Its moving average: weight of what came before.", metavar="0..1")] = 0.0,
    log: Annotated[bool, option("--log", "Its y axis is logarithmic.")] = False,
    together: All = False,
    columns: Annotated[Literal["1", "2"], option("Columns of a page that it is as wide as.", metavar="1|2")] = "2",
    as_json: AsJson = False,
    store: StoreFolder = None,
) -> None:
    """Draw groups beside each other: time an epoch, throughput, CPU, energy and memory, with each run as a dot.

    With --series, draw what runs logged or what was measured of them, as the page does; with --all, too, runs of
    one name, and repeats of one command, are one line: their mean.
    """
    from penstock.runs.compare import compare as compared
    from penstock.runs.compare import each_start
    from penstock.web.paper.pictures import KINDS, runs_picture

    kind = out.suffix.removeprefix(".").lower()
    if kind not in KINDS:
        raise BadSetting(f"--out {out}: its name ends in .{', .'.join(KINDS)}")
    require("penstock runs figure", "paper", "matplotlib")
    if not series and (over != "time" or smoothing or log):
        raise BadSetting("--over, --smoothing and --log are for a chart: give its --series, too")
    missing: list[str] = []
    wide = int(columns)
    with Store.open(store, to_read=True) as opened:
        if series:
            runs = opened.named(named)
            drawn = runs_picture(
                opened, runs, series, over=over, smoothing=smoothing, log=log, columns=wide, means=together
            )
            if drawn.without:
                missing = [f"nothing to draw over {over} was recorded of {printable(listed(drawn.without))}"]
        else:
            from penstock.web.paper.draw import groups_picture
            from penstock.web.paper.panels import panels_of

            chosen = newest(opened, named, together)
            groups = compared(chosen, lambda run: opened.series(run.id)).groups
            starts = each_start(chosen, lambda run: opened.series(run.id))
            _, missing = panels_of(groups, starts)
            drawn = groups_picture(groups, wide, starts)
            missing += filter(None, [drawn.crowded])
            runs = [run for group in groups for run in group.runs]
    try:
        out.write_bytes(drawn.content(kind))
    except OSError as error:
        raise BadSetting(f"{out} cannot be written: {error.strerror}") from None
    if drawn.lacks and kind != "svg":  # whose text stays text
        missing.append(drawn.lacks)
    for sentence in missing:
        say(sentence)
    done = {"file": str(out), "runs": [run.id for run in runs], "missing": missing}
    show_or_json(as_json, done, lambda: f"Drew {counted(len(runs), 'run')} into {out}.")


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
    done = {"file": file, "points": points, "runs": [run.id for run in runs]}
    show_or_json(as_json, done, lambda: f"Wrote {points:,} points into {file}.")


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
    require("--mlflow", "mlflow", "mlflow")
    from penstock.runs.push import Push

    with Store.open(store, to_read=True) as opened:
        chosen = opened.named(named) if named else opened.runs()
        found = [run for run in chosen if run.status in ENDED]
        push = Push(opened, mlflow, experiment)
        for group in dict.fromkeys(run.group_id for run in found):
            push.runs([run for run in found if run.group_id == group])
    pushed = {"points": push.points, "files": push.files, "runs": [run.id for run in found]}
    new = f"{push.points:,} points and {push.files:,} files of {len(found):,} runs were new there."
    show_or_json(as_json, pushed, lambda: new)
    if left := len(chosen) - len(found):
        say(f"runs that have not ended, and are left out: {left:,}")


for verb in (ls, show, compare, figure, logs, note, stop, rm, restore, prune, export, push):
    app.command(cls=Command)(verb)
