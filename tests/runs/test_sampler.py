"""One process samples the listeners into the series of all runs, whatever fails or dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.forked import eventually
from tests.runs.listeners.kept import Kept
from tests.scripts import output_of

from penstock.runs.listeners.contract import listener_names
from penstock.runs.record import GroupPlan, RunPlan
from penstock.runs.sampler import Begin, End, Schedule
from penstock.runs.store import Store

OURS = ["proc", "host", "disk", "gpu", "gpm", "dcgm", "energy", "feed"]


class Group:
    """Runs that sleep under keepers of their own, noted in a store."""

    def __init__(self, folder: Path, runs: int) -> None:
        self.store = Store.open(folder)
        plans = tuple(RunPlan(command=("true",), name=str(i), directory="/") for i in range(runs))
        self.ids = [record.id for record in self.store.add(GroupPlan(name="group", runs=plans))]
        self.kept = [Kept("burn(0.05)\ntime.sleep(60)", id, index) for index, id in enumerate(self.ids)]

    def begin(self, which: int) -> None:
        watched = self.kept[which].watched
        self.store.began(watched.id, keeper=watched.keeper, pid=watched.pid)

    def end(self, which: int) -> None:
        self.kept[which].close()

    def last(self, which: int) -> dict[str, float]:
        return {name: float(each.values[-1]) for name, each in self.store.series(self.ids[which]).items()}


FAST = (
    "import pathlib, sys\nfrom penstock.runs import sampler\nsampler.INTERVAL_S = 0.05\n"
    "sampler.main(pathlib.Path(sys.argv[1]))"
)


class SamplerProcess:
    def __init__(self, group: Group, environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", FAST, group.store.folder],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )

    def tell(self, *messages: Begin | End) -> None:
        assert self.process.stdin
        for message in messages:
            self.process.stdin.write(msgspec.json.encode(message) + b"\n")
        self.process.stdin.flush()

    def said(self) -> list[str]:
        """End its input, and wait until it ends; return what it said."""
        _, errors = self.process.communicate(timeout=30)
        assert self.process.returncode == 0, errors
        return errors.decode().splitlines()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    made = Group(tmp_path / "store", 2)
    yield made
    for kept in made.kept:
        kept.close()
    made.store.close()


@pytest.fixture
def sampler(group: Group) -> Iterator[SamplerProcess]:
    made = SamplerProcess(group)
    yield made
    with made.process:
        made.process.kill()


def until(group: Group, which: int, **least: int) -> dict[str, float]:
    """Wait until so many points of each series are in the store; return the last values."""
    names = {name.replace("__", "."): points for name, points in least.items()}

    def are_there() -> bool:
        series = group.store.series(group.ids[which])
        return all(name in series and len(series[name].values) >= points for name, points in names.items())

    eventually(are_there)
    return group.last(which)


def test_each_run_gets_its_own_values_and_those_of_the_host(group, sampler):
    group.begin(0)
    sampler.tell(Begin(group.ids[0]), Begin(group.ids[1]))
    first = until(group, 0, proc__cpu_s=5, proc__pss_bytes=1)
    assert group.last(1) == {}  # the store does not know its processes yet
    group.begin(1)
    second = until(group, 1, proc__cpu_s=3)
    assert {name.split(".")[0] for name in first} >= {"proc", "host", "sampler"}
    assert first["proc.processes"] == 1
    assert first["proc.rss_bytes"] > 1 << 20
    series = group.store.series(group.ids[1])
    assert series["host.cpu_s"].values[0] == 0  # since the run began
    assert second["sampler.missed"] >= 0
    group.end(0)
    sampler.tell(End(group.ids[1]))
    energy = [line for line in sampler.said() if "energy" in line]
    assert len(energy) <= 1


def test_who_asks_for_nothing_gets_none_who_is_unknown_is_told_of_and_interrupts_are_ignored(group, sampler):
    group.begin(0)
    group.begin(1)
    sampler.tell(Begin("nobody"), Begin(group.ids[0], ()), Begin(group.ids[1], ("host",)))
    until(group, 1, host__cores=1)
    sampler.process.send_signal(signal.SIGINT)
    sampler.process.send_signal(signal.SIGHUP)
    until(group, 1, host__cores=5)
    until(group, 0, sampler__missed=3)
    assert set(group.last(0)) == {"sampler.missed"}
    sampler.tell(End(group.ids[0]), End(group.ids[1]))
    (said,) = sampler.said()
    assert "run nobody is not sampled" in said


def test_it_goes_on_without_an_input_until_the_last_run_has_ended(group, sampler):
    group.begin(0)
    sampler.tell(Begin(group.ids[0], ("host",)), Begin(group.ids[1], ("host",)))
    until(group, 0, host__cores=1)
    sampler.process.stdin.close()
    group.begin(1)
    points = len(group.store.series(group.ids[0])["host.cores"].values)
    until(group, 0, host__cores=points + 3)
    until(group, 1, host__cores=3)
    assert sampler.process.poll() is None
    group.end(0)
    group.end(1)
    assert sampler.process.wait(30) == 0
    of_host = {f"host.{name}" for name in ("cpu_s", "cores", "cpus", "available_bytes")}
    assert set(group.last(0)) == of_host | {"sampler.missed"}


def test_a_run_whose_command_has_ended_gets_no_rates_of_nothing_while_its_keeper_tidies_up(group, sampler):
    group.begin(0)
    group.begin(1)
    sampler.tell(Begin(group.ids[0], ("proc", "host")), Begin(group.ids[1], ("proc", "host")))
    until(group, 0, proc__cpu_s=2)
    os.kill(group.kept[0].watched.pid, signal.SIGKILL)
    group.kept[0].used_s()

    def points(which: int) -> int:
        return len(group.store.series(group.ids[which])["proc.cpu_s"].values)

    until(group, 1, proc__cpu_s=points(1) + 3)  # what was read before is written
    ended = points(0)
    until(group, 1, proc__cpu_s=points(1) + 5)
    assert points(0) == ended
    assert group.kept[0].process.poll() is None


def test_another_goes_on_where_a_killed_one_stopped(group, sampler):
    group.begin(0)
    sampler.tell(Begin(group.ids[0]))
    until(group, 0, host__cpu_s=10)
    sampler.process.kill()
    sampler.process.communicate()
    before = group.store.series(group.ids[0])
    other = SamplerProcess(group)
    other.tell(Begin(group.ids[0]))
    points = len(before["host.cpu_s"].values)
    until(group, 0, host__cpu_s=points + 5)
    other.tell(End(group.ids[0]))
    other.said()
    after = group.store.series(group.ids[0])
    for name in ("proc.cpu_s", "host.cpu_s", "sampler.missed", "host.cores"):
        assert after[name].values[: len(before[name].values)].tolist() == before[name].values.tolist()
    for name in ("proc.cpu_s", "proc.read_bytes", "host.cpu_s", "sampler.missed"):
        assert sorted(after[name].values) == after[name].values.tolist()
    assert after["host.cpu_s"].values[points] == before["host.cpu_s"].values[-1]


THEIRS = """
from penstock.runs.listeners.contract import Sample, Values
class Listener:
    def __init__(self): self.ticks = 0
    def unavailable(self): return None
    def close(self): pass
