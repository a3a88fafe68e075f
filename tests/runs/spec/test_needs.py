"""The table `machine` of a spec, and what runs may ask of the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.fakes.nvml.fake_gpus import FakeGpus

from penstock.errors import BadSetting
from penstock.runs.record import MachinePlan, RunPlan
from penstock.runs.spec.checks import Gpus
from penstock.runs.spec.needs import needs
from penstock.runs.spec.open import Spec

UUIDS = tuple(f"GPU-0000000{i}-0000-4000-8000-000000000000" for i in range(2))


@pytest.fixture
def spec(tmp_path: Path, fake_gpus: FakeGpus) -> Path:
    """Where a file can lie, on a machine of two GPUs, of 80 and 24 GiB."""
    assert (fake_gpus.add(), fake_gpus.add(memory_bytes=24 << 30)) == UUIDS
    return tmp_path / "spec.yaml"


def opened(path: Path, machine: str, run: str = "", *, without: bool = False, in_turn: bool = False) -> Spec:
    path.write_text(f"machine: {machine}\ngroups:\n- command: sh\n  {run}\n")
    with Spec(path, Gpus(without=without), in_turn=in_turn) as found:
        return found


def test_a_machine_is_planned(spec: Path):
    text = "{gpus: [1, GPU-00000000], cores: 1.5, memory: 6GiB, objective: jct, groups: in turn}"
    assert opened(spec, text).machine == MachinePlan(
        gpus=UUIDS[::-1], cores=1.5, memory_bytes=6 << 30, objective="jct", in_turn=True
    )
    assert opened(spec, "{gpus: 9, simulated: true}").machine == MachinePlan(gpus=9, simulated=True)
    assert opened(spec, "{}").machine == MachinePlan()
    assert opened(spec, "{gpus: 1}", "devices: [0]").groups[0].runs[0].devices == UUIDS[:1]
    assert opened(spec, "{gpus: 8, simulated: true}", "devices: [7]").groups[0].runs[0].devices == ("7",)


@pytest.mark.parametrize(
    ("machine", "run", "said"),
    [
        ("{gpu: 1}", "", " machine: there is no key gpu; did you mean gpus?"),
        ("{gpus: -1}", "", " machine.gpus: it must be a whole number of at least 0"),
        ("{gpus: all}", "", " machine.gpus: it must be a whole number or a list"),
        ("{gpus: [2]}", "", " machine.gpus: there is no GPU '2'; there are 0 (GPU-00000000"),
        ("{gpus: 3}", "", " machine.gpus=3: 2 can be used; simulated: true is for GPUs that are not there"),
        ("{cores: 0}", "", " machine.cores: it must be a number above 0"),
        ("{memory: 0}", "", " machine.memory='0': give bytes"),
        ("{objective: energy}", "", " machine.objective='energy': there are makespan and jct"),
        ("{groups: together}", "", " machine.groups='together': leave it out, or write: in turn"),
        ("{simulated: true}", "", " machine.simulated: gpus must say how many GPUs these are"),
        ("{simulated: true, gpus: [0]}", "", " machine.simulated: gpus must say how many"),
        ("{gpus: 1}", "gpus: 2", " groups[0].gpus=2: the machine has 1"),
        ("{gpus: [1]}", "gpus: 2", " groups[0].gpus=2: the machine has 1"),
        ("{gpus: 0}", "gpus: 1", " groups[0].gpus=1: the machine has 0"),
        ("{gpus: 4, simulated: true}", "gpus: 5", " groups[0].gpus=5: the machine has 4"),
        (
            "{gpus: 2, simulated: true}",
            "devices: [2]",
            " groups[0].devices: there is no GPU '2'; simulated are 0 to 1",
        ),
        ("{gpus: 2, simulated: true}", "devices: [x]", " groups[0].devices: there is no GPU 'x'; simulated"),
        ("{gpus: 2, simulated: true}", "devices: [1, 01]", " groups[0].devices: '1' is there twice"),
        (
            "{gpus: 2, simulated: true}",
            "devices: [1]\n  mode: mps",
            " groups[0].mode: GPUs that are simulated have",
        ),
        ("{}", "gpus: 3", " groups[0].gpus=3: the machine has 2"),
        ("{memory: 6GiB}", "memory: 7GiB", " groups[0].memory=7 GiB: machine.memory is 6 GiB"),
        ("{}", "memory: 81GiB", " groups[0].memory=81 GiB: the machine has 80 GiB"),
        ("{gpus: [1]}", "memory: 25GiB", " groups[0].memory=25 GiB: the machine has 24 GiB"),
        ("{}", "devices: [1]\n  memory: 25GiB", " groups[0].memory=25 GiB: the machine has 24 GiB"),
        ("{}", "devices: [1]\n  gpus: 2", " groups[0].gpus=2 beside devices, which are 1"),
        ("{gpus: [1]}", "devices: [0]", f" groups[0].devices: {UUIDS[0]} is not among machine.gpus ({UUIDS[1]})"),
        ("{gpus: 1}", "devices: [1]", f" groups[0].devices: {UUIDS[1]} is not among machine.gpus ({UUIDS[0]})"),
        ("{gpus: 0}", "devices: [1]", f" groups[0].devices: {UUIDS[1]} is not among machine.gpus (none)"),
    ],
)
def test_what_cannot_be_is_one_error_with_file_and_key(spec: Path, machine: str, run: str, said: str):
    with pytest.raises(BadSetting) as error:
        opened(spec, machine, run)
    assert str(error.value).startswith(f"{spec}:{said}")


def test_without_a_gpu_a_run_that_wants_one_is_refused_and_memory_is_the_host_s(spec: Path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(
        BadSetting, match=r"spec.yaml: groups\[0\].gpus: CUDA_VISIBLE_DEVICES shows no GPU; penstock run --no-gpu"
    ):
        opened(spec, "{}", "gpus: 1")
    room = opened(spec, "{}", "memory: 1MiB").room
    assert room.keys() == {"gpus", "host"} and 1 << 20 < room["host"] <= os.sysconf("SC_PHYS_PAGES") << 12
    assert opened(spec, "{memory: 2MiB}", "memory: 1MiB").room == {"gpus": 0, "host": 2 << 20}


def test_without_gpus_nothing_is_asked_of_them(spec: Path):
    found = opened(spec, "{gpus: 3}", "gpus: 2", without=True)
    assert (found.machine.gpus, found.groups[0].runs[0].gpus) == (0, 0)
    assert found.left_out == ["--no-gpu leaves out gpus"]
    assert opened(spec, "{gpus: 3, simulated: true}", "gpus: 2", without=True).groups[0].runs[0].gpus == 2


def test_penstock_run_takes_devices_as_if_nothing_were_simulated(spec: Path):
    simulated = "{gpus: 8, simulated: true}"
    assert opened(spec, simulated, "devices: [1]", in_turn=True).groups[0].runs[0].devices == UUIDS[1:]
    found = opened(spec, simulated, "devices: [1]", in_turn=True, without=True)
    assert found.groups[0].runs[0].devices == () and found.left_out[0] == "--no-gpu leaves out devices"


def test_a_run_takes_memory_of_the_gpus_that_it_may_use(spec: Path):
    room = opened(spec, "{}", "gpus: 1").room
    assert room.pop("host") > 0
    assert room == {"gpus": 2, UUIDS[0]: 80 << 30, UUIDS[1]: 24 << 30}
    plan = RunPlan(command=("sh",), name="sh", directory="/", memory_bytes=30 << 30)
    run = {"command": ("sh",), "name": "sh", "directory": "/"}
    assert needs(plan, room) == {UUIDS[0]: 30 << 30, UUIDS[1]: 24 << 30}, "all of one that is too small"
    assert needs(RunPlan(**run, gpus=1), room) == {"gpus": 1}
    assert needs(RunPlan(**run, memory_bytes=1, devices=UUIDS[1:]), room) == {UUIDS[1]: 1}
    assert needs(RunPlan(**run, memory_bytes=1, gpus=0), {**room, "host": 9}) == {"host": 1}
    assert needs(RunPlan(**run), {}) == {}


def test_penstock_run_says_in_one_line_what_it_ignores(spec: Path):
    every = "priority: 2\n  deadline: 1h\n  preempt: true\n  feed: none\n  epochs: 2\n  gpus: 1"
    machine = "{objective: jct, cores: 2}"
    assert opened(spec, machine, every, in_turn=True).left_out == [
        "penstock run ignores priority, deadline, preempt, feed, epochs, machine.cores, machine.objective: "
        "penstock schedule run obeys them"
    ]
    assert opened(spec, machine, every).left_out == []
    assert opened(spec, "{}", "feed: auto", in_turn=True).left_out == []


def test_a_table_says_nothing_of_the_machine(tmp_path: Path):
    (tmp_path / "train.py").touch()
    path = tmp_path / "runs.csv"
    path.write_text("Experiment,Workload,Status,Run,Devices,Collocation,File,Listeners,Params\n,,,,,,train.py,,\n")
    with Spec(path, Gpus(without=True), in_turn=True) as spec:
        assert (spec.machine, spec.room, spec.left_out) == (MachinePlan(), {}, [])
