"""``penstock advise``: which mechanism to read with, what it costs, and what to do if none suffices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.basics.sizes import size_from
from penstock.basics.terminal import console
from penstock.cli.command import AsJson, show
from penstock.errors import BadSetting, FeederSilent, FeedNotFound

if TYPE_CHECKING:
    from penstock.feed.statistics import FeederStatistics
    from penstock.io.advice.measurements import Measurement

_FULL = 0.5
"""A feed whose window is fuller than this is paced by its trainers."""


def advise(
    benchmark: Annotated[
        Path | None, typer.Argument(metavar="BENCH.json", help="Result of penstock bench io --json.")
    ] = None,
    on: Annotated[
        Path | None, typer.Option(help="Directory for a quick benchmark instead, saved for reader='auto'.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option(help="Bytes per second needed, such as 2GB/s; the most there is unless given.")
    ] = None,
    sample: Annotated[str | None, typer.Option(help="Size of a stored sample, such as 110KB.")] = None,
    access: Annotated[str, typer.Option(help="random or sequential.")] = "random",
    cores: Annotated[float | None, typer.Option(help="CPU cores for reading.")] = None,
    gpu_share: Annotated[str | None, typer.Option(help="Part of the GPU for reading, such as 2%.")] = None,
    dest: Annotated[str, typer.Option(help="Destination of the bytes: host, or a GPU, such as cuda:0.")] = "host",
    dataset: Annotated[str | None, typer.Option(help="Size of the data set, such as 100GB.")] = None,
    feed: Annotated[str | None, typer.Option(help="Running feed whose rate and sample size are the need.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say which mechanism to read with, what it costs, and what to do if none suffices.

    What it says is tagged: *measured here*, or *published* and by whom.
    """
    import psutil

    from penstock.cli.advise_page import advice_shown
    from penstock.io.advice.advice import advise as choose
    from penstock.io.advice.measurements import Benchmark, read_benchmark
    from penstock.io.advice.prediction import Requirement

    rate_bytes_per_s = None if rate is None else _rate(rate)
    sample_bytes = None if sample is None else _size("--sample", sample)
    if feed is not None:
        rate_bytes_per_s, sample_bytes = _of_feed(feed, rate_bytes_per_s, sample_bytes)
    if sample_bytes is None:
        raise BadSetting("the size of a sample is missing: give --sample, such as --sample 110KB, or --feed NAME")
    need = Requirement(
        sample_bytes=sample_bytes,
        rate_bytes_per_s=rate_bytes_per_s,
        access=access,  # pyright: ignore[reportArgumentType] - Requirement checks it
        cores=cores,
        gpu_share=None if gpu_share is None else _share(gpu_share),
        dest=dest,
        dataset_bytes=None if dataset is None else _size("--dataset", dataset),
        memory_bytes=psutil.virtual_memory().available,
    )
    if (benchmark is None) == (on is None):
        raise BadSetting("give either a file of penstock bench io, or --on DIRECTORY to measure there for 30 s")
    measured = Benchmark(_quick(on)) if on else read_benchmark(benchmark or "")
    advice = choose(measured.rows, need)
    show(as_json, advice, lambda: advice_shown(advice, measured.origin))


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


def _of_feed(name: str, rate_bytes_per_s: float | None, sample_bytes: int | None) -> tuple[float, int]:
    """Return the bytes per second that a feed's trainers draw now, and a sample's bytes, unless given."""
    from penstock.feed.launch.feeds import feeds

    running = {found.name: found for found in feeds()}
    if name not in running:
        raise FeedNotFound(f"no feed {name!r} runs; those that do: {', '.join(map(repr, running)) or 'none'}")
    found = running[name]
    if not found.answers:
        raise FeederSilent(f"feeder {found.pid} of feed {name!r} does not answer: it is stopped, or too busy")
    if sample_bytes is None:
        if not found.samples:
            raise BadSetting(
                f"feed {name!r} has published nothing yet, so the size of its samples is unknown: give --sample"
            )
        sample_bytes = max(1, found.bytes // found.samples)
    return rate_bytes_per_s or _drawn_samples_per_s(found) * sample_bytes, sample_bytes


def _drawn_samples_per_s(feed: FeederStatistics) -> float:
    """Return what trainers draw now; say that it is a guess if the window is not full.

    Raises:
        BadSetting: they draw nothing, so what they need is unknown.
    """
    if feed.waits_for == "nobody reads":
        attached = len(feed.trainers)
        raise BadSetting(
            f"nobody reads from feed {feed.name!r} ({attached} trainer{'s' * (attached != 1)} attached), so that "
            "nothing tells what rate is needed. Ask again while somebody trains from it, or give --rate"
        )
    if not feed.samples_per_s:
        why = f"it waits for its {feed.waits_for}" if feed.waits_for else "it has just begun"
        raise BadSetting(
            f"feed {feed.name!r} has published nothing in the last seconds: {why}. Ask again when it goes on, or "
            "give --rate"
        )
    part = feed.used_bytes / feed.window_bytes
    if part < _FULL:
        console(stderr=True).print(
            f"! {feed.name} publishes as fast as its source yields, its window is {part:.0%} full: the trainers "
            "may want more or, if they have only begun, less. Give --rate if you know it"
        )
    return feed.samples_per_s


def _quick(directory: Path) -> list[Measurement]:
    """Run a short benchmark of a directory's file system, and keep it for ``reader="auto"``."""
    from penstock.io.advice.measurements import save, saved_at

    if not directory.is_dir():
        raise BadSetting(f"--on {directory}: there is no such directory")
    rows = _measured_on(directory)
    try:
        said = f"kept for reader='auto': {save(rows, directory)}"
    except OSError as error:
        said = f"! not kept for reader='auto': {saved_at(directory)} cannot be written ({error.strerror})"
    console(stderr=True).print(said, soft_wrap=True)
    return rows


def _measured_on(directory: Path) -> list[Measurement]:
    from penstock.bench.experiment import progress
    from penstock.bench.io.plan import IoSettings
    from penstock.bench.io.run import run

    settings = IoSettings(
        bs_bytes=(4 << 10, 32 << 10, 256 << 10, 1 << 20),
        qd=(8, 128),
        threads=(8, 32),
        cold=True,
        runtime_s=0.5,
        warm_up_s=0.1,
    )
    with progress(console(stderr=True)) as tell:
        return run(settings, str(directory), tell).rows
