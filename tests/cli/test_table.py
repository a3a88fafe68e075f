"""What ``penstock status`` shows of trainers that take part of a feed."""

from __future__ import annotations

import msgspec
from rich.console import Console

from penstock.cli.feeds import feeds_table
from penstock.feed.statistics import FeederStatistics, TrainerStatistics

ALL = TrainerStatistics(11, 32, False, 0, 1, 3, "reading", 4, 5, 6, 7, 0.5, "", None, 40_000, 20.0)
TENTH = TrainerStatistics(12, 32, False, 0, 1, 3, "reading", 4, 5, 6, 7, 0.5, "", 1_000, 4_000, 40.0)


def shown(*trainers: TrainerStatistics, source_s: float = 40.0) -> str:
    feed = msgspec.structs.replace(
        FeederStatistics("feed", 10, answers=False),
        answers=True,
        samples_per_cycle=10_000,
        samples=40_000,
        taken=44_000,
        source_s=source_s,
        trainers=trainers,
    )
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(feeds_table([feed]), soft_wrap=True)
    console.file.close()
    return console.export_text()


def test_what_part_each_takes_and_what_is_loaded_for_it():
    said = shown(ALL, TENTH)
    assert "reading, takes 10%" in said and said.count("takes 10%") == 1
    assert "40,000 samples loaded for 44,000 taken" in said
    assert max(map(len, said.splitlines())) <= 80
    assert "taken" not in shown(ALL, ALL)


def test_a_trainer_that_waits_for_the_others_samples_would_do_better_alone():
    said = shown(ALL, TENTH)
    assert "trainer 12 waits 10.0 ms a sample, and loading one takes 1.0 ms" in said
    assert "load 1,000 samples again" in said
    assert "waits 10.0 ms" not in shown(TENTH), "nobody else is there"
    assert "waits 10.0 ms" not in shown(ALL, TENTH, source_s=240.0), "half of the processors would load no faster"
    assert "waits" not in shown(ALL, msgspec.structs.replace(TENTH, taken=999)), "too few to judge"
    assert "waits" in shown(ALL, msgspec.structs.replace(TENTH, taken=100, selected=50, wait_s=1.0)), "two epochs"
