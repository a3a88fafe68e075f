"""Where the time of loops goes: what is waiting, what is a loop, what an epoch; each second counted once."""

from __future__ import annotations

import math
import os
import threading
import types
from collections.abc import Iterator

import pytest

from penstock import waits
from penstock.waits import Iteration


class Loader:
    """Something that is iterated."""


class Clock:
    """Stands still unless it is told to go on."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    monkeypatch.setattr(waits, "_totals", waits._Totals())
    monkeypatch.setattr(waits, "_begins", lambda: "somebody")
    clock = Clock()
    monkeypatch.setattr(waits, "monotonic", clock)
    yield clock
    assert waits._asking.iteration is None


def totals() -> dict[str, float]:
    values = waits.points()[-1].values
    return {name.removeprefix("feed."): value for name, value in values.items()}


def epochs_s(name: str = "main.epoch_s") -> list[float]:
    points = waits.points(is_last=name == "main.epoch_s")
    return [point.values[f"feed.{name}"] for point in points if f"feed.{name}" in point.values]


def trained() -> dict[str, float]:
    return {name.removeprefix("train."): value for name, value in totals().items() if name.startswith("train.")}


def batch(clock: Clock, iteration: Iteration, wait_s: float, rows: float = 4) -> None:
    iteration.ask()
    clock.pass_s(wait_s)
    iteration.give(rows)


def end(iteration: Iteration) -> None:
    iteration.ask()
    iteration.end()


def test_waits_are_told_from_what_the_script_does_between_batches(clock: Clock):
    iteration = Iteration(Loader())
    for _ in range(3):
        batch(clock, iteration, 2)
        clock.pass_s(5)
    end(iteration)
    clock.pass_s(100)
    assert totals() == {"wait_s": 6, "loop_s": 21, "batches": 3, "samples": 12}


def test_a_loop_begins_where_its_iterator_was_asked_for(clock: Clock):
    asked_s = clock.now_s
    clock.pass_s(3)  # what Penstock imports first
    iteration = Iteration(Loader(), asked_s)
    iteration.ask(asked_s)
    clock.pass_s(2)
    iteration.pause()
    end(iteration)
    assert totals() == {"wait_s": 5, "loop_s": 5, "batches": 0, "samples": 0}


def test_a_wait_that_goes_on_counts_and_what_comes_after_the_last_batch_only_with_the_next(clock: Clock):
    iteration = Iteration(Loader())
    batch(clock, iteration, 1)
    clock.pass_s(10)
    assert (totals()["wait_s"], totals()["loop_s"]) == (1, 1)
    iteration.ask()
    clock.pass_s(3)
    assert (totals()["wait_s"], totals()["loop_s"]) == (4, 14)
    iteration.pause()


def test_an_iterator_that_is_let_go_ends_its_loop_and_one_that_is_kept_unused_does_not_go_on(clock: Clock):
    dropped, kept = Iteration(Loader()), Iteration(Loader())
    batch(clock, kept, 1)
    batch(clock, dropped, 1)
    clock.pass_s(5)
    del dropped
    clock.pass_s(50)
    assert totals()["loop_s"] == 7
    assert epochs_s() == []
    del kept


def test_a_loop_within_a_loop_counts_once_and_where_nothing_steps_the_loader_with_most_loop_time_has_epochs(clock):
    train, validation = Loader(), Loader()
    outer = Iteration(train)
    for step in range(6):
        batch(clock, outer, 1)
        if step == 2:
            inner = Iteration(validation)
            for _ in range(2):
                batch(clock, inner, 1)
            end(inner)
        clock.pass_s(1)
    end(outer)
    again = Iteration(validation)
    batch(clock, again, 1)
    end(again)
    points = waits.points(is_last=True)
    assert [point.values for point in points] == [
        {"feed.wait_s": 9, "feed.loop_s": 15, "feed.batches": 9, "feed.samples": 36},
        {"feed.main.epoch_s": 14},
        {"feed.main.batches": 6, "feed.main.samples": 24},
    ]
    assert len(waits.points(is_last=True)) == 1, "told once"


def train(
    clock: Clock, batches: int, work_s: float = 1, *, steps: bool = True, loader: Loader | None = None
) -> None:
    """A whole loop, of which each batch takes so long besides a second of waiting; an optimizer steps for each."""
    iteration = Iteration(loader or Loader())
    for _ in range(batches):
        batch(clock, iteration, 1)
        clock.pass_s(work_s)
        if steps:
            waits._stepped()
    end(iteration)


def test_a_validation_of_more_batches_or_time_than_the_training_is_no_epoch(clock: Clock):
    validation = Loader()
    for _ in range(2):
        train(clock, 3)
        train(clock, 50, 0.1, steps=False, loader=validation)
    assert epochs_s("epoch_s") == [6, 6]
    assert trained() == {"wait_s": 6, "loop_s": 12, "batches": 6, "samples": 24}
    assert totals()["batches"] == 106 and epochs_s() == []


def test_an_evaluation_before_the_training_neither_is_an_epoch_nor_hides_one(clock: Clock):
    validation = Loader()
    for _ in range(2):
        train(clock, 50, steps=False, loader=validation)
        assert epochs_s("epoch_s") == [] and trained() == {}
    held = Iteration(validation)  # broken off, as a sanity check, and kept by its loader
    batch(clock, held, 1)
    clock.pass_s(1)
    train(clock, 3)
    assert epochs_s("epoch_s") == [6]
    assert trained() == {"wait_s": 3, "loop_s": 6, "batches": 3, "samples": 12}
    del held


def test_a_step_counts_for_the_innermost_loop_that_goes_on(clock: Clock):
    outer = Iteration(Loader())
    for _ in range(2):
        batch(clock, outer, 1)
        clock.pass_s(1)
        train(clock, 2)  # as the tasks of an outer loader, which itself does not train
    end(outer)
    assert epochs_s("epoch_s") == [4, 4] and trained()["batches"] == 4
    outer = Iteration(Loader())
    for _ in range(2):
        batch(clock, outer, 1)
        clock.pass_s(1)
        train(clock, 9, steps=False)  # an evaluation between batch and step
        waits._stepped()
    end(outer)
    assert epochs_s("epoch_s") == [40] and trained()["batches"] == 6


@pytest.mark.parametrize(("lengths", "batches"), [((3, 3), 6), ((3, 5), 6), ((5, 3), 7)])
def test_loaders_in_one_loop_have_one_epoch_whichever_is_shorter(clock: Clock, lengths, batches: int):
    def loop(length: int) -> Iterator[int]:
        iteration = Iteration(Loader())
        for _ in range(length):
            batch(clock, iteration, 1)
            yield length
        end(iteration)

    for _ in range(2):
        for _ in zip(*map(loop, lengths), strict=False):
            clock.pass_s(1)
            waits._stepped()
            waits._stepped()  # of two optimizers, as in a GAN
    assert [took_s > 8 for took_s in epochs_s("epoch_s")] == [True, True]
    assert trained()["batches"] == 2 * batches


def test_a_loader_that_begins_anew_within_a_longer_loop_has_no_epochs_of_its_own(clock: Clock):
    kept = Iteration(Loader())
    for _ in range(2):
        longer = Iteration(Loader())
        for _ in range(7):
            batch(clock, longer, 1)
            if kept._figures.batches == 3:
                end(kept)
                kept = Iteration(Loader())
            batch(clock, kept, 1)
            clock.pass_s(1)
            waits._stepped()
        end(longer)
    assert epochs_s("epoch_s") == [21, 21]
    del kept


def test_an_iterator_that_trained_once_and_is_kept_costs_no_epoch(clock: Clock):
    kept = Iteration(Loader())  # of a warm-up, or a captured graph
    batch(clock, kept, 1)
    waits._stepped()
    for _ in range(2):
        train(clock, 5)
        waits.points()
    points = waits.points(is_last=True)
    assert sum("feed.epoch_s" in point.values for point in points) == 2
    del kept


def test_loops_beside_an_iterator_without_end_have_their_epochs(clock: Clock):
    endless = Iteration(Loader())
    for _ in range(3):
        labelled = Iteration(Loader())
        for _ in range(4):
            batch(clock, labelled, 1)
            batch(clock, endless, 1)
            waits._stepped()
        end(labelled)
        waits.points()
    points = waits.points(is_last=True)
    assert [point.values["feed.epoch_s"] for point in points if "feed.epoch_s" in point.values] == [8, 8, 8]
    del endless


def test_loops_that_were_not_ended_train_too_and_have_no_epochs(clock: Clock):
    for steps in (False, True):
        iteration = Iteration(Loader())
        for _ in range(3):
            batch(clock, iteration, 1)
            if steps:
                waits._stepped()
            clock.pass_s(1)
        del iteration
    assert epochs_s("epoch_s") == [] and trained()["batches"] == 3


def test_a_step_counts_for_the_loop_of_a_thread_that_reads_ahead(clock: Clock):
    iteration = Iteration(Loader())
    for _ in range(2):
        thread = threading.Thread(target=batch, args=(clock, iteration, 1))
        thread.start()
        thread.join()
        waits._stepped()
    end(iteration)
    train(clock, 50, steps=False)
    assert epochs_s("epoch_s") == [2] and trained()["batches"] == 2


def test_a_step_outside_of_loops_hides_no_epoch(clock: Clock):
    for _ in range(2):
        train(clock, 3, steps=False)
        waits._stepped()  # as after gradients of a whole epoch
        train(clock, 5, 0, steps=False)
    assert trained() == {} and epochs_s() == [6, 6]


def test_a_loader_made_anew_each_epoch_counts_as_one_where_nothing_steps(clock: Clock):
    validation = Loader()
    for _ in range(3):
        train(clock, 3, 4, steps=False)
        train(clock, 9, 0, steps=False, loader=validation)
    assert epochs_s() == [15, 15, 15]


def test_a_training_without_end_is_not_taken_for_its_validations_where_nothing_steps(clock: Clock):
    endless = Iteration(Loader())
    for _ in range(3):
        batch(clock, endless, 1)
        clock.pass_s(9)
        train(clock, 5, 0, steps=False)
    batch(clock, endless, 1)
    points = waits.points(is_last=True)
    assert points[-1].values == {"feed.main.batches": 4, "feed.main.samples": 16} and len(points) == 2
    del endless


def test_once_an_optimizer_was_made_only_what_it_steps_in_counts(clock: Clock, monkeypatch: pytest.MonkeyPatch):
    class Optimizer:
        def step(self) -> None: ...

    class Sgd(Optimizer):
        def step(self) -> None: ...

    hooks = []
    torch = types.SimpleNamespace(Optimizer=Optimizer, register_optimizer_step_post_hook=hooks.append)
    monkeypatch.setattr(waits, "_hears_steps", False)
    monkeypatch.delitem(waits.sys.modules, "torch.optim.optimizer", raising=False)
    evaluation = Iteration(Loader())
    batch(clock, evaluation, 1)
    monkeypatch.setitem(waits.sys.modules, "torch.optim.optimizer", torch)  # imported later
    batch(clock, evaluation, 1)
    assert len(hooks) == 1 and trained() == {}
    Sgd.step.hooked = True  # as the first one does
    assert trained() == {"wait_s": 0, "loop_s": 0, "batches": 0, "samples": 0}
    end(evaluation)
    iteration = Iteration(Loader())
    batch(clock, iteration, 1)
    hooks[0](Sgd(), (), {})
    end(iteration)
    assert trained()["batches"] == 1 and len(hooks) == 1


def test_what_is_asked_for_within_a_wait_is_part_of_that_wait(clock: Clock):
    outer = Iteration(Loader())
    outer.ask()
    inner = Iteration(Loader())
    batch(clock, inner, 3)
    end(inner)
    clock.pass_s(1)
    outer.give(8)
    assert totals() == {"wait_s": 4, "loop_s": 4, "batches": 1, "samples": 8}


def test_a_wait_that_is_broken_off_counts_without_a_batch_and_the_loop_goes_on(clock: Clock):
    iteration = Iteration(Loader())
    iteration.ask()
    clock.pass_s(2)
    iteration.pause()
    iteration.ask()  # as after an exception that came before anybody could end the wait
    batch(clock, iteration, 1)
    end(iteration)
    assert totals() == {"wait_s": 3, "loop_s": 3, "batches": 1, "samples": 4}


def test_two_threads_that_wait_at_once_wait_no_longer_than_the_loop(clock: Clock):
    iterations = [Iteration(Loader()), Iteration(Loader())]
    threads = [threading.Thread(target=each.ask) for each in iterations]
    for thread in threads:
        thread.start()
        thread.join()
    clock.pass_s(5)
    assert totals() == {"wait_s": 5, "loop_s": 5, "batches": 0, "samples": 0}


def test_samples_are_absent_where_nobody_can_count_them(clock: Clock):
    iteration = Iteration(Loader())
    batch(clock, iteration, 1, math.nan)
    batch(clock, iteration, 1, 4)
    assert "samples" not in totals()
    assert totals()["batches"] == 2
    del iteration
    assert "samples" not in totals()


def test_iterators_by_the_thousand_cost_no_memory_and_no_second(clock: Clock):
    for i in range(5000):
        iteration = Iteration(Loader())
        batch(clock, iteration, 1)
        del iteration
        clock.pass_s(1)
        if i % 7 == 0:
            waits.points()
    assert totals() == {"wait_s": 5000, "loop_s": 5000, "batches": 5000, "samples": 20000}
    assert len(waits._totals._all.covered) < 2000 and not waits._totals._going_on


def test_loops_by_the_thousand_count_once_while_an_iterator_from_before_them_is_kept(clock: Clock):
    kept = Iteration(Loader())
    batch(clock, kept, 1)
    for _ in range(3000):
        clock.pass_s(1)
        iteration = Iteration(Loader())
        batch(clock, iteration, 1)
        del iteration
        waits.points()
    assert totals()["loop_s"] == 3001
    batch(clock, kept, 1)
    assert [totals()["loop_s"] for _ in range(2)] == [6002, 6002]
    end(kept)
    assert totals()["loop_s"] == 6002


def test_loaders_that_equal_each_other_or_have_no_hash_are_told_apart(clock: Clock):
    class Equal(Loader):
        __hash__ = None  # pyright: ignore

        def __eq__(self, other: object) -> bool:
            return True

    train, validation = Equal(), Equal()
    for loader, batches in ((train, 3), (validation, 2), (train, 3)):
        iteration = Iteration(loader)
        for _ in range(batches):
            batch(clock, iteration, 1)
        end(iteration)
    assert epochs_s() == [3, 3]
    del loader, train, validation, iteration
    assert not waits._totals._loaders


def test_loops_that_nobody_asks_about_neither_have_epochs_nor_hide_those_of_others(clock, monkeypatch):
    outer = Iteration(Loader())
    outer.ask()
    within = Iteration(Loader())
    outer.give(4)
    monkeypatch.setattr(waits, "_begins", lambda: None)
    for unasked in (within, Iteration(Loader())):
        for _ in range(5):
            batch(clock, unasked, 1)
        end(unasked)
    end(outer)
    assert len(epochs_s()) == 1


def test_a_forked_child_counts_from_nothing(clock: Clock):
    iteration = Iteration(Loader())
    batch(clock, iteration, 1)
    if (child := os.fork()) == 0:
        batch(clock, iteration, 1)
        nothing = waits.points()
        own = Iteration(Loader())
        batch(clock, own, 2)
        os._exit(nothing != [] or totals()["wait_s"] != 2)
    assert os.waitpid(child, 0)[1] == 0
    assert totals()["wait_s"] == 1


def test_outside_a_run_nothing_is_kept(clock: Clock, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(waits, "_begins", lambda: None)
    batch(clock, Iteration(Loader()), 1)
    assert waits.points() == [] and not waits._totals.begun
