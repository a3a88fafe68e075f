"""What the demo found, as it is saved in ``demo-report.json``; as tables for the terminal, and as a picture."""

from __future__ import annotations

from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from penstock.basics.terminal import printable
from penstock.bench.experiment import Report

EACH, FEED, SOURCE = "each its loader", "one feed", "ImageSource"
"""Names of the arms: a DataLoader for each run, one feed of such a loader, one feed of an ImageSource."""
_IDLE_CORES = 0.2
_RATIOS = ("images_per_s", "wall_s", "cpu_s_per_1000_images", "peak_pss_bytes")


class ModelFigures(msgspec.Struct, frozen=True):
    """The figures of one run in one arm.

    Attributes:
        images: Images that it received in all its epochs.
        images_per_s: Images per second, from the moment when every run of the arm had its first batch.
        waiting: Share of the run's time in which it waited for its loader.
    """

    name: str
    width: int
    learning_rate: float
    batch_size: int
    images: int
    images_per_s: float
    waiting: float
    final_loss: float


class ArmFigures(msgspec.Struct, frozen=True):
    """The figures of one arm.

    Attributes:
        sharing: Path of the batches, in words; empty without a feed.
        device: What the models were trained on, such as "cpu".
        workers: Loader workers, all together.
        images_per_s: Images per second of all runs, from the moment when all had their first batch.
        wall_s: Time from starting the first process to the end of the last run, imports included.
        cpu_s: CPU time of all processes in that time: trainers, loader workers, feeder.
        cpu_s_per_1000_images: CPU time for each 1,000 images received, both from that moment on.
        peak_pss_bytes: Memory of all processes together; a shared page counts once.
        others_cpu_s: CPU time of everything else on the machine in the arm's wall time.
    """

    sharing: str
    device: str
    workers: int
    images: int
    images_per_s: float
    wall_s: float
    cpu_s: float
    cpu_s_per_1000_images: float
    peak_pss_bytes: int
    peak_processes: int
    others_cpu_s: float
    runs: list[ModelFigures]


class DemoSettings(msgspec.Struct, frozen=True):
    """What was trained on; ``data`` is the last part of the folder's path."""

    data: str
    train_images: int
    mean_bytes: int
    crop_px: int
    note: str
    epochs: int


class DemoReport(Report[DemoSettings, ArmFigures]):
    """A whole run of the demo: the last arm is compared with the first."""

    @property
    def figures(self) -> list[ArmFigures]:
        """Figures of the arms, in their order."""
        return [each.figures for each in self.results]

    def ratios(self, arm: str, to: str) -> dict[str, float]:
        """Return an arm's figures over another's: above 1 is better for ``images_per_s``, below 1 for the rest."""
        return {name: self.ratio(arm, to, lambda one, name=name: getattr(one, name)).median for name in _RATIOS}

    def disturbed(self) -> str:
        """Return what to know about the figures if others used the machine meanwhile; else empty."""
        others = [arm.others_cpu_s / arm.wall_s for arm in self.figures]
        if max(others) < _IDLE_CORES:
            return ""
        *some, last = (f"{cores:.1f}" for cores in others)
        return (
            f"The machine was not idle: others used {', '.join(some)} and {last} of {self.machine.cores} cores in "
            "the arms. Images per second depend on that, CPU time per image hardly does."
        )


def print_report(report: DemoReport, console: Console) -> None:
    """Print the results, and the headline that sums them up."""
    settings, machine, first = report.settings, report.machine, report.figures[0]
    last = report.arms[-1]
    fed = "one feed" if last == FEED else "one feed of an ImageSource"
    console.print()
    console.print(f"{len(first.runs)} training runs on {fed}: {_gain(report, last, EACH)}", style="bold green")
    if last == SOURCE:
        console.print(f"Sharing the DataLoader: {_gain(report, FEED, EACH)}.")
        console.print(f"ImageSource in its place: {_gain(report, SOURCE, FEED)}.")
    console.print(
        f"{printable(settings.data)}: {settings.train_images:,} JPEGs of {settings.mean_bytes / 1000:,.0f} KB, "
        f"{settings.epochs} epochs. {machine.cpu}, {machine.cores} cores, models on {first.device}."
    )
    if settings.note:
        console.print(f"{printable(settings.note)}.", style="dim")
    if disturbed := report.disturbed():
        console.print(disturbed, style="yellow")
    console.print("\nEach run", style="italic")
    console.print(_runs_table(report))
    console.print("All together", style="italic")
    console.print(_totals_table(report))


