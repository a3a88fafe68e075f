"""``penstock status``, ``move`` and ``stop``: shows the running feeds, moves a trainer to another, ends one."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.basics.sizes import size_text
from penstock.basics.terminal import is_wide, printable
from penstock.cli.command import AsJson, Interval, Watch, argument, counted, option, plain_table, show, watch
from penstock.feed.launch import feeds as launched
from penstock.feed.statistics import FamilyStatistics, FeederStatistics, TrainerStatistics
from penstock.linux.cgroups import cores


def status(
    as_json: AsJson = False,
    live: Watch = False,
    interval: Interval = 1.0,
    cluster: Annotated[
        bool, option("--cluster", "Show the nodes that make blocks, and why others do not.")
    ] = False,
) -> None:
    """Show the running feeds, their trainers, and which trainer holds the others back."""
    if live:
        watch(lambda: feeds_table(launched.feeds(), cluster=cluster), interval, as_json)
    running = launched.feeds()
    show(as_json, running, lambda: feeds_table(running, cluster=cluster))


def move(
    name: Annotated[str, argument("NAME", "Name of the feed.")],
    pid: Annotated[int, argument("PID", "Process of the trainer, as in `penstock status`.")],
    to: Annotated[str, argument("TO", "Name of the other feed, of the same make_loader.")],
    now: Annotated[bool, option("--now", "Read on there at once; a trainer of share() starts that feed.")] = False,
) -> None:
    """Have a trainer begin its next epoch on another feed."""
    launched.move(name, pid, to, now=now)
    when = f"reads on from feed {to!r} as soon as that serves" if now else f"begins its next epoch on feed {to!r}"
    typer.echo(f"Trainer {pid} {when}; it prints that, or why it stays.")


def stop(name: Annotated[str, argument("NAME", "Name of the feed.")]) -> None:
    """End a feed; its trainers get the error FeedStopped."""
    ended = launched.stop(name)
    how = f": it did not answer, and its process got {' and '.join(ended.signals)}" if ended.signals else ""
    typer.echo(f"Feed {name!r} (feeder {ended.pid}) has ended{how}.")


_HEADINGS: tuple[str, ...] = (
    "\ntrainer",
    "\nbatch",
    "\nepoch",
    "\ncursor",
    "lag,\nsamples",
    "held,\nMiB",
    "held\nback, s",
    "\nstate",
)
_ON_NARROW = {"\ntrainer", "lag,\nsamples", "\nstate"}


def feeds_table(feeds: Sequence[FeederStatistics], *, cluster: bool = False) -> RenderableType:
    """Show all feeds, each with its trainers below it; and with the nodes that make its blocks, if asked."""
    if not feeds:
        return Text(
            "No feed runs. Start one with penstock.share() in a training script, or with: penstock feed\n"
            "If a feeder was killed, its trainers that use share() start another when they next need a batch."
        )
    parts: list[RenderableType] = []
    for root, family in _families(feeds).items():
        parts += _family(root, family)
        for feed in family:
            parts += (
                _head(feed, has_kin=len(family) > 1),
                _trainers(feed),
                *_ways(feed),
                *(_nodes(feed) if cluster else ()),
                Text(),
            )
    return Group(*parts)


def _families(feeds: Sequence[FeederStatistics]) -> dict[str, list[FeederStatistics]]:
    """Put feeds together that have parted from one another, by the name of the first."""
    found: dict[str, list[FeederStatistics]] = {}
    for feed in feeds:
        found.setdefault(feed.family.root if feed.family else feed.name, []).append(feed)
    return found


def _family(root: str, feeds: Sequence[FeederStatistics]) -> Iterator[Text]:
    """Yield what feeds that have parted from one another do together."""
    if len(feeds) < 2:
        return
    made = sum(feed.samples_per_s for feed in feeds)
    taken = sum(feed.samples_per_s * len(feed.trainers) for feed in feeds)
    once = f"; one decode serves {taken / made:.1f} runs" if made else ""
    busy = sum(feed.usage.cores for feed in feeds)
    yield Text(f"{printable(root)}: {len(feeds)} feeds{once}; {busy:.1f} of {cores():.3g} cores prepare")


def _parting(feed: FeederStatistics, *, has_kin: bool) -> str:
    """Return how fast the trainers of a feed could go where others have parted, and why they stay together."""
    its = feed.family or FamilyStatistics(feed.name)
    if its.together and len(feed.trainers) > 1:
        return f"\n  its trainers stay together, as {its.together}"
    alone = its.alone_samples_per_s if has_kin else None
    could = f"\n  its slowest trainer could pass {alone:,.0f} samples/s" if alone else ""
    return could + (f"\n  a second feed was tried, and ended: {its.refused}" if its.refused else "")


def _head(feed: FeederStatistics, *, has_kin: bool) -> Text:
    if not feed.answers:
        advice = f"end it with: penstock stop {shlex.quote(feed.name)}"
        return Text.assemble(
            (feed.name, "bold cyan"), (f"  feeder {feed.pid} does not answer; {advice}", "bold red")
        )
    of_cycle = f" of {feed.samples_per_cycle:,}" if feed.samples_per_cycle else ""
    return Text.assemble(
        (printable(feed.name), "bold cyan"),
        (
            f"\n  {printable(feed.source)}, feeder {feed.pid}, {feed.sharing}, {feed.resident_bytes >> 20:,} MiB\n"
            f"  it uses {feed.usage.cores:.1f} cores, and {feed.usage.private_bytes >> 20:,} MiB beside these",
            "dim",
        ),
        f"\n  cycle {feed.cycle}, sample {feed.sample:,}{of_cycle}, ",
        (f"{feed.samples_per_s:,.0f} samples/s", "bold"),
        f"\n  {_window(feed)}",
        *_waits(feed),
        *_taken(feed),
        _stream(feed),
        _newcomer(feed),
        _parting(feed, has_kin=has_kin),
    )


def _window(feed: FeederStatistics) -> str:
    """Return how full a window is, by the nearer limit: bytes or blocks."""
    used, blocks = feed.used_bytes / feed.window_bytes, feed.blocks_held / feed.most_blocks
    if blocks > used:
        return f"window {blocks:.0%}: {feed.blocks_held:,} of {feed.most_blocks:,} blocks"
    return f"window {used:.0%} of {size_text(feed.window_bytes)}"


def _newcomer(feed: FeederStatistics) -> str:
    """Return when a run that comes now would begin."""
    if not feed.trainers or feed.newcomer_waits_samples is None:
        return ""
    when = f"in {feed.newcomer_waits_samples:,} samples" if feed.newcomer_waits_samples else "at once"
    return f"\n  a run that comes now begins {when}"


def _waits(feed: FeederStatistics) -> list[tuple[str, str]]:
    if feed.held_back_by is not None and len(feed.trainers) == 1:
        return [(", the loader is faster than the trainers", "dim")]
    if feed.held_back_by is not None:
        return [(f", held back by trainer {feed.held_back_by} for {feed.held_back_s:,.1f} s", "bold yellow")]
    if not feed.waits_for:
        return []
    if feed.waits_for == "nobody reads":
        return [(", nobody reads", "dim")]
    if feed.stream is not None and feed.waits_for.endswith("records"):
        return [(f", the next cycle has {feed.waits_for}", "dim")]
    return [(f", waits for the {feed.waits_for}", "dim")]


def _stream(feed: FeederStatistics) -> str:
    """Return how far a stream has been read."""
    if (report := feed.stream) is None:
        return ""
    age = "" if report.lag_s is None else f", the newest that was read {report.lag_s:,.0f} s old"
    left_out = max((trainer.left_out for trainer in feed.trainers), default=0)
    found = [
        f"{report.lag:,} records behind{age}",
        counted(report.partitions, report.partition),
        f"{report.lost:,} lost" if report.lost else "",
        f"{report.bad:,} bad ones skipped" if report.bad else "",
        f"{left_out:,} rows filled no step" if left_out else "",
    ]
    trouble = f"\n  {printable(report.trouble)}" if report.trouble else ""
    return f"\n  {'; '.join(filter(None, found))}{trouble}"


def _taken(feed: FeederStatistics) -> list[tuple[str, str]]:
    if not any(trainer.selected for trainer in feed.trainers):
        return []
    return [(f"\n  {feed.samples:,} samples loaded for {feed.taken:,} taken", "")]


def _trainers(feed: FeederStatistics) -> RenderableType:
    if not feed.answers:
        return Text("  trainers unknown", "dim")
    if not feed.trainers:
        return Text("  no trainer", "dim")
    table = Table(box=None, padding=(0, 0, 0, 1), header_style="dim")
    shown = [heading for heading in _HEADINGS if is_wide() or heading in _ON_NARROW]
    for heading in shown:
        is_text = heading == "\nstate"
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold")
    for trainer in feed.trainers:
        cells = dict(zip(_HEADINGS, _cells(trainer, feed.samples_per_cycle), strict=True))
        table.add_row(
            *(cells[heading] for heading in shown),
            style="yellow" if trainer.pid == feed.held_back_by and len(feed.trainers) > 1 else "",
        )
    return table


def _ways(feed: FeederStatistics) -> Iterator[Text]:
    """Yield how batches come out of the ring, of trainers for whom that is no usual copy on the host."""
    ways = Counter(trainer.way for trainer in feed.trainers if trainer.way not in ("", "private copy"))
    for way, trainers in ways.items():
        who = "batches:" if len(feed.trainers) == 1 else f"{trainers:,} of {len(feed.trainers):,}:"
        yield Text(f"  {who} {printable(way)}", "dim")


def _nodes(feed: FeederStatistics) -> Iterator[RenderableType]:
    """Yield who makes the blocks of a feed."""
    if (report := feed.cluster) is None:
        yield Text('  no cluster makes its blocks: it was not started with workers="ray"', "dim")
        return
    made = f"  {report.blocks:,} blocks from the cluster, {size_text(report.bytes)}; {report.own:,} loaded here"
    if (passed := report.standing.passed) is not None:
        made += f"; for all feeds of the name {passed.made:,} made, {passed.again:,} of them again"
    yield Text(made)
    if not report.standing.nodes:
        yield Text(f"  {printable(report.standing.in_words)}", "yellow")
        return
    table = plain_table("  node", "workers", "blocks", "s a block")
    table.add_column("state")
    for node in report.standing.nodes:
        usual = "" if node.usual_s is None else f"{node.usual_s:,.2f}"
        state = printable(node.aside or ("good" if node.workers else "no workers"))
        cells = f"  {printable(node.node)}", f"{node.workers:,}", f"{node.blocks:,}", usual, state
        table.add_row(*cells, style="yellow" if node.aside else "")
    yield table


def _cells(trainer: TrainerStatistics, samples: int | None) -> list[str]:
    rank = f" rank {trainer.rank}/{trainer.world}" if trainer.world > 1 else ""
    state = f"waits for {trainer.waits_for}" if trainer.waits_for else trainer.state
    if trainer.joined_sample:
        state += f", joined at {trainer.joined_sample:,}"
    if trainer.selected and samples:
        state += f", takes {trainer.selected / samples:.0%}"
    return [
        f"{trainer.pid}{rank}",
        str(trainer.batch_size or "source's"),
        str(trainer.epoch),
        f"{trainer.cycle}:{trainer.sample:,}",
        f"{trainer.lag_samples:,}",
        f"{trainer.held_bytes / 2**20:,.1f}",
        f"{trainer.held_back_s:,.1f}",
        state + (", views" if trainer.borrow else ""),
    ]
