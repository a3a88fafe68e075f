"""``penstock runs figure``: groups beside each other, or a metric of runs, as a picture for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from penstock.basics.packages import require
from penstock.basics.terminal import listed, printable, say
from penstock.cli.command import AsJson, StoreFolder, option, print_json
from penstock.cli.runs_words import All, newest, words
from penstock.errors import BadSetting
from penstock.runs.store import Store


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

    With --series, draw what runs logged or what was measured of them, as the page does.
    """
    from penstock.runs.compare import compare
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
            drawn = runs_picture(opened, runs, series, over=over, smoothing=smoothing, log=log, columns=wide)
            if drawn.without:
                missing = [f"nothing to draw over {over} was recorded of {printable(listed(drawn.without))}"]
        else:
            from penstock.web.paper.draw import groups_picture
            from penstock.web.paper.panels import panels_of

            groups = compare(newest(opened, named, together), lambda run: opened.series(run.id)).groups
            _, missing = panels_of(groups)
            drawn = groups_picture(groups, wide)
            runs = [run for group in groups for run in group.runs]
    try:
        out.write_bytes(drawn.content(kind))
    except OSError as error:
        raise BadSetting(f"{out} cannot be written: {error.strerror}") from None
    if drawn.lacks and kind != "svg":  # whose text stays text
        missing.append(drawn.lacks)
    for sentence in missing:
        say(sentence)
    if as_json:
        print_json({"file": str(out), "runs": [run.id for run in runs], "missing": missing})
    else:
        typer.echo(f"Drew {len(runs):,} run{'' if len(runs) == 1 else 's'} into {out}.")
