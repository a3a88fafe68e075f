"""What a run does now is read from the end of its series."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.runs.glance import glance
from penstock.runs.store import Series


def series(times_s: list[float], values: list[float]) -> Series:
    return Series(np.array(times_s), np.array(values))


def test_rates_are_those_of_the_last_seconds() -> None:
    times_s = [1000.0 + i for i in range(60)]
    now = glance(
        {
            "proc.cpu_s": series(times_s, [0.1 * i if i < 40 else 4 + 2.0 * (i - 40) for i in range(60)]),
            "feed.wait_s": series(times_s, [0.25 * i for i in range(60)]),
            "proc.rss_bytes": series(times_s, [1.0] * 59 + [7.0]),
            "loss": series([1000.0, 1059.0], [5.0, 0.5]),
        }
    )
    assert now.cores == pytest.approx(2.0)
    assert now.waiting == pytest.approx(0.25)
    assert (now.rss_bytes, now.read_bytes_per_s, now.logged) == (7.0, None, {"loss": 0.5})


def test_sparse_points_give_the_rate_between_the_last_two() -> None:
    assert glance({"proc.cpu_s": series([0.0, 100.0, 200.0], [0.0, 5.0, 55.0])}).cores == pytest.approx(0.5)


@pytest.mark.parametrize("times_s", [[], [1.0], [1.0, 1.0]])
def test_one_moment_has_no_rate(times_s: list[float]) -> None:
    assert glance({"proc.cpu_s": series(times_s, [1.0] * len(times_s))}).cores is None
