"""The tutorial's script, as it stands there, four times at once without a changed line."""

from __future__ import annotations

from pathlib import Path

from tests.frameworks.processes import PYTHON, WATCHED, code_of, noted, ran, rows_of, stopped_feeds

TEXTS, EPOCHS = 48, 2


def penstock(folder: Path, *words: str | Path) -> str:
    """Run a command of Penstock's; return all that it says."""
    done = ran(folder, "-m", "penstock", *words, PENSTOCK_STORE=str(folder / "store"))
    return done.stdout + done.stderr


def test_four_fine_tunings_read_one_feed_and_are_compared(tmp_path: Path) -> None:
    [script] = code_of("tutorial-frameworks.md")
    (tmp_path / "train.py").write_text(script)
    grid = ["--grid", "lr=0.001,0.01", "--grid", "size=8,16"]
    small = ["--texts", str(TEXTS), "--epochs", str(EPOCHS), "--lr", "{lr}", "--batch-size", "{size}"]
    watched = [PYTHON, WATCHED, "noted-{lr}-{size}", "train.py", *small]
    said = penstock(tmp_path, "run", "--group", "one feed", "--share", "--explain", *grid, *watched)
    assert len(stopped_feeds()) == 1
    assert said.count("is shared as train-") == said.count("reads feed train-") == 4
    assert said.count("it reads in order: it validates") == 4
    texts: set[int] = set()
    for lr in ("0.001", "0.01"):
        for size in (8, 16):
            steps = noted(tmp_path / f"noted-{lr}-{size}.0")
            assert [len(step) for step in steps] == [size] * (TEXTS // size * EPOCHS)
            rows = rows_of(steps)
            for epoch in range(EPOCHS):
                seen = set(rows[epoch * TEXTS : (epoch + 1) * TEXTS])
                assert len(seen) == TEXTS
                texts |= seen
    assert len(texts) == TEXTS
    assert "one feed" in penstock(tmp_path, "runs", "compare", "one feed")
