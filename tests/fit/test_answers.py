"""Answers in words: what is chosen, why, and what it costs."""

from __future__ import annotations

from typing import Any

from penstock.fit.answers import Limit, of_batch_sizes, of_together, of_workers
from penstock.fit.find import picture, shown
from penstock.fit.search import Tried
from penstock.fit.trial import Trial

GIB = 1 << 30
LIMIT = Limit(8 * GIB, "the GPU's memory")


def sizes(*more: Trial) -> Tried:
    rates = {8: 50.0, 16: 90.0, 32: 100.0, 64: 104.0, 128: 104.0}
    found = [Trial(value=v, samples_per_s=r, batch=v, memory_bytes=GIB + v * (GIB >> 6)) for v, r in rates.items()]
    return Tried([*found, *more])


def words(answer: Any) -> str:
    return " ".join(answer.sentences)


def test_a_batch_size_is_named_with_the_largest_that_fits_and_how_many_fit_side_by_side():
    answer = of_batch_sizes(sizes(), LIMIT, "That took 5 trials, in 50 s.")
    assert answer.chosen == 32
    assert answer.largest == int((0.9 * 8 - 1) * 64)
    assert answer.predicted_bytes[0] == GIB + 32 * (GIB >> 6)
    assert "Take a batch size of 32: 100 samples/s, within 5% of the best (104, at 64)." in words(answer)
    assert "All that were tried fit 8 GiB of the GPU's memory, up to 128." in words(answer)
    assert "is full, but for 10%, at about 396, which was not tried." in words(answer)
    assert "4 such trainings fit side by side" in words(answer)
    assert "learning rate" in words(answer) and "That took 5 trials, in 50 s." in words(answer)


def test_the_largest_is_below_a_size_that_lacked_memory_and_one_that_crashed_is_told():
    lacked = Trial(value=256, failed="out of memory: CUDA", out_of_memory=True)
    crashed = Trial(value=24, failed="failed: a size that no kernel takes")
    answer = of_batch_sizes(sizes(lacked, crashed), LIMIT, "")
    assert answer.largest == 255
    assert "128 ran, 256 failed: out of memory: CUDA." in words(answer)
    assert "At 24: failed: a size that no kernel takes." in words(answer)
    assert {each.value for each in answer.failed} == {256, 24}


def test_where_nothing_works_the_reason_is_the_answer():
    failed = [Trial(value=value, failed="failed: no such data") for value in (8, 4, 2, 1)]
    answer = of_batch_sizes(Tried(failed), LIMIT, "4 trials, in 9 s")
    assert answer.chosen is None
    assert answer.sentences[0] == "Nothing was measured (at 1: failed: no such data)."
    lacks = [Trial(value=1, failed="more memory than it may take", out_of_memory=True)]
    assert of_batch_sizes(Tried(lacks), LIMIT, "").sentences[0].startswith("Nothing fits the memory")


def workers(waiting: float, advice: str) -> Tried:
    rates = {0: 10.0, 1: 20.0, 2: 39.0, 3: 40.0, 4: 40.0}
    return Tried([Trial(value=v, samples_per_s=r, waiting=waiting, advice=advice) for v, r in rates.items()])


def test_why_more_workers_bring_nothing_is_said():
    computes = of_workers(workers(0.02, "none"), 4.0, "")
    assert computes.chosen == 2
    assert "it waits 2% of its time for data, and computes in the rest" in words(computes)
    assert "want 8 workers, more than the 4 cores here; one shared feed" in words(computes)
    assert "the disk is busy" in words(of_workers(workers(0.5, "storage"), 16.0, ""))
    assert "the cores are busy with preparing" in words(of_workers(workers(0.5, "pack"), 16.0, ""))
    assert "memory bandwidth, a lock or the network" in words(of_workers(workers(0.5, "workers"), 16.0, ""))


def test_workers_that_sleep_are_told_from_busy_ones():
    def tried(cores_each: float) -> Tried:
        rates = {1: 10.0, 2: 20.0, 4: 40.0, 6: 60.0}
        found = [Trial(value=v, samples_per_s=r, waiting=0.9, busy_cores=cores_each * v) for v, r in rates.items()]
        return Tried(found)

    assert "mostly sleep: 6 workers kept 0.6 of 2 cores busy" in words(of_workers(tried(0.1), 2.0, ""))
    assert "sleep" not in words(of_workers(tried(0.33), 2.0, ""))


def test_a_number_that_changes_no_processes_is_no_answer():
    def tried(*processes: int) -> Tried:
        return Tried([Trial(value=at, samples_per_s=1.0, processes=count) for at, count in enumerate(processes)])

    ignored = of_workers(tried(1, 1, 1), 4.0, "")
    assert ignored.chosen is None and "as many processes with 0 workers as with 2" in words(ignored)
    assert of_workers(tried(1, 2, 3), 4.0, "").chosen == 0
    assert of_workers(tried(1), 4.0, "").chosen == 0


def test_how_many_at_once_and_whether_they_share():
    own = Tried([Trial(value=v, samples_per_s=r) for v, r in {1: 100.0, 2: 120.0, 3: 118.0}.items()])
    shared = Tried(
        [Trial(value=v, samples_per_s=r, share=True) for v, r in {2: 190.0, 3: 240.0, 4: 241.0}.items()]
    )
    answer = of_together(own, shared, 16, LIMIT, "")
    assert (answer.chosen, answer.share) == (3, True)
    assert "Run 3 at once with --share: 240 samples/s together, 2.40 times one alone." in words(answer)
    assert "takes 1.25 times as long for an epoch" in words(answer)
    assert "More do not fit" not in words(answer)
    assert "More do not fit 8 GiB of the GPU's memory." in words(of_together(own, shared, 3, LIMIT, ""))
    slower = Tried([Trial(value=v, samples_per_s=r) for v, r in {1: 100.0, 2: 101.0}.items()])
    assert "Run one after the other" in words(of_together(slower, Tried([]), 16, LIMIT, ""))


def test_an_answer_is_shown_as_a_table_and_a_picture(tmp_path):
    answer = of_batch_sizes(sizes(Trial(value=256, failed="out of memory", out_of_memory=True)), LIMIT, "")
    assert shown(answer, "batch size")
    picture(answer, "batch size", "train").savefig(tmp_path / "fit.png")
    assert (tmp_path / "fit.png").stat().st_size > 10_000
