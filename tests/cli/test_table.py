"""What ``penstock status`` shows of trainers that take part of a feed."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from rich.console import Console

from penstock.cli.feeds import feeds_table
from penstock.feed.statistics import FamilyStatistics, FeederStatistics, FeederUsage, TrainerStatistics
from penstock.linux.cgroups import cores

ALL = TrainerStatistics(11, 32, False, 0, 1, 3, "reading", 4, 5, 6, 7, 0.5, "", None, 40_000, 20.0)
TENTH = TrainerStatistics(12, 32, False, 0, 1, 3, "reading", 4, 5, 6, 7, 0.5, "", 1_000, 4_000, 40.0)


def feed_of(*trainers: TrainerStatistics, **more: Any) -> FeederStatistics:
    counts = {"samples_per_cycle": 10_000, "samples": 40_000, "taken": 44_000, "source_s": 40.0}
    return FeederStatistics(**{"name": "feed", "pid": 10, **counts, "trainers": trainers, **more})


def shown(*trainers: TrainerStatistics) -> str:
    return table(feed_of(*trainers))


def table(*feeds: FeederStatistics, width: int = 80) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(feeds_table(feeds), soft_wrap=width == 80)
    console.file.close()
    return console.export_text()


def test_what_part_each_takes_and_what_is_loaded_for_it():
    said = shown(ALL, TENTH)
    assert "reading, takes 10%" in said and said.count("takes 10%") == 1
    assert "40,000 samples loaded for 44,000 taken" in said
    assert max(map(len, said.splitlines())) <= 80
    assert "taken" not in shown(ALL, ALL)


def test_on_40_columns_what_has_no_room_is_left_out(monkeypatch):
    assert "cursor" in shown(ALL)
    monkeypatch.setenv("COLUMNS", "40")
    [heading, *rows] = table(feed_of(ALL, TENTH), width=40).partition("lag,")[2].splitlines()[1:4]
    assert heading.split() == ["trainer", "samples", "state"]
    assert [row.split() for row in rows] == [["11", "6", "reading"], ["12", "6", "reading,", "takes", "10%"]]
    rank = replace(ALL, pid=4_194_301, rank=12, world=64, epoch=100, lag_samples=1_234_567, waits_for="its rows")
    assert "waits" in (said := table(feed_of(rank), width=40)) and "…" not in said


def test_how_batches_come_is_told_where_it_is_not_a_copy_on_the_host():
    on_gpu, plain = (replace(ALL, way=way) for way in ("copy on cuda:0, on the trainer's stream", "private copy"))
    assert "  batches: copy on cuda:0, on the trainer's stream\n" in shown(on_gpu)
    assert "  2 of 3: copy on cuda:0, on the trainer's stream\n" in shown(on_gpu, plain, on_gpu)
    assert "private copy" not in shown(plain)


def test_feeds_that_have_parted_are_shown_together_and_why_others_have_not():
    root = FamilyStatistics("feed", refused="this feed was hindered by it")
    ahead = FamilyStatistics("feed", "", 310.4)
    usage = FeederUsage(cores=1.25, private_bytes=70 << 20)
    parted = feed_of(ALL, name="feed-pace-7.1", family=ahead, samples_per_s=300.0, usage=usage)
    said = table(feed_of(ALL, TENTH, family=root, samples_per_s=100.0, usage=FeederUsage(cores=0.5)), parted)
    assert "  it uses 1.2 cores, and 70 MiB beside these\n" in said
    assert said.startswith(f"feed: 2 feeds; one decode serves 1.2 runs; 1.8 of {cores():.3g} cores prepare\n")
    assert said.count("  a second feed was tried, and ended: this feed was hindered by it\n") == 1
    assert said.count("  its slowest trainer could pass 310 samples/s\n") == 1
    assert "could pass" not in table(parted), "nobody has parted from it"
    stays = FamilyStatistics("feed", 'it was started with pace="together"')
    together = '  its trainers stay together, as it was started with pace="together"\n'
    assert together in table(feed_of(ALL, ALL, family=stays))
    assert "together" not in table(feed_of(ALL, family=stays)), "nobody else is there"
    assert "feeds" not in table(feed_of(ALL, family=root)), "nobody has parted from it"
