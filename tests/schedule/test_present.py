"""What a schedule believes, remembers and names; no process runs."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.basics.lanes import Bar, rows_of
from penstock.runs.record import GroupPlan, RunPlan
from penstock.runs.store import Store
from penstock.schedule.estimates import Estimates, check_fits, dependencies
from penstock.schedule.jobs import GpuMachine, HostMachine, Job
from penstock.schedule.ledger import Entry, LedgerFile, begin, ledger_of, once_more
from penstock.schedule.profiles import Profile, Profiles
from penstock.schedule.starting import feed_workers, suffixes
from penstock.schedule.usage import SampleCosts, Usage, UsageSpan

GIB = 2**30
TWO_GPUS = HostMachine(GpuMachine(cores=4, memories=(8.0 * GIB, 16.0 * GIB)), (), "simulated", True)
MEASURED = Profile(
    preparation_s=4e-3, own_s=1e-4, gpu_s=1e-3, start_s=3.0, memory_bytes=GIB, data="x:1", samples_per_epoch=500
)


def plan(name: str, **more: object) -> RunPlan:
    values = {"command": ("train.py", "--lr", name), "parameters": {"lr": name}, "directory": "/", **more}
    return RunPlan(name=name, **values)  # type: ignore[arg-type]


def entries_in(groups: list[GroupPlan]) -> list[Entry]:
    return ledger_of(groups, None).entries


def group(name: str, *runs: RunPlan) -> GroupPlan:
    return GroupPlan(name=name, runs=runs)


@st.composite
def histories(draw: st.DrawFn) -> list[list[list[str]]]:
    """Divisions of runs into feeds, one after the other."""
    names = [f"run{i}" for i in range(draw(st.integers(1, 6)))]
    found = list[list[list[str]]]()
    for _ in range(draw(st.integers(1, 5))):
        there = [name for name in names if draw(st.booleans())]
        parts = dict[int, list[str]]()
        for name in there:
            parts.setdefault(draw(st.integers(0, 2)), []).append(name)
        found.append([*parts.values()])
    return found


@given(histories())
def test_a_feed_keeps_its_name_and_no_two_have_one(history: list[list[list[str]]]) -> None:
    now: dict[str, str] = {f"run{i}": "" for i in range(6)}
    counter = itertools.count()
    for parts in history:
        before = dict(now)
        new = suffixes(parts, now, lambda: f"f{next(counter)}")
        assert [len({new[name] for name in part}) for part in parts] == [1] * len(parts)
        assert len({new[part[0]] for part in parts}) == len(parts)
        now |= new
        if parts and len(parts) == 1 and len({before[name] for name in parts[0]} - {""}) == 1:
            assert new[parts[0][0]] in {before[name] for name in parts[0]}  # nobody moves in vain


def test_workers_keep_up_with_the_fastest_that_the_members_can_go() -> None:
    job = Job(name="a", samples=1, preparation_s=4e-3, gpu_s=1e-3)
    assert feed_workers([job], GpuMachine(cores=16, memories=(1.0,))) == 4
    assert feed_workers([job], GpuMachine(cores=2, memories=(1.0,))) == 2
    assert feed_workers([replace(job, gpu_s=1.0)], GpuMachine(cores=16, memories=(1.0,))) == 1


def estimates_of(entries: list, tmp_path: Path, *known: tuple[RunPlan, Profile]) -> Estimates:
    profiles = Profiles(tmp_path, "simulated")
    for each, profile in known:
        profiles.put(profiles.key(each), profile)
    return Estimates(entries, profiles, TWO_GPUS)


def test_what_is_unknown_takes_a_whole_gpu_and_siblings_are_believed_alike(tmp_path: Path) -> None:
    entries = entries_in([group("g", plan("0.1"), plan("0.2")), group("h", plan("0.3"))])
    estimates = estimates_of(entries, tmp_path, (plan("0.1"), MEASURED))
    assert [estimates.source(entry) for entry in entries] == ["measured", "like a sibling", "unknown"]
    jobs = [estimates.job(entry) for entry in entries]
    assert [(job.memory_bytes, job.alone) for job in jobs] == [(GIB, False), (GIB, False), (0, True)]
    assert [job.data for job in jobs] == ["x:1", "x:1", "?"]
    assert estimates.samples(entries[1]) == (5000.0, True)  # ten epochs are assumed


@pytest.mark.parametrize(
    ("name", "value", "more", "samples"),
    [
        ("epochs", "99", {}, (99 * 500.0, True)),
        ("max_steps", "4", {}, (4 * 500.0, True)),
        ("lr", "99", {}, (1000.0, False)),
        ("epochs", "soon", {}, (1000.0, False)),
        ("epochs", "99", {"epochs": 7}, (3500.0, False)),
    ],
)
def test_a_sibling_is_as_long_as_its_own_parameters_say(
    tmp_path: Path, name: str, value: str, more: dict[str, int], samples: tuple[float, bool]
) -> None:
    plans = [
        replace(plan(each), command=("python", "train.py", f"--{name}", each), parameters={name: each}, **more)
        for each in ("2", value)
    ]
    entries = entries_in([group("g", *plans)])
    estimates = estimates_of(entries, tmp_path, (plans[0], replace(MEASURED, samples=1000.0)))
    assert estimates.source(entries[1]) == "like a sibling"
    assert estimates.samples(entries[1]) == samples
    assert estimates.samples(entries[0]) == (1000.0, False)


def test_a_parameter_is_not_cut_out_of_a_word_that_ends_like_it(tmp_path: Path) -> None:
    def at(step: str, seed: str) -> RunPlan:
        words = ("python", "train.py", "--step", step, f"--seed={seed}")
        return replace(plan(seed), command=words, parameters={"seed": seed})

    entries = entries_in([group("g", at("0.001", "1"), at("0.002", "2"), at("0.001", "3"))])
    estimates = estimates_of(entries, tmp_path, (entries[0].plan, MEASURED))
    assert [estimates.source(entry) for entry in entries] == ["measured", "unknown", "like a sibling"]


@pytest.mark.parametrize(
    ("words", "values", "alike"),
    [
        ("out/lr{}", ("0.1", "0.3"), True),
        ("-b{}", ("64", "8"), True),
        ("resnet{}", ("18", "50"), True),
        ("--opt={}", ("sgd", "adam"), True),
        ("1e-{}", ("1", "2"), False),
        ("-{}", ("1", "2"), False),
        ("x{}", ("sgd", "adam"), False),
    ],
)
def test_values_of_parameters_are_found_in_words(tmp_path: Path, words: str, values: Any, alike: bool) -> None:
    plans = [replace(plan(each), command=("t.py", words.format(each)), parameters={"p": each}) for each in values]
    entries = entries_in([group("g", *plans)])
    estimates = estimates_of(entries, tmp_path, (plans[0], MEASURED))
    assert estimates.source(entries[1]) == ("like a sibling" if alike else "unknown")


def test_who_takes_memory_that_nobody_knows_is_alone_until_it_is_seen(tmp_path: Path) -> None:
    (entry,) = entries_in([group("g", plan("0.1"))])
    estimates = estimates_of(
        [entry], tmp_path, (plan("0.1"), replace(MEASURED, memory_bytes=None, feed_start_s=2.0))
    )
    look = Usage(20.0, 200.0, 18.0, 6.0, 12.0, None, None)
    assert estimates.job(entry).alone
    for taken, alone, believed in ((None, True, 0), (19 * GIB // 20, False, GIB), (None, False, GIB)):
        seen = UsageSpan(look, look._replace(memory_bytes=taken), SampleCosts(1.0, 1.0, 1.0, 1.0))
        estimates.learn(entry, seen, "", has_gpu=True)
        job = estimates.job(entry)
        assert (job.alone, job.memory_bytes) == (alone, pytest.approx(believed, abs=1))
    assert estimates.job(entry).feed_start_s == 2.0


def test_what_a_file_declares_counts_before_what_was_measured(tmp_path: Path) -> None:
    declared = plan("0.1", epochs=3, memory_bytes=3 * GIB, gpus=2, feed="none", deadline_s=100.0)
    (entry,) = entries_in([group("g", declared)])
    job = estimates_of([entry], tmp_path, (declared, MEASURED)).job(entry, elapsed_s=30.0)
    assert (job.samples, job.memory_bytes, job.gpus, job.data, job.deadline_s) == (1500.0, 3 * GIB, 2, "", 70.0)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"memory_bytes": 20 * GIB}, "needs 20.0 GiB (declared), which no GPU here has: 16.0 GiB may be filled"),
        ({"gpus": 3}, "needs 3 GPUs at once, and there are 2"),
    ],
)
def test_a_run_that_never_fits_is_named_at_once(tmp_path: Path, more: dict[str, object], said: str) -> None:
    entries = entries_in([group("g", plan("0.1", **more))])
    assert said in check_fits(entries, estimates_of(entries, tmp_path), TWO_GPUS)


def test_after_names_runs_and_groups(tmp_path: Path) -> None:
    groups = [group("g", plan("a"), plan("b")), group("h", plan("a", after=("g", "c")), plan("c", after=("b",)))]
    entries = entries_in(groups)
    assert [entry.name for entry in entries] == ["g/a", "b", "h/a", "c"]
    needs = dependencies(entries, groups, in_turn=False)
    assert needs == {"g/a": set(), "b": set(), "h/a": {"g/a", "b", "c"}, "c": {"b"}}
    in_turn = dependencies(entries, groups, in_turn=True)
    assert in_turn["c"] == {"g/a", "b"}


def test_a_changed_file_keeps_the_runs_that_it_still_has(tmp_path: Path) -> None:
    spec = tmp_path / "sweep.yaml"
    with Store.open(tmp_path / "store") as store:
        file = LedgerFile(store, spec)
        assert file.read() is None
        groups = [group("g", plan("a"), plan("b"), plan("gone"))]
        first = ledger_of(groups, None)
        begin(store, groups, first)
        file.write(first)
        by_name = {entry.name: entry.id for entry in first.entries}
        store.began(by_name["a"], keeper=(1, 1), pid=1)
        store.ended(by_name["a"], "finished", 0)
        groups = [group("g", plan("new"), plan("b", priority=3.0), plan("a"))]
        again = ledger_of(groups, file.read())
        records = begin(store, groups, again)
        assert [entry.name for entry in again.entries] == ["new", "b", "a", "gone"]
        assert [again.entries[1].id, again.entries[2].id] == [by_name["b"], by_name["a"]]
        assert again.entries[1].plan.priority == records[by_name["b"]].plan.priority == 3.0
        assert store.run(by_name["gone"]).reason == "never began: its file has it no more"
        assert again.began_s == first.began_s and again.id == first.id
        file.write(replace(again, is_over=True))
        assert file.read() is None  # a new one begins


def test_equal_runs_of_two_groups_of_one_name_are_two(tmp_path: Path) -> None:
    groups = [group("g", plan("a")), group("g", plan("a"))]
    with Store.open(tmp_path / "store") as store:
        first = ledger_of(groups, None)
        begin(store, groups, first)
        again = ledger_of(groups, first)
        assert [entry.id for entry in again.entries] == [entry.id for entry in first.entries]
        assert len({entry.name for entry in again.entries}) == 2


def test_secrets_are_masked_in_the_store_and_given_to_the_run(tmp_path: Path) -> None:
    token = "hf_0123456789abcdefgh"
    groups = [group("g", plan("a", command=("train.py", "--token", token)))]
    with Store.open(tmp_path / "store") as store:
        ledger = ledger_of(groups, None)
        records = begin(store, groups, ledger)
        (entry,), (record,) = ledger.entries, records.values()
        assert token not in store.run(entry.id).plan.command and token not in entry.plan.command
        assert record.plan.command[-1] == token
        store.ended(entry.id, "out_of_memory", 1)
        first, new = entry.id, once_more(store, entry, record.plan)
        assert (entry.id, entry.earlier) == (new.id, [(first, ())])
        assert token not in store.run(new.id).plan.command


def test_bars_of_one_lane_never_lie_on_each_other() -> None:
    rows, heights = rows_of(
        [Bar(0, 0, 2, "a", 0), Bar(0, 1, 3, "b", 0), Bar(0, 2, 3, "c", 0), Bar(1, 0, 1, "d", 0)]
    )
    assert (rows, heights) == ([0, 1, 0, 2], [2, 1])
