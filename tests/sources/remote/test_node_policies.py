"""Which node makes which block, case by case; ``test_nodes.py`` has the histories at random."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from penstock.sources.remote.nodes import QUEUED, Nodes, WorkerId


def cluster(most: int | None = None, **cores: int) -> Nodes:
    """Nodes of these cores, all of whose workers are ready."""
    nodes = Nodes(most)
    nodes.see(cores)
    for id in nodes.to_start(0.0):
        nodes.ready(id)
    return nodes


def asked(nodes: Nodes, numbers: Iterable[int], now_s: float = 0.0) -> dict[int, WorkerId]:
    """Ask for blocks; return who makes each of them."""
    for number in numbers:
        nodes.add(number)
    return {number: id for id, number in nodes.to_ask(now_s)}


def aside(nodes: Nodes) -> dict[str, str]:
    return {each.node: each.aside for each in nodes.reports() if each.aside}


def used_to(nodes: Nodes, seconds: float) -> None:
    """Have each worker make a block in this time."""
    for number, id in asked(nodes, range(1000, 1000 + nodes.ready_workers)).items():
        assert nodes.came(id, number, seconds)


def test_blocks_go_to_every_worker_before_any_has_two() -> None:
    nodes = cluster(a=2, b=1)
    assert len({*asked(nodes, range(3)).values()}) == 3
    assert len(asked(nodes, range(3, 20))) == 3 * (QUEUED - 1)
    assert nodes.open_blocks == 20


def test_few_workers_are_spread_over_the_nodes() -> None:
    nodes = Nodes(4)
    nodes.see({"a": 8, "b": 8, "c": 1})
    assert [id.node for id in nodes.to_start(0.0)] == ["a", "b", "c", "a"]
    assert nodes.to_start(0.0) == []
    assert nodes.due_s() == 60.0, "no other is to be started until these have failed to"


def test_where_no_more_workers_may_be_the_place_of_one_that_failed_is_another_nodes() -> None:
    nodes = Nodes(1)
    nodes.see({"a": 2, "b": 2})
    started: list[str] = []
    for second in range(3):
        (id,) = nodes.to_start(float(second))
        started.append(id.node)
        nodes.failed(id, "it has other data", float(second))
    assert started == ["a", "a", "b"]


def test_a_node_that_is_late_is_set_aside_at_its_deadline_and_another_makes_its_blocks() -> None:
    nodes = cluster(a=1, b=1)
    used_to(nodes, 0.1)
    makers = asked(nodes, [0, 1], 5.0)
    assert nodes.due_s() == 6.0
    late = makers[0]
    nodes.came(makers[1], 1, 5.2)
    nodes.look(5.999)
    assert not aside(nodes)
    nodes.look(6.0)
    assert aside(nodes) == {late.node: "it has not answered for 1.0 s"}
    assert nodes.to_ask(6.0) == [(makers[1], 0)]


def test_a_slow_node_has_five_times_what_is_usual_there() -> None:
    nodes = cluster(a=1)
    used_to(nodes, 2.0)
    asked(nodes, [0], 100.0)
    assert nodes.due_s() == 110.0


def test_a_node_of_which_nothing_is_known_has_two_seconds() -> None:
    nodes = cluster(a=1)
    asked(nodes, [0], 3.0)
    nodes.look(4.9)
    assert not aside(nodes)
    nodes.look(5.0)
    assert aside(nodes)
    assert nodes.ready_workers == 0


def test_a_node_is_good_again_when_it_answers_and_its_late_block_counts_once() -> None:
    nodes = cluster(a=1, b=1)
    used_to(nodes, 0.1)
    (late,) = asked(nodes, [0], 5.0).values()
    nodes.look(6.0)
    ((other, _),) = nodes.to_ask(6.0)
    assert nodes.came(late, 0, 7.0)
    assert not aside(nodes)
    assert not nodes.came(other, 0, 7.1)
    assert nodes.open_blocks == 0


def test_a_node_is_set_aside_after_three_failures_in_a_row_and_tried_again_later() -> None:
    nodes = cluster(a=2, b=1)
    makers = asked(nodes, range(6))
    torn = [number for number, id in makers.items() if id.node == "a"]
    for number in torn[:3]:
        assert not aside(nodes)
        nodes.raised(makers[number], number, "EIO", 1.0)
    assert aside(nodes) == {"a": "EIO"}
    nodes.raised(makers[torn[3]], torn[3], "EIO", 1.0)
    for number in makers.keys() - torn:
        nodes.came(makers[number], number, 1.0)
    assert nodes.due_s() == 31.0
    nodes.look(30.9)
    assert aside(nodes) == {"a": "EIO"}
    assert [*asked(nodes, [], 30.9)] == torn[:QUEUED], "by the other node, in their order"
    nodes.look(31.0)
    assert not aside(nodes)


def test_a_worker_that_starts_does_not_end_the_time_for_which_its_node_is_set_aside() -> None:
    nodes = Nodes()
    nodes.see({"a": 2})
    first, second = nodes.to_start(0.0)
    nodes.ready(first)
    for number in range(3):
        assert asked(nodes, [number]) == {number: first}
        nodes.raised(first, number, "EIO", 0.0)
    nodes.ready(second)
    assert aside(nodes) == {"a": "EIO"}


def test_a_block_that_fails_on_one_node_is_made_by_another() -> None:
    nodes = cluster(a=2, b=1)
    (first,) = asked(nodes, [0]).values()
    nodes.raised(first, 0, "EIO", 0.0)
    ((second, _),) = nodes.to_ask(0.0)
    assert second.node != first.node
    assert nodes.came(second, 0, 0.1)
    assert nodes.unmade() == []


@pytest.mark.parametrize("cores", [{"a": 2}, {"a": 1, "b": 1, "c": 1}])
def test_a_block_that_fails_on_two_nodes_or_on_all_that_there_are_is_given_up(cores: dict[str, int]) -> None:
    nodes = cluster(**cores)
    makers = asked(nodes, [0])
    while makers:
        nodes.raised(makers[0], 0, f"EIO on {makers[0].node}", 0.0)
        makers = asked(nodes, [])
    failed_last = "a" if len(cores) == 1 else "b"
    assert nodes.unmade() == [(0, f"EIO on {failed_last}")]
    assert nodes.unmade() == []
    assert nodes.open_blocks == 0


def test_a_block_that_kills_its_worker_on_two_nodes_is_given_up() -> None:
    nodes = cluster(a=2, b=2, c=2)
    makers = asked(nodes, range(6))
    nodes.failed(makers[0], "killed by signal 11", 0.0)
    again = asked(nodes, [])
    assert again[0].node != makers[0].node
    assert nodes.unmade() == []
    nodes.came(again[0], next(number for number, id in makers.items() if id == again[0]), 0.1)
    nodes.failed(again[0], "killed by signal 11", 0.2)
    assert nodes.unmade() == [(0, "killed by signal 11")]
    assert nodes.open_blocks == 4


def test_a_worker_that_is_idle_does_not_stay_aside_when_the_one_that_was_late_has_died() -> None:
    nodes = cluster(2, a=3)
    used_to(nodes, 0.1)
    (late,) = asked(nodes, [0], 5.0).values()
    nodes.look(6.0)
    assert aside(nodes)
    nodes.failed(late, "killed", 7.0)
    assert not aside(nodes)
    assert nodes.ready_workers == 1


def test_a_node_whose_workers_never_start_is_tried_every_thirty_seconds_for_ever() -> None:
    nodes = Nodes()
    nodes.see({"a": 1})
    now_s = 0.0
    waits: list[float] = []
    for _ in range(1200):
        due_s = nodes.due_s()
        assert due_s is not None
        waits.append(due_s - now_s)
        now_s = max(now_s, due_s)
        (id,) = nodes.to_start(now_s)
        nodes.failed(id, "it has other data", now_s)
        assert aside(nodes) == {"a": "it has other data"}
    assert waits[:8] == [0, 0, 2, 4, 8, 16, 30, 30]
    assert waits[-1] == 30


def test_what_is_forgotten_is_neither_given_nor_asked_of_another() -> None:
    nodes = cluster(a=1, b=1)
    makers = asked(nodes, range(8))
    nodes.forget()
    nodes.look(20.0)
    assert nodes.to_ask(20.0) == []
    assert len(aside(nodes)) == 2, "they may still be at it"
    assert {nodes.came(id, number, 21.0) for number, id in makers.items()} == {False}
    assert not aside(nodes)
    nodes.raised(makers[0], 0, "EIO", 21.0)
    assert nodes.unmade() == []


def test_workers_that_never_start_leave_their_room_to_others() -> None:
    nodes = Nodes(1)
    nodes.see({"full": 1, "free": 1})
    (stuck,) = nodes.to_start(0.0)
    assert nodes.starting_too_long(59.9) == []
    assert nodes.starting_too_long(60.0) == [stuck]
    nodes.failed(stuck, "no core came free", 60.0)
    assert {id.node for id in nodes.to_start(60.0)} <= {"full", "free"}
    assert nodes.to_start(60.0) == []
