"""What became of a run, from how its command ended."""

from __future__ import annotations

import pytest

from penstock.runs.keeper.command import Verdict, verdict


@pytest.mark.parametrize(
    ("returned", "ended_as", "oom_killed", "recent", "expected"),
    [
        (0, "", True, b"CUDA out of memory", Verdict("finished", 0, "")),
        (0, "signalled", False, b"", Verdict("finished", 0, "")),
        (0, "killed", False, b"", Verdict("killed", 0, "why")),
        (0, "timed_out", False, b"", Verdict("timed_out", 0, "why")),
        (3, "signalled", False, b"", Verdict("killed", 3, "why")),
        (-9, "killed", True, b"", Verdict("killed", 137, "why")),
        (-6, "", True, b"abort\n", Verdict("failed", 134, "died of SIGABRT")),
        (-40, "", False, b"", Verdict("failed", 168, "died of signal 40")),
        (1, "", False, b"Traceback\n\nValueError: x\n\n", Verdict("failed", 1, "ValueError: x")),
        (1, "", False, b"\xff\n", Verdict("failed", 1, "\ufffd")),
        (2, "", False, b"", Verdict("failed", 2, "ended with exit code 2")),
        (1, "", False, b"OutOfMemoryError: 2\nat exit\n", Verdict("out_of_memory", 1, "OutOfMemoryError: 2")),
    ],
)
def test_a_run_is_judged_by_how_it_ended(returned, ended_as, oom_killed, recent, expected):
    why = "why" if ended_as else ""
    assert verdict(returned, ended_as=ended_as, why=why, recent=recent, oom_killed=oom_killed) == expected


@pytest.mark.parametrize("returned", [-9, 137])
def test_a_kill_by_the_kernel_for_want_of_memory_is_told(returned):
    assert verdict(returned, ended_as="", why="", recent=b"", oom_killed=True)[:2] == ("out_of_memory", 137)
