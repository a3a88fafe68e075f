"""Schedulers are killed, runs and feeders too, profiles lie: no run is lost, none starts twice."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.forked import ForkServer, eventually
from tests.runs.running import launches, records
from tests.schedule.scheduled import Scheduled, counted, events, spec

import penstock
from penstock.runs.stop import stop
from penstock.runs.store import Store
from penstock.runs.store.store import RunRecord
from penstock.schedule.profiles import Profile, Profiles

GIB = 2**30


pytestmark = [pytest.mark.whole, pytest.mark.timeout(240)]  # each starts many Pythons, one after the other


@pytest.fixture
def schedule(
    servers: dict[str, ForkServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Scheduled]]:
    monkeypatch.setenv("STARTS_FEEDERS", servers["numpy"].python)
    with launches(Scheduled, servers, tmp_path) as start:
        yield start


def known(folder: Path, plan: str, **more: object) -> None:
    """Believe figures of a run of the file before it is scheduled."""
    values = {"preparation_s": 1e-5, "own_s": 1e-5, "gpu_s": 1e-4, "start_s": 0.3, "memory_bytes": GIB, **more}
    run = next(run for run in planned(folder) if run.name == plan)
    (folder / "store").mkdir(mode=0o700, exist_ok=True)
    profiles = Profiles(folder / "store", "simulated")
    profiles.put(profiles.key(run.plan), Profile(**values))  # type: ignore[arg-type]


def ledger_of(folder: Path) -> Path:
    return eventually(lambda: [*(folder / "store/schedules").glob("*.json")])[0]


def ledger(folder: Path) -> str:
    return ledger_of(folder).read_text()


def is_over(folder: Path) -> bool:
    """Whether the file's schedule is over: the next one would be another."""
    return json.loads(ledger(folder))["is_over"]


def planned(folder: Path) -> list[RunRecord]:
    """The runs of the file, as a store would have them."""
    from penstock.runs.spec.checks import Gpus
    from penstock.runs.spec.open import Spec

    with Spec(folder / "spec.yaml", Gpus()) as file, Store.open(folder / "elsewhere") as store:
        return [record for group in file.groups for record in store.add(group)]


def test_a_scheduler_that_is_killed_at_every_event_starts_no_run_twice_and_loses_none(
    schedule: Callable[..., Scheduled], tmp_path: Path, feeds_directory: Path
) -> None:
    file = spec(tmp_path, "a 1 0.02", "b 1 0.02", "c 1 0.01", "d 1 0.01", "e 1 0.01", "f 1 0.01")
    killed, chance = 0, random.Random(0)
    while True:
        one, seen = schedule(file, "--policy", "fifo"), len(events(tmp_path))
        if killed % 3 == 2:  # also between a start and what the store knows of it
            time.sleep(chance.uniform(0.2, 0.8))
        else:
            eventually(lambda one=one, seen=seen: len(events(tmp_path)) > seen or one.ended)
        if one.ended:
            break
        one.kill()
        killed += 1
        if is_over(tmp_path):  # it was killed amid its last words
            break
    assert killed >= 3
    once = dict.fromkeys("abcdef", 1)
    assert counted(tmp_path, "began") == once
    assert counted(tmp_path, "ended") == once
    assert [record.status for record in records(tmp_path)] == ["finished"] * 6
    for claim in feeds_directory.glob("*.claim"):  # of one that was killed, for the next to take
        claim.unlink()


def test_runs_live_on_when_their_scheduler_is_killed_and_the_next_starts_none_again(schedule, tmp_path):
    """Meanwhile its file is edited, a record is removed, and the clock is set back."""
    more = {"a": "", "b": "holds", "d": ""}
    runs = [{"command": f"train.py {name} 1 0 {word}", "name": name} for name, word in more.items()]
    runs.append({"command": "train.py e 1 0", "name": "e", "after": ["b"]})
    first = schedule(spec(tmp_path, *runs))
    eventually(lambda: ledger(tmp_path).count('"status":"finished"') == 2)
    with Store.open(tmp_path / "store") as store:
        store.remove([record.id for record in store.runs() if record.name == "a"])
    first.kill()
    past = json.loads(ledger(tmp_path))
    ledger_of(tmp_path).write_text(json.dumps({**past, "began_s": past["began_s"] + 1e6}))  # the future
    edited = [{**run, "priority": 2, "memory": "1GiB", "epochs": 4} for run in reversed(runs)]
    after = {"command": "train.py c 1 0", "name": "c", "after": ["a", "b"], "deadline": "1h"}
    file = spec(tmp_path, *edited, after)
    shown = schedule(file, "--dry-run")
    assert shown.wait() == 0, shown.errors
    assert "running" in shown.output and "finished" in shown.output and "waiting" in shown.output
    second = schedule(file)
    eventually(lambda: "was begun" in second.errors)
    (tmp_path / "go").touch()
    assert second.wait() == 0, second.errors
    assert counted(tmp_path, "began") == counted(tmp_path, "ended") == dict.fromkeys("abcde", 1)


