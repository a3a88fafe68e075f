"""What scripts do now and then, on a feed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.autosharing.running import Scripts

pytestmark = pytest.mark.whole

N = 12


def run(scripts: Scripts, what: str, *words: str, together: int = 1, **options: Any) -> tuple[list[Any], str]:
    """Return what a script saw, and said."""
    done = scripts.start(0, "corners.py", what, *words, together=together, options=options)
    assert done.wait() == 0, done.output
    assert "Traceback" not in done.output
    *said, seen = done.output.splitlines()
    return json.loads(seen), "\n".join(said)


def all_once(seen: list[list[int]]) -> bool:
    return all(sorted(epoch) == list(range(N)) for epoch in seen)


def test_a_stream_s_workers_stay_as_many_as_the_script_says(scripts: Scripts):
    seen, said = run(scripts, "stream", iterable=True, workers=2)
    assert "reads feed" in said and all_once(seen)


@pytest.mark.parametrize(
    ("what", "epochs", "feeds"),
    [
        ("stream_that_drops", [[5, 5], [5, 5]], 1),
        ("dtype", ["torch.float64"] * 3, 1),
        ("relabels", [[0] * N, [1] * N], 2),
        ("relabels_behind_workers", [[0] * N] * 3, 1),
        ("writes_to_a_map", [[0] * N, [1] * N, [2] * N], 2),  # the third epoch is read alone
    ],
)
def test_epochs_are_as_they_would_be_without_a_feed(scripts: Scripts, what: str, epochs: list[Any], feeds: int):
    seen, said = run(scripts, what, iterable=True)
    assert seen == epochs and said.count("reads feed") == feeds


@pytest.mark.parametrize(("what", "epochs"), [("persistent", 5), ("validates_first", 3)])
def test_persistent_workers_share_each_epoch_that_can_be_shared(scripts: Scripts, what: str, epochs: int):
    seen, said = run(scripts, what)
    assert len(seen) == epochs and all_once(seen)
    assert "reads feed" in said and "is not shared" not in said


def test_a_feed_that_was_stopped_is_read_again_when_there_is_one(scripts: Scripts):
    seen, said = run(scripts, "stopped")
    assert len(seen) >= 3 and all_once(seen)
    assert "was stopped by process" in said or len(seen) == 3


def test_a_look_that_lives_to_the_end_of_the_script_ends_in_silence(scripts: Scripts):
    _, said = run(scripts, "look")
    assert "reads feed" in said and "ignored" not in said


def test_a_look_leaves_its_feed_to_others_and_goes_on_from_its_place_when_it_is_asked_again(scripts: Scripts):
    """However long a step takes: batches are counted, and no seconds."""
    (seen, readers), said = run(scripts, "looks_on")
    assert all_once(seen) and said.count("reads feed") == 2
    assert sorted(readers) in ([0, 1], [1])


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_feed_s_process_is_as_strict_as_the_script_s(scripts: Scripts, workers: str):
    """Which one row shows that is seldom compared."""
    seen, said = run(scripts, "strict", workers, explain=True)
    assert seen == [35_106] * 3 and "reads feed" in said and "not compared" not in said


def test_a_generator_that_the_data_set_owns_goes_on_from_epoch_to_epoch(scripts: Scripts):
    seen, said = run(scripts, "own_generator")
    assert "reads feed" in said and len(seen) == 3 * N == len(set(seen))


def test_what_the_data_set_raises_is_of_its_type_and_ends_the_epoch(scripts: Scripts):
    seen, said = run(scripts, "raises")
    # A feeder that reads ahead may find that row before the script has joined it.
    assert len(seen) == 3 and ("reads feed" in said or "row 3 is broken" in said)
    for epoch in seen:
        assert 3 not in epoch and len(set(epoch)) == len(epoch)
    assert sorted([*seen[-1], 3]) == list(range(N)), "no feed is left, and the loader goes on by itself"


def test_a_feed_that_is_started_again_does_not_repeat_itself(scripts: Scripts):
    seen, _ = run(scripts, "stopped_each_time")
    assert all_once(seen) and len({tuple(order) for order in seen}) == 3


def test_a_loop_in_a_thread_is_told_that_it_reads_no_feed(scripts: Scripts):
    seen, said = run(scripts, "thread")
    assert all_once(seen) and "it is iterated in a thread" in said


@pytest.mark.whole
def test_others_are_waited_for_at_the_first_feed_only(scripts: Scripts):
    *seen, expected = run(scripts, "anew", together=2)[0]
    assert all_once(seen)
    assert sorted(expected) == [1, 2]


UNMADE = """
import os
from torch.utils.data import DataLoader

class Unmade:
    def __len__(self):
        return 12
    def __getitem__(self, i):
        return i
    def __getstate__(self):
        return {"by": os.getpid()}
    def __setstate__(self, state):
        with open("made", "a") as file:
            file.write("once ")
        raise OSError("only where it was made")

for epoch in range(4):
    assert sorted(i for batch in loader for i in batch.tolist()) == list(range(12))
"""


def test_a_data_set_that_cannot_be_made_in_a_feeder_is_tried_there_once(scripts: Scripts):
    text = UNMADE.replace("for epoch", "loader = DataLoader(Unmade(), 3, shuffle=True)\nfor epoch", 1)
    (scripts.folder / "unmade.py").write_text(text)
    done = scripts.start(0, "unmade.py", together=1)
    assert done.wait() == 0, done.output
    assert done.output.count("is not shared") == 1 and "only where it was made" in done.output
    assert (scripts.folder / "made").read_text().split() == ["once"]
