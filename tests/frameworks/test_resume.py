"""Two runs on one feed stop in mid-epoch, with their loader's state in a checkpoint, and go on later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.frameworks.groups import EPOCHS, ROWS, Group


@pytest.mark.parametrize(("name", "option"), [("torchdata", ""), ("Lightning", "--stateful")])
def test_what_was_resumed_sees_the_rest_of_its_epoch(
    name: str, option: str, group: Callable[..., Group], tmp_path: Path
) -> None:
    runs = [f"{option} --batch-size {size} --checkpoint {tmp_path / f'{size}.ckpt'}" for size in (8, 12)]
    stopped = group(name, *(f"{run} --stop 5" for run in runs), name="stopped").ended()
    resumed = group(name, *runs, name="resumed").ended()
    for size, before, after in zip((8, 12), stopped, resumed, strict=True):
        assert before.steps == 5
        assert after.steps == EPOCHS * ROWS // size - 5
        for epoch in range(EPOCHS):
            batches = before.epochs.get(epoch, []) + after.epochs.get(epoch, [])
            assert sorted(id for batch in batches for id in batch) == [*range(ROWS)]


def test_a_run_that_skips_batches_of_accelerate_has_as_many_left_as_without_a_feed(
    group: Callable[..., Group],
) -> None:
    runs = ["--batch-size 8 --skip 2", "--batch-size 12 --skip 3"]
    reports = group("Accelerate", *runs).ended()
    for size, skipped, report in zip((8, 12), (2, 3), reports, strict=True):
        assert [len(batches) for batches in report.epochs.values()] == [
            ROWS // size - skipped,
            *[ROWS // size] * (EPOCHS - 1),
        ]
        for batches in report.epochs.values():
            rows = [id for batch in batches for id in batch]
            assert len(set(rows)) == len(rows) == size * len(batches)
