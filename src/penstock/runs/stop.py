"""Ends runs from outside, through their keepers."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Sequence

from penstock.linux.process import start_ticks, who
from penstock.runs.keeper.command import STOP
from penstock.runs.record import ENDED, RunRecord
from penstock.runs.store import Store

_PATIENCE_S = 20.0


def stop(store: Store, ids: Sequence[str]) -> list[tuple[RunRecord, RunRecord]]:
    """End runs, all at once; return each as it was, and as it is.

    A run gets SIGTERM, and is killed 5 s later if it has not ended; one that waits will not begin.
    """
    found = [store.run(id) for id in ids]
    waited = [ask_to_end(store, run) for run in found]
    for keeper in waited:
        if keeper is not None:
            _wait(keeper)
    return [(run, store.run(run.id)) for run in found]


def ask_to_end(store: Store, run: RunRecord) -> int | None:
    """Ask a run to end; return a descriptor of its keeper, if it has one, to wait for."""
    if run.status == "waiting":
        store.ended(run.id, "killed", None, f"never began: ended by {who(os.getpid())}")
        run = store.run(run.id)  # it may just have begun
    if run.status in ENDED and run.keeper is None:
        return None
    if run.keeper is None:  # on another machine, where the process that started it ends it
        store.ended(run.id, "killed", None, f"ended by {who(os.getpid())}")
        return None
    pid, started_ticks = run.keeper
    try:
        keeper = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    if start_ticks(pid) == started_ticks:
        signal.pidfd_send_signal(keeper, STOP)
        return keeper
    os.close(keeper)
    return None


def _wait(keeper: int) -> None:
    """Wait for a keeper; kill one that does not answer, with its run."""
    with open(keeper, closefd=True):
        if not select.select([keeper], [], [], _PATIENCE_S)[0]:
            signal.pidfd_send_signal(keeper, signal.SIGKILL)
            select.select([keeper], [], [])
