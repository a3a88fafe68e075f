"""``penstock advise``: how to read, which batch size, how many workers, how many trainings at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.basics.terminal import console
from penstock.cli.advise_reader import reader
from penstock.cli.command import AsJson, Command, Group, StoreFolder, argument, option, show

if TYPE_CHECKING:
    from penstock.fit.answers import Answer, Limit
    from penstock.fit.tries import Tries

_MOST_TOGETHER = 16


class _Advice(Group):
    """Takes what is no verb for the arguments of ``reader``, which once was all that there was."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["reader", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Advice, no_args_is_help=True, help="Advise by trial: reading, batch size, workers, trainings."
)
app.command("reader", cls=Command)(reader)
_Words = Annotated[
    list[str], argument("COMMAND", "A script (.py) or a command with its arguments; {} stands for the number.")
]
_Together = Annotated[list[str], argument("COMMAND", "A script (.py) or a command with its arguments.")]
_Memory = Annotated[
    str | None,
    option("Memory that it may take: 8GiB; the GPU's, or this machine's, unless given.", metavar="SIZE"),
]
_Limit = Annotated[str, option("Time for all trials; called again, it goes on.", metavar="TIME")]
_First = Annotated[str, option("Time that a trial has until its first batch.", metavar="TIME")]
_Again = Annotated[bool, option("--again", "Measure anew what is known from before.")]
_Plot = Annotated[Path | None, option("File for a picture (PNG, SVG, PDF).", metavar="FILE")]
_FITS: dict[str, Any] = {"cls": Command, "context_settings": {"allow_interspersed_args": False}}


@app.command("batch-size", **_FITS)
def batch_size(
    words: _Words,
    memory: _Memory = None,
    time_limit: _Limit = "3m",
    first_batch: _First = "60s",
    again: _Again = False,
    plot: _Plot = None,
    json: AsJson = False,
    store: StoreFolder = None,
) -> None:
    """Find the batch size that pays, and the largest that fits: `advise batch-size -- train.py --batch-size {}`.

    The script runs as it is, for some seconds at each size, and is then ended.
    """
    from penstock.fit.answers import of_batch_sizes
    from penstock.fit.search import batch_sizes, smaller

    def answer(tries: Tries, limit: Limit) -> Answer:
        tries.search(batch_sizes())
        tried = tries.tried
        if tried.chosen and tried.best and tried.chosen.value == tried.good[0].value:
            tries.search(smaller(tried.chosen, tried.best.samples_per_s))
        tries.confirm()
        return of_batch_sizes(tries.tried, limit, tries.cost)

    _fit("batch size", words, answer, memory, time_limit, first_batch, again, plot, json, store)


@app.command("workers", **_FITS)
def workers(
    words: _Words,
    memory: _Memory = None,
    time_limit: _Limit = "3m",
    first_batch: _First = "60s",
    again: _Again = False,
    plot: _Plot = None,
    json: AsJson = False,
    store: StoreFolder = None,
) -> None:
    """Find how many workers its loader needs: `advise workers -- train.py --workers {}`."""
    from penstock.fit.answers import of_workers
    from penstock.fit.search import growing
    from penstock.linux.cgroups import cores

    def answer(tries: Tries, limit: Limit) -> Answer:
        most = int(2 * cores()) + 2
        tries.search(growing([count for count in (0, 1, 2, 3, 4, *range(6, 257, 2)) if count <= most]))
        tries.confirm()
        return of_workers(tries.tried, cores(), tries.cost)

    _fit("workers", words, answer, memory, time_limit, first_batch, again, plot, json, store)


@app.command("together", **_FITS)
def together(
    words: _Together,
    memory: _Memory = None,
    time_limit: _Limit = "5m",
    first_batch: _First = "60s",
    again: _Again = False,
    plot: _Plot = None,
    json: AsJson = False,
    store: StoreFolder = None,
) -> None:
    """Find how many trainings to run at once, and whether to share a loader: `advise together -- train.py`."""
    from penstock.fit.answers import of_together
    from penstock.fit.search import Tried, growing

    def answer(tries: Tries, limit: Limit) -> Answer:
        tries.search(growing(range(1, _MOST_TOGETHER + 1), patience=1), copies=True)
        alone = next((each.samples_per_s for each in tries.tried.good), 0.0)
        if alone:
            tries.search(growing(range(2, _MOST_TOGETHER + 1), alone, patience=1), copies=True, share=True)
        own, shared = ([each for each in tries.tried.trials if each.share == share] for share in (False, True))
        return of_together(Tried(own), Tried(shared), tries.cost)

    _fit("together", words, answer, memory, time_limit, first_batch, again, plot, json, store)


def _fit(
    setting: str,
    words: list[str],
    answer: Callable[[Tries, Limit], Answer],
    memory: str | None,
    time_limit: str,
    first_batch: str,
    again: bool,
    plot: Path | None,
    json: bool,
    store: Path | None,
) -> None:
    """Try a script, and show what was found."""
    from penstock.bench.experiment import check_files, progress, save
    from penstock.fit.report import picture, shown
    from penstock.fit.trial import Bounds, Script
    from penstock.fit.tries import Tries, check_words, limit_of, warn
    from penstock.runs.record import MachinePlan
    from penstock.runs.spec.checks import seconds_from
    from penstock.runs.store import Store
    from penstock.schedule.machine import host_machine

    check_files(plot=plot)
    if setting != "together":
        check_words(tuple(words), "--batch-size" if setting == "batch size" else "--workers")
    script = Script(tuple(words), Path.cwd())
    machine = host_machine(MachinePlan(), "plain")
    limit, most_bytes = limit_of(machine, memory)
    warn(script)
    with Store.open(store) as opened, progress(console(stderr=True)) as tell:
        tries = Tries(
            opened,
            script,
            setting,
            bounds=Bounds(seconds_from("--first-batch", first_batch), most_bytes),
            gpu=machine.gpu,
            seconds=seconds_from("--time-limit", time_limit),
            within=memory or "",
            again=again,
            tell=lambda done, what: tell(done, done + 1, what),
        )
        found = answer(tries, limit)
    show(json, found, lambda: shown(found, setting))
    save(plot, lambda file: picture(found, setting, script.name, limit).savefig(file), console(stderr=True))
    if found.chosen is None:
        raise typer.Exit(1)
