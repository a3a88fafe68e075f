"""The scripts of the pages for those who change one line: run at the same time, killed, resumed, with ranks."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.frameworks.groups import ROWS
from tests.frameworks.processes import FOLDER, Page, Warm, code_of, rows_of, stopped_feeds

EPOCHS = 3
HUGGING_FACE, LIGHTNING, TIMM = "how-to/hugging-face.md", "how-to/lightning.md", "how-to/timm.md"
ACCELERATE = "how-to/accelerate.md"
SCRIPTS = {
    "Trainer": (HUGGING_FACE, 0),
    "Lightning": (LIGHTNING, 0),
    "Accelerate": (ACCELERATE, 0),
    "Accelerate, Loader": (ACCELERATE, 1),
    "timm": (TIMM, 0),
}
SAVED_AT = 5
KILLED_AT = {"Trainer": 7, "Lightning": 7, "Accelerate, Loader": 6}
"""Of 6 steps an epoch, of those that save what they have come to."""


def words(name: str, size: int) -> list[str]:
    out = ["--out", f"trained{size}"] if name in KILLED_AT else ["--data", "images"] if name == "timm" else []
    return [*out, "--lr", f"{size / 10_000}", "--batch-size", str(size)]


@pytest.fixture
def page(warm: Warm, tmp_path: Path) -> Callable[[str], Page]:
    def of(name: str) -> Page:
        file, block = SCRIPTS[name]
        return Page(warm, tmp_path, code_of(file)[block])

    return of


def every_row_each_epoch(steps: list[list[int]], size: int) -> bool:
    rows = rows_of(steps)
    each = [sorted(rows[epoch * ROWS : (epoch + 1) * ROWS]) for epoch in range(EPOCHS)]
    return [len(step) for step in steps] == [size] * (EPOCHS * ROWS // size) and each == [[*range(ROWS)]] * EPOCHS


@pytest.mark.parametrize("name", SCRIPTS)
def test_two_runs_of_a_pages_script_read_one_feed_and_one_that_is_killed_goes_on_behind_its_checkpoint(
    name: str, page: Callable[[str], Page], warm: Warm, tmp_path: Path
) -> None:
    if name == "timm":
        warm.printed(tmp_path, FOLDER / "draw_images.py", tmp_path / "images", str(ROWS))
    script, killed_at = page(name), KILLED_AT.get(name, 0)
    one = script.start("8", *words(name, 8), killed_at=killed_at)
    other = script.start("12", *words(name, 12), anew=True)
    one.ended(exit_code=-signal.SIGKILL if killed_at else 0)
    other.ended()
    assert len(stopped_feeds()) == 1
    assert every_row_each_epoch(script.steps("12"), 12)
    steps = script.steps("8")
    if killed_at:
        script.start("again", *words(name, 8)).ended()
        stopped_feeds()
        assert len(steps) == killed_at
        steps[SAVED_AT:] = script.steps("again")
    assert every_row_each_epoch(steps, 8)


@pytest.mark.parametrize("name", ["Trainer", "Lightning", "Accelerate", "Accelerate, Loader"])
def test_the_ranks_of_a_pages_script_divide_each_epoch(name: str, page: Callable[[str], Page]) -> None:
    script = page(name)
    script.start("run", *words(name, 8), *(["--devices", "2"] if name == "Lightning" else []), ranks=2).ended()
    stopped_feeds()
    for epoch in range(EPOCHS):
        rows = [row for rank in (0, 1) for row in rows_of(script.steps("run", rank)[epoch * 3 : (epoch + 1) * 3])]
        assert sorted(rows) == [*range(ROWS)]


def test_prepare_and_accumulate_do_with_a_loader_what_the_page_says(warm: Warm, tmp_path: Path) -> None:
    stepped = json.loads(warm.printed(tmp_path, FOLDER / "loader_in_accelerate.py")[-1])
    whole, rest = [False, False, False, True], [False, True]
    assert stepped["prepared"] == stepped["without"] == [*whole, *rest] * 2
    assert stepped["Loader"] == whole * 3
