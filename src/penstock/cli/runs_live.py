"""What runs do now, for the terminal: looked at again and again."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.console import ConsoleDimensions, RenderableType

from penstock.basics.terminal import console
from penstock.cli.runs_table import brief_table, live_table
from penstock.runs.glance import RECENT_S, Glance, Recent, glance, is_glanced_at
from penstock.runs.record import ENDED, RunRecord
from penstock.runs.store import Store

_LINES_BESIDE = 3  # of headings, and of how many runs are not shown


class Looks:
    """Looks at runs, of whose series it reads only what has come since it looked before.

    Args:
        store: Where the runs are.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._recent: dict[str, Recent] = {}

    def at(self, runs: Sequence[RunRecord]) -> list[tuple[RunRecord, Glance]]:
        """Return runs with what they do."""
        found: list[tuple[RunRecord, Glance]] = []
        for run in runs:
            if run.id not in self._recent:
                self._recent[run.id] = Recent(self._store.folder_of(run.id), RECENT_S)
            found.append((run, glance(self._recent[run.id].look(is_glanced_at))))
        return found

    def table(self, group: str | None = None, status: str | None = None) -> RenderableType:
        """Show the runs that go on, or those of a status, of all groups or those of a name or id."""
        runs = self._store.runs(group)
        wanted = [run for run in runs if (run.status == status if status else run.status not in ENDED)]
        return live_table(self.at(wanted))

    def lines(self, ids: Sequence[str]) -> list[str]:
        """Show runs in at most half of the terminal's lines: first those that go on."""
        shown = console()
        shown.size = ConsoleDimensions(*os.get_terminal_size(1))  # it may change, whatever $LINES and $COLUMNS say
        wanted = set(ids)
        runs = [run for run in self._store.runs() if run.id in wanted]  # without those that were removed
        most = max(1, shown.height // 2 - _LINES_BESIDE)
        going_on_first = sorted(runs, key=lambda run: (run.status in ENDED, run.status == "waiting"))
        chosen = {run.id for run in (runs if len(runs) <= most else going_on_first[:most])}
        with shown.capture() as captured:
            shown.print(brief_table(self.at([run for run in runs if run.id in chosen])))
            if hidden := len(runs) - len(chosen):
                shown.print(f"… and {hidden} more", style="dim")
        return captured.get().splitlines()