class Fails(Listener):
    name = "fails"
    def sample(self, tick):
        self.ticks += 1
        if self.ticks < 3:
            raise RuntimeError(f"tick {self.ticks}")
        return Sample(Values(gauges={"fails.ticks": self.ticks}))
class Words(Listener):
    name = "words"
    def sample(self, tick): return Sample(Values(gauges={"words.word": "word"}))
class Notes(Listener):
    name = "notes"
    def sample(self, tick): return Sample(Values(gauges={"notes.value": 1}), notes=("it snows",))
class Absent(Listener):
    name = "absent"
    def unavailable(self): return "it is never here"
def unmade(): raise OSError(5, "no device")
"""


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    package = tmp_path / "site"
    (package / "theirs-1.dist-info").mkdir(parents=True)
    (package / "theirs.py").write_text(THEIRS)
    (package / "theirs-1.dist-info" / "METADATA").write_text("Name: theirs\nVersion: 1\n")
    made = {"fails": "Fails", "words": "Words", "absent": "Absent", "unmade": "unmade", "notes": "Notes"}
    (package / "theirs-1.dist-info" / "entry_points.txt").write_text(
        "\n".join(["[penstock.listeners]", *(f"{name}=theirs:{what}" for name, what in made.items())])
    )
    monkeypatch.syspath_prepend(package)
    monkeypatch.setenv("PYTHONPATH", str(package), prepend=":")


def test_one_of_others_that_fails_or_notes_something_is_told_of_once_and_asked_again(group, theirs):
    assert listener_names() == [*OURS, "absent", "fails", "notes", "unmade", "words"]
    sampler = SamplerProcess(group)
    group.begin(0)
    sampler.tell(Begin(group.ids[0], ("fails", "words", "absent", "unmade", "none", "notes", "host")))
    assert until(group, 0, host__cores=5, fails__ticks=3)["fails.ticks"] >= 3
    sampler.tell(End(group.ids[0]))
    assert sampler.said() == [
        "penstock: listener unmade is left out: OSError: [Errno 5] no device",
        "penstock: listener none is left out: BadSetting: there is no listener 'none'; there are: "
        "proc, host, disk, gpu, gpm, dcgm, energy, feed, absent, fails, notes, unmade, words",
        "penstock: listener absent is left out: it is never here",
        "penstock: listener fails failed, and is asked again: RuntimeError: tick 1",
        "penstock: listener notes: it snows",
        "penstock: values of listener words are lost: BadSetting: words.word='word': a series takes numbers, "
        "64-bit floats at most",
    ]


def test_where_feeds_cannot_be_asked_all_else_is_sampled(group, tmp_path, monkeypatch):
    open_to_all = tmp_path / "feeds"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    monkeypatch.setenv("PENSTOCK_DIR", str(open_to_all))
    sampler = SamplerProcess(group)
    group.begin(0)
    sampler.tell(Begin(group.ids[0], ("host",)))
    until(group, 0, host__cores=3)
    sampler.tell(End(group.ids[0]))
    (line,) = sampler.said()
    assert line.startswith("penstock: feeds are left out: InsecureDirectory: ")


def test_listeners_that_lack_one_thing_are_left_out_in_one_line(group, fake_gpus, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", fake_gpus.environment["PYTHONPATH"])
    sampler = SamplerProcess(group)
    group.begin(0)
    sampler.tell(Begin(group.ids[0], ("gpu", "host", "gpm")))
    until(group, 0, host__cores=3)
    sampler.tell(End(group.ids[0]))
    assert sampler.said() == ["penstock: listener gpu, gpm is left out: NVML finds no GPU"]


def test_the_sampling_process_has_no_numpy_and_no_torch():
    output_of(
        "import sys\nimport penstock.runs.sampler\n"
        "from penstock.runs.listeners.contract import listener_names, make_listener\n"
        f"for name in {OURS}: make_listener(name)\n"
        "assert not {'numpy', 'torch', 'rich', 'typer'} & set(sys.modules)"
    )


@pytest.fixture
def schedule():
    made = Schedule()
    made.restart(10.0)
    return made


def test_ticks_do_not_drift_however_late_each_is_noticed(schedule):
    assert schedule.is_due(10.3)
    assert not schedule.is_due(10.9)
    assert schedule.wait_s(10.9) == 11.0 - 10.9
    assert schedule.is_due(11.6)
    assert schedule.wait_s(11.6) == 12.0 - 11.6
    assert schedule.missed == 0


def test_ticks_that_are_over_are_left_out_and_counted(schedule):
    assert schedule.is_due(13.5)
    assert schedule.missed == 3
    assert not schedule.is_due(13.9)
    assert schedule.is_due(14.0)
    assert schedule.missed == 3