def test_two_schedulers_do_not_use_one_gpu(schedule: Callable[..., Scheduled], tmp_path: Path) -> None:
    one = schedule(spec(tmp_path, "a 1 0 holds"))
    eventually(lambda: counted(tmp_path, "began")["a"])
    other = tmp_path / "other"
    other.mkdir()
    second = schedule(spec(other, "b 1 0"))
    assert second.wait() == 2
    assert f"process {one.pid}" in second.errors
    (tmp_path / "go").touch()
    assert one.wait() == 0


def test_a_run_that_fails_ends_those_that_come_after_it_and_no_other_and_its_exit_code_is_the_schedule_s(
    schedule: Callable[..., Scheduled], tmp_path: Path
) -> None:
    file = spec(
        tmp_path,
        {"command": "train.py b 1 0", "name": "b", "after": ["a"]},
        {"command": ["sh", "-c", "echo it cannot be >&2; exit 3"], "name": "a"},
        {"command": "train.py c 1 0", "name": "c", "after": ["b"]},
        "d 1 0",
        {"command": "sleep 60", "name": "e", "time_limit": "0.1s"},
        {"command": "train.py f 1 0", "name": "f", "after": ["e"]},
    )
    assert schedule(file).wait() == 3
    ends = {record.name: (record.status, record.reason) for record in records(tmp_path)}
    assert ends["a"] == ("failed", "it cannot be")
    assert ends["b"] == ("failed", "never began: it comes after a, which failed")
    assert ends["c"] == ("failed", "never began: it comes after b, which failed")
    assert ends["d"][0] == "finished"
    assert ends["f"] == ("failed", "never began: it comes after e, which timed out")


def test_a_run_that_runs_out_of_memory_beside_another_runs_once_more_alone(schedule, tmp_path):
    file = spec(tmp_path, "a 3 0.02 full", "b 3 0.02", gpus=1)
    for name in "ab":
        known(tmp_path, name, preparation_s=1e-3, gpu_s=1e-6)
    one = schedule(file, "--policy", "carma-magm")
    assert one.wait() == 0, one.errors
    assert "a ran out of memory beside b: it runs once more, alone" in one.errors
    assert counted(tmp_path, "began") == {"a": 2, "b": 1}
    order = [" ".join(words[:2]) for words in events(tmp_path) if words[1] in ("began", "ended")]
    assert order.index("b ended") < len(order) - 1 - order[::-1].index("a began")  # alone
    assert len(Profiles(tmp_path / "store", "simulated").incompatible()) == 1  # and never beside it again


def test_runs_that_are_killed_hang_or_leave_children_hold_nothing_up(schedule, tmp_path):
    file = spec(
        tmp_path,
        "a 1 0 holds",
        {"command": "train.py b 1 0 holds", "name": "b", "time_limit": "2s"},
        {"command": ["sh", "-c", "setsid sleep 60 & echo left"], "name": "c"},
        "d 1 0",
    )
    one = schedule(file)
    a = eventually(lambda: [record.pid for record in records(tmp_path) if record.name == "a" and record.pid])
    os.kill(a[0], signal.SIGKILL)
    assert one.wait() == 137  # as penstock run: the exit code of the first that has not finished
    ends = {record.name: record.status for record in records(tmp_path)}
    assert ends == {"a": "killed", "b": "timed_out", "c": "finished", "d": "finished"}


def test_a_run_that_somebody_stops_before_it_begins_is_waited_for_no_more(schedule, tmp_path):
    after = {"command": "train.py c 1 0", "name": "c", "after": "b"}
    one = schedule(spec(tmp_path, "a 1 0 holds", "b 1 0", after, gpus=1))
    eventually(lambda: counted(tmp_path, "began")["a"])
    with Store.open(tmp_path / "store") as store:
        (b,) = (record for record in store.runs() if record.name == "b")
        stop(store, [b.id])
    eventually(lambda: "failed" in [record.status for record in records(tmp_path)])
    (tmp_path / "go").touch()
    assert one.wait() == 1, one.errors
    assert counted(tmp_path, "began") == {"a": 1}
    assert records(tmp_path)[2].reason == "never began: it comes after b, which was killed"


def test_a_run_of_which_nothing_is_known_is_alone_on_its_gpu_and_measured(schedule, tmp_path):
    file = spec(tmp_path, "a 60 0.03", "b 1 0", gpus=1)
    one = schedule(file)
    assert one.wait() == 0, one.errors
    order = [words[1] for words in events(tmp_path) if words[1] in ("began", "ended")]
    assert order == ["began", "ended"] * 2
    a = next(run for run in planned(tmp_path) if run.name == "a")
    profiles = Profiles(tmp_path / "store", "simulated")
    measured = profiles.get(profiles.key(a.plan))
    assert measured and measured.samples == pytest.approx(60 * 400, rel=0.02)
    assert measured.gpu_s == pytest.approx(0.03 / 40, rel=0.5)


