"""``penstock advise``: how to read, which batch size, how many workers, how many trainings at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.console import Group as Page
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from penstock.basics.sizes import size_from, size_text
from penstock.basics.terminal import console, printable_lines, say
from penstock.cli.command import (
    AsJson,
    Command,
    Group,
    Picture,
    StoreFolder,
    argument,
    exit_on_sigterm,
    option,
    plain_table,
    show,
)
from penstock.errors import BadSetting
from penstock.io.advice import Advice, Requirement, Setting
from penstock.io.advice import advise as choose
from penstock.io.measurements import Measurement, read_benchmark, save, saved_at


def reader(
    benchmark: Annotated[Path | None, argument("BENCH.json", "Result of penstock bench io --json.")] = None,
    on: Annotated[Path | None, option("Directory to benchmark for 30 s instead, saved for reader='auto'.")] = None,
    rate: Annotated[
        str | None, option("Bytes per second needed, such as 2GB/s; as fast as possible unless given.")
    ] = None,
    sample: Annotated[str | None, option("Size of a sample as it is stored, such as 110KB.")] = None,
    access: Annotated[str, option("Order of the reads: random or sequential.")] = "random",
    cores: Annotated[float | None, option("CPU cores that reading may use.")] = None,
    gpu_share: Annotated[str | None, option("Part of the GPU that reading may use, such as 2%.")] = None,
    dest: Annotated[str, option("Destination of the bytes: host, or a GPU, such as cuda:0.")] = "host",
    dataset: Annotated[str | None, option("Size of the data set, such as 100GB.")] = None,
    as_json: AsJson = False,
) -> None:
    """Recommend a mechanism to read with, from measurements: its speed, its cost, what to do if none suffices."""
    if sample is None:
        raise BadSetting("the size of a sample is missing: give --sample, such as --sample 110KB")
    need = Requirement(
        sample_bytes=_size("--sample", sample),
        rate_bytes_per_s=None if rate is None else _rate(rate),
        access=access,  # pyright: ignore[reportArgumentType] - Requirement checks it
        cores=cores,
        gpu_share=None if gpu_share is None else _share(gpu_share),
        dest=dest,
        dataset_bytes=None if dataset is None else _size("--dataset", dataset),
        memory_bytes=psutil.virtual_memory().available,
    )
    if (benchmark is None) == (on is None):
        raise BadSetting("give either a file of penstock bench io, or --on DIRECTORY to measure there for 30 s")
    rows = _quick(on) if on else read_benchmark(benchmark or "")
    advice = choose(rows, need)
    origin = ", ".join(filter(None, (rows[0].machine, rows[0].date)))
    show(as_json, advice, lambda: advice_shown(advice, origin))


def _rate(text: str) -> float:
    size, slash, unit = text.partition("/")
    if slash and unit.strip() != "s":
        raise BadSetting(f"--rate={text!r}: give bytes a second, such as 2GB/s")
    return _size("--rate", size)


def _size(option: str, text: str) -> int:
    """Read a size that must have a unit: ``--rate 2`` does not mean two bytes."""
    nbytes = size_from(option, text)
    if not text.strip()[-1].isalpha():
        number = text.strip()
        raise BadSetting(f"{option}={text!r} has no unit: write {option} {number}GB, or {number}B")
    return nbytes


def _share(text: str) -> float:
    number, percent, _ = text.partition("%")
    try:
        return float(number) / (100 if percent else 1)
    except ValueError:
        raise BadSetting(f"--gpu-share={text!r}: give a part, such as 2% or 0.02") from None


def _quick(directory: Path) -> list[Measurement]:
    """Run a short benchmark of a directory's file system, and save it for ``reader="auto"``."""
    if not directory.is_dir():
        raise BadSetting(f"--on {directory}: there is no such directory")
    rows = _measured_on(directory)
    try:
        saved = f"saved for reader='auto': {save(rows, directory)}"
    except OSError as error:
        saved = f"! not saved for reader='auto': {saved_at(directory)} cannot be written ({error.strerror})"
    console(stderr=True).print(saved, soft_wrap=True)
    return rows


