"""Which settings are tried and chosen, on models of scripts and machines."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.fit.search import CLOSE, Memory, Search, Tried, batch_sizes, growing, smaller
from penstock.fit.trial import Trial


def tried(search: Search, measure: Callable[[int], Trial], before: Tried | None = None) -> Tried:
    found = before or Tried([])
    try:
        value = next(search)
        while True:
            found.trials.append(measure(value))
            value = search.send(found.trials[-1])
    except StopIteration:
        return found


def saturating(most: float, half: float, *, lacks: float = float("inf")) -> Callable[[int], Trial]:
    """A script whose throughput nears ``most``, half of it at a size, and that lacks memory from another on."""

    def measure(size: int) -> Trial:
        if size >= lacks:
            return Trial(value=size, failed="more memory than it may take", out_of_memory=True)
        return Trial(
            value=size, batch=size, samples_per_s=most * size / (size + half), memory_bytes=10**8 + 10**6 * size
        )

    return measure


def with_smaller(measure: Callable[[int], Trial]) -> Tried:
    found = tried(batch_sizes(), measure)
    if found.best:
        tried(smaller(found.good[0], found.best.samples_per_s), measure, found)
    return found


@given(st.floats(1, 1e6), st.floats(0.01, 2000))
def test_of_a_throughput_that_saturates_a_size_close_to_the_best_is_chosen(most, half):
    found = with_smaller(saturating(most, half))
    assert found.chosen and found.best
    assert found.chosen.samples_per_s >= (1 - CLOSE) * found.best.samples_per_s
    assert found.best.samples_per_s >= 0.85 * most, "it stops where a doubling brings less than 5%, three times"
    assert all(
        each.samples_per_s < (1 - CLOSE) * found.best.samples_per_s
        for each in found.good
        if each.value < found.chosen.value
    )
    assert len(found.trials) <= 20


def test_a_size_below_the_first_is_found_where_those_above_bring_nothing():
    rates = {1: 900.0, 2: 1000.0, 4: 1150.0, 8: 870.0, 16: 910.0}
    found = with_smaller(lambda size: Trial(value=size, samples_per_s=rates.get(size, 800.0)))
    assert found.chosen and found.chosen.value == 4


@given(st.integers(1, 5000))
def test_where_memory_is_lacking_the_largest_size_that_works_is_found_within_an_eighth(lacks):
    found = with_smaller(saturating(1000, 1e9, lacks=lacks))
    largest = max((each.value for each in found.good), default=0)
    assert largest < lacks
    if lacks == 1:
        assert not found.good and found.chosen is None
    else:
        assert lacks - largest <= max(1, largest / 8 + 1)
    assert len(found.trials) == len({each.value for each in found.trials})


def test_a_size_that_crashes_alone_is_passed_over_and_three_in_a_row_end_the_search():
    works = saturating(1000, 1000)

    def but(*bad: int) -> Callable[[int], Trial]:
        return lambda size: Trial(value=size, failed="failed: no") if size in bad else works(size)

    found = tried(batch_sizes(), lambda size: Trial(value=size, failed="failed: no") if size > 48 else works(size))
    assert (found.good[-1].value, min(each.value for each in found.trials if each.failed)) == (48, 52)
    found = tried(batch_sizes(), but(64))
    assert 128 in [each.value for each in found.good]
    found = tried(batch_sizes(), but(64, 128, 256))
    assert max(each.value for each in found.trials) == 256
    assert max(each.value for each in tried(batch_sizes(), but(*range(2, 9000))).good) == 1
    hopeless = tried(batch_sizes(), but(*range(9000)))
    assert hopeless.best is None and [each.value for each in hopeless.trials] == [8, 4, 1]


def test_settings_that_bring_nothing_end_it_after_as_many_as_it_has_patience_for():
    rates = {0: 10.0, 1: 20.0, 2: 30.0, 3: 30.0, 4: 31.0, 6: 99.0}

    def measure(workers: int) -> Trial:
        return Trial(value=workers, samples_per_s=rates[workers])

    found = tried(growing([0, 1, 2, 3, 4, 6]), measure)
    assert [each.value for each in found.trials] == [0, 1, 2, 3, 4]
    assert found.chosen and found.chosen.value == 2
    assert [each.value for each in tried(growing([0, 1, 2, 3, 4], patience=1), measure).trials] == [0, 1, 2, 3]


def test_what_may_be_chosen_is_tried_once_more_and_counts_as_the_mean():
    found = Tried(
        [Trial(value=value, samples_per_s=rate) for value, rate in ((8, 50), (16, 93), (32, 100), (64, 96))]
    )
    assert found.to_confirm() == [16, 32]
    found.trials.append(Trial(value=16, samples_per_s=103))
    found.trials.append(Trial(value=32, samples_per_s=100))
    assert found.to_confirm() == []
    assert found.chosen and (found.chosen.value, found.chosen.samples_per_s) == (16, 98)


@given(st.floats(1e6, 1e10), st.floats(1e3, 1e8), st.lists(st.floats(-0.01, 0.01), min_size=8, max_size=8))
def test_memory_is_predicted_within_a_tenth_where_it_grows_by_a_line(base, each, noise):
    trials = [
        Trial(value=size, memory_bytes=int((base + each * size) * (1 + off)))
        for size, off in zip((8, 16, 32, 64, 128, 256, 512, 1024), noise, strict=True)
    ]
    memory = Memory.of(trials)
    assert memory is not None
    assert memory.at(1024) == pytest.approx(base + 1024 * each, rel=0.1)
    assert memory.at(2048) == pytest.approx(base + 2048 * each, rel=0.1)
    largest = memory.largest(4 * (base + 1024 * each))
    if largest is not None:
        assert memory.at(largest) <= 0.9 * 4 * (base + 1024 * each)


def test_of_less_than_three_sizes_no_memory_is_predicted():
    assert Memory.of([Trial(value=8, memory_bytes=9), Trial(value=16, memory_bytes=10)] * 3) is None
    flat = Memory.of([Trial(value=size, memory_bytes=10**9) for size in (8, 16, 32)])
    assert flat is not None and flat.largest(2 * 10**9) is None
