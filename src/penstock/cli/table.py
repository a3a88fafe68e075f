"""Feeds and their trainers as tables for a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.feed.statistics import FeederStatistics, TrainerStatistics
from penstock.sizes import size_text


def feeds_table(feeds: Sequence[FeederStatistics]) -> RenderableType:
    """All feeds, each with its trainers below it."""
    if not feeds:
        return Text("No feed runs. Start one with penstock.share() in a training script, or with: penstock feed")
    return Group(*(part for feed in feeds for part in (_head(feed), _trainers(feed), Text())))


def _head(feed: FeederStatistics) -> Text:
    if not feed.answers:
        advice = f"end it with: penstock stop {shlex.quote(feed.name)}"
        return Text.assemble(
            (feed.name, "bold cyan"), (f"  feeder {feed.pid} does not answer; {advice}", "bold red")
        )
    of_cycle = f" of {feed.samples_per_cycle:,}" if feed.samples_per_cycle else ""
    text = Text()
    text.append(feed.name, "bold cyan")
    text.append(f"  {feed.source}, feeder {feed.pid}, {feed.sharing}\n", "dim")
    text.append(f"cycle {feed.cycle}, sample {feed.sample:,}{of_cycle}")
    text.append(f"   {feed.samples_per_s:,.0f} samples/s", "bold")
    used = feed.used_bytes / feed.window_bytes
    text.append(f"   window {used:4.0%} of {size_text(feed.window_bytes)}   ")
    if feed.held_back_by is not None and len(feed.trainers) == 1:
        text.append("the loader is faster than the training", "dim")
    elif feed.held_back_by is not None:
        text.append(f"held back by trainer {feed.held_back_by} for {feed.held_back_s:.1f} s", "bold yellow")
    elif feed.waits_for:
        text.append(
            feed.waits_for if feed.waits_for == "nobody reads" else f"waits for the {feed.waits_for}", "dim"
        )
    return text


def _trainers(feed: FeederStatistics) -> RenderableType:
    if not feed.answers:
        return Text("  trainers unknown", "dim")
    if not feed.trainers:
        return Text("  no trainer", "dim")
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for heading in ("trainer", "batch", "epoch", "state", "cursor", "lag, samples", "MiB held", "held back, s"):
        table.add_column(heading, justify="left" if heading == "state" else "right", no_wrap=True)
    for trainer in feed.trainers:
        table.add_row(
            *_cells(trainer), style="yellow" if trainer.pid == feed.held_back_by and len(feed.trainers) > 1 else ""
        )
    return table


def _cells(trainer: TrainerStatistics) -> list[str]:
    rank = f" rank {trainer.rank}/{trainer.world}" if trainer.world > 1 else ""
    return [
        f"{trainer.pid}{rank}",
        str(trainer.batch_size or "source's"),
        str(trainer.epoch),
        trainer.state + (", views" if trainer.borrow else ""),
        f"{trainer.cycle}:{trainer.sample:,}",
        f"{trainer.lag_samples:,}",
        f"{trainer.held_bytes / 2**20:,.1f}",
        f"{trainer.held_back_s:,.1f}",
    ]
