"""The scripts that the how-to pages print, run as they stand there."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from tests.frameworks.groups import FOLDER, PYTHON, environment_in

from penstock.feed.launch import feeds

ROOT = Path(__file__).parents[2]
WATCHED = FOLDER / "watched.py"


def code_of(page: str) -> list[str]:
    """Return the Python of a page, block by block."""
    blocks = (ROOT / "docs" / page).read_text().split("\n```python\n")[1:]
    return [block.partition("\n```")[0] + "\n" for block in blocks]


class Run:
    """A process, or some ranks, of a script of a page's.

    Args:
        folder: Where everything of it is kept.
        code: The script.
        words: What follows the script's name.
        ranks: Processes that train one model.
        killed_at: Step at which it is killed.
    """

    def __init__(self, folder: Path, code: str, words: Sequence[str], ranks: int = 1, killed_at: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        script = folder.parent / "page.py"
        script.write_text(code)
        self._noted = folder / "noted"
        launcher = (
            ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
        )
        self._said = folder / "said"
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [PYTHON, *launcher, WATCHED, self._noted, script, *words],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd=folder.parent,
                env=environment_in(folder) | {"FRAMEWORKS_KILLED_AT": str(killed_at)},
            )

    def steps(self, *, exit_code: int = 0) -> list[list[list[int]]]:
        """Wait for its end; return the rows of each step, of each rank."""
        assert self._process.wait() == exit_code, self._said.read_text()
        files = sorted(self._noted.parent.glob("noted.*"))
        return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def stopped_feeds() -> list[str]:
    """End the feeds that linger; return their names."""
    names = [feed.name for feed in feeds.feeds()]
    for name in names:
        feeds.stop(name)
    return names


def rows_of(steps: list[list[int]]) -> list[int]:
    return [*chain(*steps)]
