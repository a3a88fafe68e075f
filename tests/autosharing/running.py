"""Scripts as several processes that share, and alone."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.forked import Forked, ForkServer

SCRIPTS = Path(__file__).parent / "scripts"
N, EPOCHS = 48, 3


class Scripts:
    """Runs of scripts in one folder."""

    def __init__(self, server: ForkServer, folder: Path) -> None:
        self._server = server  # forks processes that have imported torch
        self.folder = folder  # where they run
        self._started: list[Forked] = []
        for script in SCRIPTS.glob("*.py"):
            shutil.copy(script, folder)

    def start(
        self,
        index: int,
        *words: str,
        together: int = 1,
        options: dict[str, Any] | None = None,
        out: str = "",
        **more: str,
    ) -> Forked:
        """Start one that shares."""
        environment = {
            **os.environ,
            "PENSTOCK_RUN_INDEX": str(index),
            "PENSTOCK_TOGETHER": str(together),
            "OPTIONS": json.dumps(options or {}),
            **more,
        }
        self._started.append(
            Forked(
                self._server,
                str(SCRIPTS / "shared.py"),
                words,
                self.folder / f"out-{out or index}",
                directory=self.folder,
                environment=environment,
                forks_feeders=True,
            )
        )
        return self._started[-1]

    def shared(self, *each: Sequence[str], **options: Any) -> tuple[list[dict[str, Any]], str]:
        """Run several at once; return what they saw, and said."""
        together = {"together": len(each), "options": options}
        runs = [self.start(i, "loops.py", *words, **together) for i, words in enumerate(each)]
        for run in runs:
            assert run.wait() == 0, run.output
        return [self.seen(i) for i in range(len(each))], "".join(run.output for run in runs)

    def alone(self, *words: str) -> dict[str, Any]:
        environment = {name: value for name, value in os.environ.items() if name != "PENSTOCK_RUN_INDEX"}
        out = self.folder / "out-alone"
        run = Forked(self._server, "loops.py", words, out, directory=self.folder, environment=environment)
        assert run.wait() == 0, run.output
        return self.seen("alone")

    def seen(self, index: int | str) -> dict[str, Any]:
        return json.loads((self.folder / f"seen-{index}.json").read_text())

    def made(self) -> int:
        """How many samples all runs and feeders have made, validation not counted."""
        return sum(len(file.read_text().split()) for file in (self.folder / "made").iterdir())

    def close(self) -> None:
        for run in self._started:
            if not run.ended:
                run.kill()


def feeds_read(said: str) -> set[str]:
    return set(re.findall(r"reads feed (\S+)", said))


def check_like(seen: dict[str, Any], alone: dict[str, Any]) -> None:
    """Check that a run with a feed is as one without, but for the order of its samples."""
    assert seen["len"] == alone["len"]
    assert [len(epoch) for epoch in seen["epochs"]] == [len(epoch) for epoch in alone["epochs"]]
    for epoch, other in zip(seen["epochs"], alone["epochs"], strict=True):
        assert [len(batch) for batch in epoch] == [len(batch) for batch in other]
        assert len({i for batch in epoch for i in batch}) == sum(map(len, epoch))
    for key in ("validated", "types", "random"):
        assert seen[key] == alone[key], key
    assert seen.get("peeked") == alone.get("peeked")
