"""The scripts of the pages for those who change one line: run at the same time, killed, resumed, with ranks."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from tests.frameworks.groups import FOLDER, ROWS, Run, code_of, ran, rows_of, stopped_feeds

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
RESUMED = ["Trainer", "Lightning", "Accelerate, Loader"]


def script(name: str) -> str:
    page, block = SCRIPTS[name]
    return code_of(page)[block]


def words(name: str, size: int) -> list[str]:
    out = ["--out", f"trained{size}"] if name in RESUMED else ["--data", "images"] if name == "timm" else []
    return [*out, "--lr", f"{size / 10_000}", "--batch-size", str(size)]


@pytest.mark.parametrize("name", SCRIPTS)
def test_two_runs_of_a_pages_script_read_one_feed(name: str, tmp_path: Path) -> None:
    if name == "timm":
        ran(tmp_path, FOLDER / "draw_images.py", tmp_path / "images", str(ROWS))
    runs = [Run(tmp_path / str(size), script(name), words(name, size)) for size in (8, 12)]
    seen = [run.steps() for run in runs]
    assert len(stopped_feeds()) == 1
    for size, [steps] in zip((8, 12), seen, strict=True):
        assert [len(step) for step in steps] == [size] * (EPOCHS * ROWS // size)
        rows = rows_of(steps)
        for epoch in range(EPOCHS):
            assert sorted(rows[epoch * ROWS : (epoch + 1) * ROWS]) == [*range(ROWS)]


@pytest.mark.parametrize("name", RESUMED)
def test_what_was_killed_in_mid_epoch_goes_on_behind_its_checkpoint(name: str, tmp_path: Path) -> None:
    saved_at, killed_at = 5, 7  # of 6 steps an epoch
    if name == "Accelerate, Loader":
        killed_at = 6
    given = words(name, 8)
    [before] = Run(tmp_path / "run", script(name), given, killed_at=killed_at).steps(exit_code=-signal.SIGKILL)
    stopped_feeds()
    (tmp_path / "run" / "noted.0").unlink()
    [after] = Run(tmp_path / "run", script(name), given).steps()
    stopped_feeds()
    rows = rows_of(before[:saved_at] + after)
    assert len(after) == EPOCHS * ROWS // 8 - saved_at
    for epoch in range(EPOCHS):
        assert sorted(rows[epoch * ROWS : (epoch + 1) * ROWS]) == [*range(ROWS)]


@pytest.mark.parametrize("name", ["Trainer", "Lightning", "Accelerate", "Accelerate, Loader"])
def test_the_ranks_of_a_pages_script_divide_each_epoch(name: str, tmp_path: Path) -> None:
    given = [*words(name, 8), *(["--devices", "2"] if name == "Lightning" else [])]
    ranks = Run(tmp_path / "run", script(name), given, ranks=2).steps()
    stopped_feeds()
    assert len(ranks) == 2
    for epoch in range(EPOCHS):
        rows = [row for steps in ranks for row in rows_of(steps[epoch * 3 : (epoch + 1) * 3])]
        assert sorted(rows) == [*range(ROWS)]


def test_prepare_and_accumulate_do_with_a_loader_what_the_page_says(tmp_path: Path) -> None:
    stepped = json.loads(ran(tmp_path, FOLDER / "loader_in_accelerate.py").stdout)
    whole, rest = [False, False, False, True], [False, True]
    assert stepped["prepared"] == stepped["without"] == [*whole, *rest] * 2
    assert stepped["Loader"] == whole * 3
