"""Two runs of a script whose samples are made differently."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import pytest
from tests.frameworks.groups import EPOCHS, ROWS, SCRIPTS, Group, Report, each_row_once_an_epoch

W0 = 10


def content(report: Report) -> list[float]:
    """Return a number of each row's content, which is one in all epochs."""
    for contents in report.values.values():
        assert contents == pytest.approx([contents[0]] * EPOCHS, abs=1e-3)
    return [report.values[id][0] for id in range(ROWS)]


@pytest.mark.parametrize(
    ("name", "option", "other"),
    [
        ("Trainer, padded", "--scale 2", lambda row: W0 + row),
        ("timm", "--size 48", None),
    ],
)
def test_runs_that_make_their_samples_differently_never_meet(
    name: str, option: str, other: Callable[[float], float] | None, group: Callable[..., Group]
) -> None:
    apart = group(name, "", option)
    reports = apart.ended()
    each_row_once_an_epoch(SCRIPTS[name], reports)
    one, another = map(content, reports)
    assert one != another
    if other:
        assert another == pytest.approx([other(row) for row in one], abs=5e-3)
    counts = apart.decoded.values()
    assert 2 * EPOCHS <= min(counts) <= median(counts) <= 2 * (EPOCHS + 2), apart.said