def _gain(report: DemoReport, arm: str, to: str) -> str:
    ratio = report.ratios(arm, to)
    return (
        f"{ratio['images_per_s']:.1f} times the images/s, {ratio['cpu_s_per_1000_images']:.0%} of the CPU time, "
        f"{ratio['peak_pss_bytes']:.0%} of the memory"
    )


def _runs_table(report: DemoReport) -> Table:
    of_arms = ("images/s,\neach its", "one\nfeed", "Image-\nSource")[: len(report.arms)]
    table = _table("\nrun", "\nwidth", "learning\nrate", "\nbatch", *of_arms, "\ntimes")
    for same in zip(*(arm.runs for arm in report.figures), strict=True):
        first, last = same[0], same[-1]
        table.add_row(
            first.name,
            str(first.width),
            f"{first.learning_rate:g}",
            str(first.batch_size),
            *(f"{run.images_per_s:,.0f}" for run in same),
            f"{last.images_per_s / first.images_per_s:.2f}",
        )
    return table


def _totals_table(report: DemoReport) -> Table:
    table = _table("", *report.arms, "last / each")
    ratio = report.ratios(report.arms[-1], EACH)

    def row(name: str, shown: list[str], of: str = "") -> None:
        table.add_row(name, *shown, f"{ratio[of]:.2f}" if of else "")

    arms = report.figures
    row("images/s", [f"{arm.images_per_s:,.0f}" for arm in arms], "images_per_s")
    row("wall time, all of it", [f"{arm.wall_s:,.1f} s" for arm in arms], "wall_s")
    per_1000 = [f"{arm.cpu_s_per_1000_images:.2f} s" for arm in arms]
    row("CPU time, 1,000 images", per_1000, "cpu_s_per_1000_images")
    row("memory at most (PSS)", [f"{arm.peak_pss_bytes / 2**20:,.0f} MiB" for arm in arms], "peak_pss_bytes")
    row("processes at most", [str(arm.peak_processes) for arm in arms])
    row("loader workers", [str(arm.workers) for arm in arms])
    row("CPU time of others", [f"{arm.others_cpu_s / arm.wall_s:.2f} cores" for arm in arms])
    row("images delivered", [f"{arm.images:,}" for arm in arms])
    return table


def _table(heading: str, *headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(heading)
    for each in headings:
        table.add_column(each, justify="right", no_wrap=True)
    return table


def picture(report: DemoReport) -> Any:
    """Draw each run, and what all of them take together."""
    from penstock.bench.picture import Bars, bars_picture

    settings, machine, arms = report.settings, report.machine, report.figures
    ratio = report.ratios(report.arms[-1], EACH)
    feed = f"One feed for {len(arms[0].runs)} training runs"
    # The ratio to rely on is that of CPU time if others used the machine meanwhile.
    gain = f"{ratio['images_per_s']:.1f} times the images per second"
    of_cpu = f"{ratio['cpu_s_per_1000_images']:.0%} of the CPU time per image"
    title = f"{feed}: {of_cpu if report.disturbed() else gain}"
    about = (
        f"{settings.data}: {settings.train_images:,} JPEGs of {settings.mean_bytes / 1000:,.0f} KB, decoded and "
        f"cropped to {settings.crop_px} px, {settings.epochs} epochs. {machine.cpu}, {machine.cores} cores, "
        f"{arms[0].workers} loader workers; models on {arms[0].device}.\n{report.disturbed()}"
    ).strip()

    def bars(title: str, name: str, shown: str, scale: float = 1.0) -> Bars:
        times = ratio[name]
        rate = name == "images_per_s"
        gained = f"{times:.1f}×" if rate else f"{times - 1:+.0%}".replace("-", "−")
        values = [[getattr(arm, name) / scale] for arm in arms]
        return Bars(title, [""], values, shown, (gained, (times > 1) == rate))

    names = [f"width {run.width}\nlr {run.learning_rate:g}\nbatch {run.batch_size}" for run in arms[0].runs]
    rates = [[run.images_per_s for run in arm.runs] for arm in arms]
    fed = ["a DataLoader for each run", "all from one Penstock feed", "from one feed of an ImageSource"]
    return bars_picture(
        title,
        about,
        fed[: len(arms)],
        Bars("Images per second, each run", names, rates),
        [
            bars("Images per second", "images_per_s", ",.0f"),
            bars("CPU-s, 1,000 images", "cpu_s_per_1000_images", ".2f"),
            bars("Memory, MiB (peak)", "peak_pss_bytes", ",.0f", 2**20),
        ],
    )