def test_a_member_far_slower_than_profiled_goes_to_a_feed_of_its_own(schedule, tmp_path):
    data = "numbers:one"
    file = spec(tmp_path, "a 40 0.02 wide", "b 14 0.2 wide")
    for name in "ab":
        more = {"data": data, "samples_per_epoch": 400, "samples": 16_000.0}
        known(tmp_path, name, preparation_s=4e-3, gpu_s=5e-4, **more)
    one = schedule(file)
    assert one.wait() == 0, one.errors
    feeds = {name: [words[3] for words in events(tmp_path) if words[:2] == [name, "epoch"]] for name in "ab"}
    assert feeds["a"][0] == feeds["b"][0]
    assert feeds["a"][-1] != feeds["b"][-1]  # every epoch of both was whole, or they would have failed


@pytest.mark.soak
def test_a_pair_that_is_slower_together_is_parted_and_not_made_again(schedule, tmp_path):
    runs = [
        {"command": f"train.py {name} 30 0.05 fights", "name": name, "preempt": True, "feed": "none"}
        for name in "ab"
    ]
    file = spec(tmp_path, *runs, gpus=1)
    for name in "ab":  # alone, a step takes 50 ms; beside another it takes five times as long
        known(tmp_path, name, preparation_s=3.5e-3, gpu_s=0.05 / 40, samples_per_epoch=400, samples=12_000.0)
    one = schedule(file, "--policy", "carma-magm")
    one.wait_until_failed("are slower together than one after the other: never again")
    assert one.wait() == 0, one.errors
    assert len(Profiles(tmp_path / "store", "simulated").incompatible()) == 1


def test_memory_that_runs_out_while_no_scheduler_lives_is_seen_by_the_next(schedule, tmp_path):
    file = spec(tmp_path, "a 3 0.02 full later", "b 3 0.02 holds", gpus=1)
    for name in "ab":
        known(tmp_path, name, preparation_s=1e-3, gpu_s=1e-6)
    first = schedule(file, "--policy", "carma-magm")
    eventually(lambda: len(counted(tmp_path, "began")) == 2)
    first.kill()
    (tmp_path / "burst").touch()
    eventually(lambda: "out_of_memory" in [record.status for record in records(tmp_path)])
    second = schedule(file, "--policy", "carma-magm")
    second.wait_until_failed("a ran out of memory beside b: it runs once more, alone")
    (tmp_path / "go").touch()
    assert second.wait() == 0, second.errors
    assert counted(tmp_path, "ended") == {"a": 1, "b": 1}


def test_when_a_feeder_is_killed_all_runs_go_on(schedule: Callable[..., Scheduled], tmp_path: Path) -> None:
    one = schedule(spec(tmp_path, "a 3 0.02", "b 3 0.02"))
    eventually(lambda: counted(tmp_path, "epoch")["a"] and counted(tmp_path, "epoch")["b"])
    for feed in penstock.feeds():
        os.kill(feed.pid, signal.SIGKILL)
    assert one.wait() == 0, one.errors
    assert counted(tmp_path, "ended") == {"a": 1, "b": 1}


def test_memory_is_never_over_booked_whatever_profiles_say(schedule, tmp_path):
    runs = [
        {"command": f"train.py {name} 2 0.01", "name": name, "memory": "10GiB", "epochs": 2} for name in "abcd"
    ]
    file = spec(tmp_path, *runs)
    for name, wrong in zip("abcd", (0.1, 10.0, 0.1, 10.0), strict=True):
        known(tmp_path, name, gpu_s=1e-3 * wrong, samples_per_epoch=400)
    assert schedule(file).wait() == 0
    on: dict[str, str] = {}
    for name, what, *rest in events(tmp_path):
        if what == "began":
            assert rest[0] not in on.values(), f"{name} beside another on GPU {rest[0]}"
            on[name] = rest[0]
        elif what == "ended":
            del on[name]
    assert counted(tmp_path, "ended") == dict.fromkeys("abcd", 1)


def test_runs_whose_data_differ_under_one_name_read_feeds_of_their_own(schedule, tmp_path):
    file = spec(tmp_path, "a 2 0.01", "b 2 0.01")
    train = tmp_path / "train.py"
    train.write_text(train.read_text().replace('int(os.environ.get("SHIFT", 0))', '(name == "b") * 1000'))
    one = schedule(file)
    assert one.wait() == 0, one.errors
    feeds = {words[0]: words[3] for words in events(tmp_path) if words[1] == "epoch"}
    assert feeds["a"] != feeds["b"]


def test_where_the_store_takes_nothing_all_goes_on_and_what_waits_starts_later(schedule, tmp_path):
    one = schedule(spec(tmp_path, "a 1 0 holds", "b 1 0", gpus=1))
    eventually(lambda: counted(tmp_path, "began")["a"])
    b = next(record.id for record in records(tmp_path) if record.name == "b")
    in_the_way = tmp_path / "store" / "schedules", tmp_path / "store" / b / "files"
    in_the_way[0].rename(tmp_path / "away")
    for path in in_the_way:
        path.touch()
    (tmp_path / "go").touch()
    one.wait_until_failed("b could not be started, and waits")
    one.wait_until_failed("the schedule cannot be written down")
    for path in in_the_way:
        path.unlink()
    (tmp_path / "away").rename(in_the_way[0])
    assert one.wait() == 0, one.errors
    assert counted(tmp_path, "ended") == {"a": 1, "b": 1}
