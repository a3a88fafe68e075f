"""Workers that persist see what the script writes to memory that it shares with them, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.autosharing.running import Scripts

CHANGED = (
    "is not shared: memory that its persistent workers share has changed, which a feed does not see: its own "
    "workers begin now, with what is now"
)


def whole(*each: str) -> Any:
    return pytest.param(*each, marks=pytest.mark.whole)


@pytest.mark.parametrize("kind", ["tensor", "mapped", "block", whole("array"), whole("view"), whole("anonymous")])
def test_from_the_first_change_of_memory_that_persistent_workers_share_a_script_uses_its_own_loader(scripts, kind):
    run = scripts.start(0, "stages.py", kind, "stage")
    assert run.wait() == 0, run.output
    assert json.loads(run.output.splitlines()[-1]) == [[0], [0], [200], [300], [400]]
    assert run.output.count(CHANGED) == 1 and run.output.count("is not shared") == 1


@pytest.mark.parametrize(
    ("kind", "change"),
    [("tensor", "label"), whole("mapped", "nothing"), whole("block", "nothing"), whole("read_only", "label")],
)
def test_memory_that_stays_and_attributes_that_persistent_workers_do_not_see_leave_a_script_its_feed(
    scripts: Scripts, kind: str, change: str
):
    run = scripts.start(0, "stages.py", kind, change)
    assert run.wait() == 0, run.output
    assert json.loads(run.output.splitlines()[-1]) == [[0]] * 5
    assert run.output.count("reads feed") == 1 and "is not shared" not in run.output
