"""Runs are admitted when they may start, and room is never given twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.runs.launch.groups import Admission

ROOM = {"gpus": 3, "host": 8}


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[str, set[str]], dict[str, dict[str, int]]]:
    """Runs that each fit into the room, and come after some of those drawn before, in an order of its own."""
    runs = draw(st.permutations([f"r{i}" for i in range(draw(st.integers(1, 9)))]))
    before = {
        run: draw(st.sets(st.sampled_from([*runs[:i], "of an earlier group"]))) for i, run in enumerate(runs)
    }
    amounts = {name: st.integers(0, there) for name, there in ROOM.items()}
    return {run: before[run] for run in sorted(runs)}, {
        run: draw(st.fixed_dictionaries({}, optional=amounts)) for run in runs
    }


@given(groups(), st.data())
def test_no_run_is_lost_none_starts_too_early_and_room_is_never_over_booked(drawn, data):
    before, needs = drawn
    admission = Admission(before, needs, ROOM)
    started, running, ended = list[str](), list[str](), set[str]()
    while taken := admission.take():
        started += taken
        running += taken
        assert not admission.take(), "all that can start has started"
        assert all(before[run] & before.keys() <= ended for run in taken)
        assert all(sum(needs[run].get(name, 0) for run in running) <= there for name, there in ROOM.items())
        while running:
            run = data.draw(st.sampled_from(running))
            running.remove(run)
            ended.add(run)
            admission.end(run)
            if more := admission.take():
                started += more
                running += more
                assert all(before[each] & before.keys() <= ended for each in more)
                assert all(sum(needs[each].get(name, 0) for each in running) <= ROOM[name] for name in ROOM)
    assert sorted(started) == sorted(before)


def test_runs_start_in_order_and_what_fits_waits_for_nobody():
    admission = Admission(
        {"a": (), "b": (), "c": (), "d": ("c",)}, {"a": {"gpus": 2}, "b": {"gpus": 2}, "c": {}, "d": {}}, ROOM
    )
    assert admission.take() == ["a", "c"]
    admission.end("c")
    assert admission.take() == ["d"]
    admission.end("a")
    assert admission.take() == ["b"]
