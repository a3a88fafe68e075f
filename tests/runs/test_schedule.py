"""Ticks come at even times; those that are late by a whole one are left out and counted."""

from __future__ import annotations

from penstock.runs.sampler import Schedule


def test_ticks_do_not_drift_however_late_each_is_noticed():
    schedule = Schedule()
    schedule.restart(10.0)
    assert schedule.is_due(10.3)
    assert not schedule.is_due(10.9)
    assert schedule.wait_s(10.9) == 11.0 - 10.9
    assert schedule.is_due(11.6)
    assert schedule.wait_s(11.6) == 12.0 - 11.6
    assert schedule.missed == 0


def test_ticks_that_are_over_are_left_out_and_counted():
    schedule = Schedule()
    schedule.restart(10.0)
    assert schedule.is_due(13.5)
    assert schedule.missed == 3
    assert not schedule.is_due(13.9)
    assert schedule.is_due(14.0)
    assert schedule.missed == 3


def test_another_rate_begins_now():
    schedule = Schedule()
    schedule.restart(10.0)
    schedule.restart(10.5, 4.0)
    assert schedule.is_due(10.5)
    assert schedule.wait_s(10.5) == 0.25
