"""``penstock advise``: how to read, which batch size, how many workers, how many trainings at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.basics.terminal import console, say
from penstock.cli.advise_reader import reader
from penstock.cli.command import AsJson, Command, Group, StoreFolder, argument, exit_on_sigterm, option, show

_FITS = {
    "batch-size": "Find the batch size that pays, and the largest that fits: `… -- train.py --batch-size {}`.",
    "workers": "Find how many workers its loader needs: `… -- train.py --workers {}`.",
    "together": "Find how many trainings to run at once, and whether with one loader for all: `… -- train.py`.",
}
"""Questions that are answered by trial, and their help."""
_HOW = "The script runs as it is, for some seconds at each setting, and is then ended. Called again, it goes on."


app = typer.Typer(
    cls=Group, no_args_is_help=True, help="How to read; and by trial: batch size, workers, trainings."
)
app.command("reader", cls=Command)(reader)


def _fits(what: str) -> None:
    """Add the verb that answers a question."""

    def fit(
        words: Annotated[
            list[str], argument("COMMAND", "A script (.py) or a command, and its arguments; {} is the number.")
        ],
        memory: Annotated[
            str | None,
            option(
                "Memory that it may take, of the GPU or of the host: 8GiB; all that there is unless given.",
                metavar="SIZE",
            ),
        ] = None,
        time_limit: Annotated[
            str | None, option("Time for all trials; 3m, of together 5m, unless given.", metavar="TIME")
        ] = None,
        first_batch: Annotated[str, option("Time that each has until its first batch.", metavar="TIME")] = "60s",
        again: Annotated[bool, option("--again", "Measure anew what is known from before.")] = False,
        plot: Annotated[Path | None, option("File for a picture (PNG, SVG, PDF).", metavar="FILE")] = None,
        json: AsJson = False,
        store: StoreFolder = None,
    ) -> None:
        from penstock.basics.results import check_files, progress, save
        from penstock.fit.find import QUESTIONS, picture, shown
        from penstock.fit.trial import Script
        from penstock.fit.tries import TrialLog, check, limit_of, warn
        from penstock.runs.record import MachinePlan
        from penstock.runs.spec.checks import seconds_from
        from penstock.runs.store import Store
        from penstock.runs.trial import Bounds
        from penstock.schedule.jobs import host_machine

        question = QUESTIONS[what]
        check_files(plot=plot)
        script = Script(tuple(words), Path.cwd())
        check(script, question.option)
        first_s = seconds_from("--first-batch", first_batch)
        limit_s = seconds_from("--time-limit", time_limit or question.time_limit)
        machine = host_machine(MachinePlan(), "plain")
        limit, most_bytes = limit_of(machine, memory)
        warn(script)
        exit_on_sigterm()
        with Store.open(store) as opened, progress(console(stderr=True)) as tell:
            tries = TrialLog(
                opened,
                script,
                question.setting,
                bounds=Bounds(first_s, memory_bytes=most_bytes, longer=" (--first-batch)"),
                gpu=machine.gpu,
                seconds=limit_s,
                within=memory or "",
                again=again,
                tell=lambda done, what: tell(done, done + 1, what),
            )
            try:
                found = question.find(tries, limit)
            except KeyboardInterrupt:
                say("interrupted: what was measured is kept, and another call goes on from there")
                raise
        show(json, found, lambda: shown(found, question.setting))
        drawn = console(stderr=True)
        save(plot, lambda file: picture(found, question.setting, script.name).savefig(file), drawn)
        if found.chosen is None:
            raise typer.Exit(1)

    settings = {"allow_interspersed_args": False}
    app.command(what, cls=Command, context_settings=settings, help=f"{_FITS[what]}\n\n{_HOW}")(fit)


for _what in _FITS:
    _fits(_what)