def _measured_on(directory: Path) -> list[Measurement]:
    from penstock.basics.results import progress
    from penstock.bench.io import run
    from penstock.bench.io_plan import IoSettings

    settings = IoSettings(
        bs_bytes=(4 << 10, 32 << 10, 256 << 10, 1 << 20),
        qd=(8, 128),
        threads=(8, 32),
        cold=True,
        runtime_s=0.5,
        warm_up_s=0.1,
    )
    with progress(console(stderr=True)) as tell:
        return run(settings, str(directory), tell)


def advice_shown(advice: Advice, origin: str) -> Page:
    """Show the choice and its cost, the reasons, the alternatives, and the remedies if it does not suffice."""
    parts: list[RenderableType] = [_asked(advice.need, origin), Text(), _verdict(advice), Text()]
    parts += _listed("why", advice.reasons)
    if advice.alternatives:
        parts += [Text(), _table([advice.choice, *advice.alternatives])]
    if advice.remedies:
        parts += [Text(), *_listed("what to do", advice.remedies)]
    return Page(*parts)


def _asked(need: Requirement, origin: str) -> Text:
    rate = "as fast as may be" if need.rate_mb_s is None else f"at {need.rate_mb_s:,.0f} MB/s"
    text = f"{need.access} reads of samples of {size_text(need.sample_bytes)}, {rate}, to {need.dest}"
    if need.cores is not None:
        text += f", on {need.cores:g} core" + "s" * (need.cores != 1)
    if need.gpu_share is not None:
        text += f", with {need.gpu_share:.0%} of the GPU"
    return Text(text + (f"\nmeasured on {origin}" if origin else ""), "dim")


def _verdict(advice: Advice) -> Text:
    choice = advice.choice
    text = Text()
    text.append("✓ " if advice.suffices else "✗ ", "green" if advice.suffices else "red")
    text.append(str(choice), "bold cyan")
    text.append(f", reads of {size_text(choice.bs_bytes)}")
    text.append(f"\n  reaches {choice.mb_s:,.0f} MB/s")
    if advice.headroom is not None:
        text.append(f", {_compared(1 + advice.headroom)}", "" if advice.suffices else "bold red")
    gpu = f" and at most {choice.sm_share:.1%} of the GPU" if choice.sm_share else ""
    return text.append(f"\n  costs {choice.cores:.2g} cores ({choice.cpu_s_per_gib:.2g} CPU-s for each GiB){gpu}")


def _compared(part: float) -> str:
    """Return what is reached, compared with what is needed, in words."""
    if part >= 2:
        return f"{_times(part)} what is needed"
    if part >= 1:
        return f"{part - 1:.0%} more than needed"
    if part > 0.5:
        return f"{1 - part:.0%} short of what is needed"
    return f"{_times(1 / part)} as much is needed"


def _times(ratio: float) -> str:
    return f"{ratio:,.0f} times" if ratio >= 100 else f"{ratio:.3g} times"


def _listed(heading: str, texts: Sequence[str]) -> list[Text]:
    return [Text(heading, "dim"), *(Text(f"  {printable_lines(text)}") for text in texts)]


def _table(choices: Sequence[Setting]) -> Table:
    table = plain_table("the best of each mechanism", "read", "MB/s", "cores", "CPU-s/GiB")
    table.add_column("figures")
    for choice in choices:
        figures = f"{choice.mb_s:,.0f}", f"{choice.cores:.2g}", f"{choice.cpu_s_per_gib:.2g}"
        table.add_row(str(choice), size_text(choice.bs_bytes), *figures, choice.basis)
    return table


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
        plot: Picture = None,
        json: AsJson = False,
        store: StoreFolder = None,
    ) -> None:
        from penstock.basics.results import check_files, progress, save
        from penstock.basics.sizes import seconds_from
        from penstock.fit.find import QUESTIONS, picture, shown
        from penstock.fit.trial import Script
        from penstock.fit.tries import TrialLog, check, limit_of, warn
        from penstock.runs.record import MachinePlan
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
