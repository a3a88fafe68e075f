"""A run or the feeder is killed while two scripts read one feed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from tests.frameworks.groups import SCRIPTS, Group, each_row_once_an_epoch

import penstock

EPOCHS = 4


@pytest.mark.parametrize("name", ["timm", "Trainer, dynamic padding"])
def test_a_run_goes_on_when_the_other_is_killed(name: str, group: Callable[..., Group]) -> None:
    together = group(name, *[f"--batch-size 8 --epochs {EPOCHS}"] * 2, hold_at=3)
    killed, _ = together.held()
    os.kill(killed.pid, signal.SIGKILL)
    together.release()
    _, other = together.ended(exit_codes=(128 + signal.SIGKILL,))
    assert other.steps == 6 * EPOCHS
    each_row_once_an_epoch(SCRIPTS[name], [other], EPOCHS)


@pytest.mark.parametrize("name", ["Lightning", "Trainer, dynamic padding"])
def test_both_runs_go_on_when_their_feeder_is_killed(name: str, group: Callable[..., Group]) -> None:
    together = group(name, *[f"--batch-size 8 --epochs {EPOCHS}"] * 2, hold_at=3)
    together.held()
    (feed,) = penstock.feeds()
    os.kill(feed.pid, signal.SIGKILL)
    together.release()
    reports = together.ended()
    assert [report.steps for report in reports] == [6 * EPOCHS] * 2
    each_row_once_an_epoch(SCRIPTS[name], reports, EPOCHS)
