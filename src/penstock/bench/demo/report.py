"""The demo's report as tables for the terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from penstock.basics.terminal import printable
from penstock.bench.demo.results import Ratios, Report


def print_report(report: Report, console: Console) -> None:
    """Print the results, and the headline that sums them up."""
    data, machine = report.data, report.machine
    console.print()
    console.print(headline(report), style="bold green")
    if report.source is not None:
        console.print(steps(report))
    console.print(
        f"{printable(data.name)}: {data.train_images:,} JPEGs of {data.mean_bytes / 1000:,.0f} KB, "
        f"{report.epochs} epochs. "
        f"{machine.cpu}, {machine.cores} cores, models on {machine.device}."
    )
    if data.note:
        console.print(f"{printable(data.note)}.", style="dim")
    if disturbed := report.disturbed():
        console.print(disturbed, style="yellow")
    console.print("\nEach run", style="italic")
    console.print(_runs_table(report))
    console.print("All together", style="italic")
    console.print(_totals_table(report))


def headline(report: Report) -> str:
    """Say the result in one sentence."""
    feed = "one feed" if report.source is None else "one feed of an ImageSource"
    return f"{len(report.shared.runs)} training runs on {feed}: {_gain(report.last_over_separate)}"


def steps(report: Report) -> str:
    """Say what each step won: sharing a loader, and an ImageSource in its place."""
    assert report.source_over_shared is not None
    return (
        f"Sharing the DataLoader: {_gain(report.shared_over_separate)}.\n"
        f"ImageSource in its place: {_gain(report.source_over_shared)}."
    )


def _gain(ratio: Ratios) -> str:
    return (
        f"{ratio.images_per_s:.1f} times the images/s, {ratio.cpu_s_per_1000_images:.0%} of the CPU time, "
        f"{ratio.peak_pss_bytes:.0%} of the memory"
    )


def _runs_table(report: Report) -> Table:
    table = _table("\nrun", "\nwidth", "learning\nrate", "\nbatch")
    arms = list(report.arms.values())
    for title in ("images/s,\neach its", "one\nfeed", "Image-\nSource")[: len(arms)]:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("\ntimes", justify="right", no_wrap=True)
    for same in zip(*(arm.runs for arm in arms), strict=True):
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


def _totals_table(report: Report) -> Table:
    table = _table("", *report.arms, "last / each")

    def row(name: str, shown: list[str], ratio: float | None = None) -> None:
        table.add_row(name, *shown, "" if ratio is None else f"{ratio:.2f}")

    arms, ratio = list(report.arms.values()), report.last_over_separate
    row("images/s", [f"{arm.images_per_s:,.0f}" for arm in arms], ratio.images_per_s)
    row("wall time, all of it", [f"{arm.wall_s:,.1f} s" for arm in arms], ratio.wall_s)
    row(
        "CPU time, 1,000 images",
        [f"{arm.cpu_s_per_1000_images:.2f} s" for arm in arms],
        ratio.cpu_s_per_1000_images,
    )
    row("memory at most (PSS)", [f"{arm.peak_pss_bytes / 2**20:,.0f} MiB" for arm in arms], ratio.peak_pss_bytes)
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
