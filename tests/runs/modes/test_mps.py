"""Mode mps, on fake GPUs with a fake control program: real daemons, guards, clients and keepers."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.mps.fake_mps import CLIENT, FakeMps
from tests.fakes.nvml.by_number import by_number
from tests.fakes.nvml.fake_gpus import FakeGpus
from tests.forked import eventually
from tests.runs.running import UNWATCHED, Launch

from penstock.linux.process import lineage
from penstock.runs.stop import stop
from penstock.runs.store import Store

pytestmark = pytest.mark.whole


@pytest.fixture
def gpu(fake_gpus: FakeGpus) -> str:
    return fake_gpus.add()


@pytest.fixture
def mps(tmp_path: Path, fake_gpus: FakeGpus) -> Iterator[FakeMps]:
    with tempfile.TemporaryDirectory(prefix="penstock-", dir="/tmp") as runtime:  # a short path, for sockets
        fake = FakeMps(tmp_path / "mps", runtime, fake_gpus)
        yield fake
        tmp_path.joinpath("go").touch()  # for what is left of a test that failed
        eventually(lambda: not os.listdir(runtime), "the folders of daemons are never removed")
    alive = [each["started"] for each in fake.daemons() if lives(each)]
    assert not alive, f"daemons left behind: {alive}"


def lives(daemon: dict[str, Any]) -> bool:
    return Path(f"/proc/{daemon['started']}").exists()


@pytest.fixture
def start(mps: FakeMps, gpu: str, launch: Callable[..., Launch]) -> Callable[..., Launch]:
    def run(*words: str, **more: str) -> Launch:
        unwatched = () if words[0] == "spec.yaml" else UNWATCHED
        return launch(*unwatched, *words, **{**mps.environment, **more})

    return run


def client(*words: str) -> list[str]:
    return [sys.executable, str(CLIENT), *words]


def shown(output: str) -> list[dict[str, Any]]:
    """What each client said of itself."""
    return [json.loads(line[line.index("{") :]) for line in output.splitlines() if "{" in line]


def test_runs_are_clients_of_a_daemon_of_theirs_that_ends_with_them(start, mps: FakeMps, gpu: str, tmp_path: Path):
    two = start("-n", "2", "--mode", "mps", "--mps-threads", "50", "--mps-memory", "10GiB", *client("go"))
    eventually(lambda: len(shown(two.output)) == 2 or two.ended)
    (daemon,) = mps.daemons()
    assert daemon["devices"] == gpu
    assert set(daemon["modes"].values()) == {0o700} and daemon["pipes"].startswith(mps.runtime)
    tmp_path.joinpath("go").touch()
    assert two.wait() == 0, two.errors
    given = {"VISIBLE_DEVICES": gpu, "MPS_PIPE_DIRECTORY": daemon["pipes"]}
    given |= {"MPS_ACTIVE_THREAD_PERCENTAGE": "50", "MPS_PINNED_DEVICE_MEM_LIMIT": "0=10240M"}
    assert shown(two.output) == 2 * [{"served": True} | {f"CUDA_{name}": value for name, value in given.items()}]
    assert [record.mode for record in two.records()] == ["mps", "mps"]
    assert mps.commands(daemon["pipes"])[-1] == "quit -t 5"
    with Store.open(tmp_path / "store") as store:
        kept = json.loads((store.folder_of(two.records()[0].id) / "environment.json").read_text())
    assert kept["variables"]["CUDA_MPS_PIPE_DIRECTORY"] == daemon["pipes"]


def spec(tmp_path: Path, *groups: dict[str, Any]) -> str:
    text = json.dumps({"groups": [{"listeners": [], **each} for each in groups]})
    (tmp_path / "spec.yaml").write_text(text)
    return "spec.yaml"


def test_groups_under_mps_have_a_daemon_each_and_are_compared_with_the_others(start, command, mps, gpu, tmp_path):
    tmp_path.joinpath("go").touch()
    nap = ["sh", "-c", f"{sys.executable} {CLIENT} go; sleep 0.3"]
    first = {"name": "a", "command": nap, "devices": [0], "repeats": 2, "mps_threads": 25}
    modes = {"modes": ["alone", "plain", "mps"]}
    both = start(spec(tmp_path, first | modes, {"name": "b", "command": client("go"), "mode": "mps"}))
    assert both.wait() == 0, both.errors
    one, other = mps.daemons()
    assert one["pipes"] != other["pipes"]
    for daemon in (one, other):
        assert [word for word in mps.commands(daemon["pipes"]) if "quit" in word] == ["quit -t 5"]
    ran = [(record.mode, *shown(both.kept(i))) for i, record in enumerate(both.records())]
    served = 2 * [("alone", False)] + 2 * [("plain", False)] + 3 * [("mps", True)]
    assert [(mode, said["served"]) for mode, said in ran] == served
    assert all(said["CUDA_VISIBLE_DEVICES"] == gpu for _, said in ran)
    limits = [said.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") for _, said in ran]
    assert limits == 4 * [None] + 2 * ["25"] + [None]
    found = json.loads(command("runs", "compare", "a", "--json", "--store", str(tmp_path / "store")).stdout)
    assert [group["mode"] for group in found["groups"]] == ["alone", "plain", "mps"]


def test_two_penstock_runs_on_one_gpu_have_a_daemon_each_and_a_strangers_is_left_alone(start, mps, tmp_path):
    mps.start()
    (foreign,) = eventually(mps.daemons)
    one = start("--mode", "mps", *client("go"))
    eventually(lambda: shown(one.output) or one.ended)
    other = start("--mode", "mps", *client("go"))
    eventually(lambda: (len(mps.daemons()) == 3 and len(shown(other.output)) == 2) or other.ended)
    tmp_path.joinpath("go").touch()
    assert (one.wait(), other.wait()) == (0, 0), one.errors + other.errors
    assert len({daemon["pipes"] for daemon in mps.daemons()}) == 3
    assert all(said["served"] for said in shown(one.output))
    assert not mps.commands(foreign["pipes"]), "nobody asked it anything"
    assert lives(foreign)
    mps.ask("quit")
    eventually(lambda: not lives(foreign))


def test_gpus_that_differ_have_a_daemon_each(start, mps: FakeMps, gpu: str, fake_gpus: FakeGpus, tmp_path: Path):
    second = fake_gpus.add()
    tmp_path.joinpath("go").touch()
    runs = [{"command": client("go"), "devices": [i]} for i in (0, 1, 1)]
    three = start(spec(tmp_path, {"mode": "mps", "runs": runs}))
    assert three.wait() == 0, three.errors
    assert sorted(daemon["devices"] for daemon in mps.daemons()) == [gpu, second]
    said = [shown(three.kept(i))[0] for i in range(3)]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in said] == [gpu, second, second]
    pipes = [each["CUDA_MPS_PIPE_DIRECTORY"] for each in said]
    assert pipes[0] != pipes[1] == pipes[2]


@by_number
def test_a_run_that_uses_the_gpu_outside_the_daemon_is_told_and_it_is_kept(start, mps: FakeMps, tmp_path: Path):
    program = f"{sys.executable} {CLIENT} go $([ $PENSTOCK_RUN_INDEX = 0 ] || echo outside); :"
    two = start("-n", "2", "--mode", "mps", "sh", "-c", program)
    eventually(lambda: "it ran without MPS" in two.errors or two.ended)
    tmp_path.joinpath("go").touch()
    assert two.wait() == 0, two.errors
    inside, outside = two.records()
    assert two.errors.count("without MPS") == 1 and outside.id in two.errors
    assert inside.reason == "" and outside.reason.endswith("is no client of the MPS daemon: it ran without MPS")
    assert outside.status == "finished"


@by_number
def test_runs_on_the_same_gpus_are_looked_at_together_and_no_more_once_they_are_clients(
    start, mps: FakeMps, gpu: str, fake_gpus: FakeGpus, tmp_path: Path
):
    fake_gpus.add()
    outside = f"while ! [ -e seen ]; do sleep 0.05; done; {sys.executable} {CLIENT} go outside; :"
    runs = [*(2 * [{"command": client("go"), "devices": [0]}]), {"command": ["sh", "-c", outside], "devices": [1]}]
    three = start(spec(tmp_path, {"mode": "mps", "runs": runs}))
    eventually(lambda: len(shown(three.output)) == 2 or three.ended)
    (pipes,) = [daemon["pipes"] for daemon in mps.daemons() if daemon["devices"] == gpu]
    eventually(lambda: any("get_client_list" in each for each in mps.commands(pipes)) or three.ended)
    tmp_path.joinpath("seen").touch()
    eventually(lambda: "it ran without MPS" in three.errors or three.ended)  # two looks later
    looks = mps.commands(pipes).count("get_server_list") - 1  # its guard asked once
    tmp_path.joinpath("go").touch()
    assert three.wait() == 0, three.errors
    assert three.errors.count("without MPS") == 1
    assert looks <= 2, "each look saw one of the two at least"


@pytest.mark.parametrize("deaf", [False, True])
def test_a_client_is_ended_through_the_daemon_before_it_dies(start, mps: FakeMps, tmp_path: Path, deaf: bool):
    one = start("--mode", "mps", *client("never", *(["deaf"] if deaf else [])))
    # Told earlier, a client that is about to be deaf would be ended twice: at SIGTERM too, of which it would die.
    eventually(lambda: (shown(one.output) and one.record().status == "running") or one.ended)
    with Store.open(tmp_path / "store") as store:
        ((_, after),) = stop(store, [one.record().id])
    assert (after.status, after.exit_code) == ("killed", 137 if deaf else 143)
    (daemon,) = mps.daemons()
    (ended,) = [word for word in mps.commands(daemon["pipes"]) if word.startswith("terminate_client")]
    assert ended.split()[2] == str(after.pid)
    if deaf:  # it survived SIGTERM, and has had time to see what became of its work
        assert "my contexts were ended b'terminated" in one.kept()


@pytest.mark.skipif(os.getuid() != 0, reason="makes a namespace of processes, as root")
def test_in_a_container_a_run_says_that_its_client_cannot_be_checked(mps: FakeMps, gpu: str, tmp_path: Path):
    tmp_path.joinpath("go").touch()
    inside = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-m", "penstock", "run"]
    command = [*inside, "--store", "store", "--mode", "mps", *client("go")]
    environment = {**os.environ, **mps.environment}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert b"whether it runs under MPS cannot be checked" in done.stderr
    assert shown(done.stdout.decode())[0]["served"] is True
    (mps.folder / "asked").unlink()  # its process numbers mean nothing here


@pytest.mark.parametrize("deaf", [False, True])
def test_a_daemon_does_not_outlive_a_penstock_run_that_is_killed(start, mps: FakeMps, deaf: bool):
    one = start("--mode", "mps", *client("never"))
    eventually(lambda: shown(one.output) or one.ended)
    (daemon,) = mps.daemons()
    if deaf:  # to quit
        (mps.folder / "deaf").touch()
    one.signal("SIGKILL")
    eventually(lambda: not os.listdir(mps.runtime))
    assert not lives(daemon)
    assert one.record().status == "killed"


def test_a_daemon_does_not_outlive_its_guard(start, mps: FakeMps, tmp_path: Path):
    one = start("--mode", "mps", *client("go"))
    eventually(lambda: shown(one.output) or one.ended)
    (daemon,) = mps.daemons()
    guard = lineage(daemon["started"])[1]
    assert b"daemon.py" in Path(f"/proc/{guard}/cmdline").read_bytes()
    os.kill(guard, signal.SIGKILL)
    eventually(lambda: not lives(daemon), "nobody ends it")
    tmp_path.joinpath("go").touch()
    one.wait()  # its client may not survive the daemon
    assert not os.listdir(mps.runtime)


def test_a_daemon_of_detached_runs_lives_as_long_as_they_do(start, mps: FakeMps, tmp_path: Path):
    one = start("--detach", "--mode", "mps", *client("go"))
    assert one.wait() == 0
    eventually(lambda: any("client" in each for each in mps.asked()))
    (daemon,) = mps.daemons()
    with closing(sqlite3.connect(tmp_path / "store" / "runs.sqlite")) as database:
        launcher = json.loads(database.execute("SELECT owner FROM groups").fetchone()[0])["pid"]
    os.kill(launcher, signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{launcher}").exists())
    assert mps.ask("get_client_list 0", CUDA_MPS_PIPE_DIRECTORY=daemon["pipes"]) == f"{one.record().pid}\n"
    tmp_path.joinpath("go").touch()
    eventually(lambda: not os.listdir(mps.runtime))
    assert one.record().status == "finished"


def test_a_daemon_that_does_not_start_fails_its_group_and_the_next_group_runs(start, mps: FakeMps, tmp_path: Path):
    (mps.folder / "refuse").write_text("no room for it\n")
    two = start(spec(tmp_path, {"command": "true", "mode": "mps"}, {"command": "true"}))
    assert two.wait() == 1
    assert "no MPS daemon could be started on GPU-00000000" in two.errors and "no room for it" in two.errors
    refused, ran = two.records()
    assert (refused.status, ran.status) == ("failed", "finished")
    assert refused.reason.startswith("never began: no MPS daemon")


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("lost", "MPS cannot run here: GPU 0 (GPU-00000000-0000-4000-8000-000000000000) is lost"),
        ("program", "no nvidia-cuda-mps-control on the PATH"),
        ("prohibited", "(GPU-00000000-0000-4000-8000-000000000000) lets nobody compute: nvidia-smi -i 0"),
        ("mig", "(GPU-00000000-0000-4000-8000-000000000000) is in MIG mode and has no instance"),
        ("gpus", "there is no GPU; penstock run --no-gpu leaves out what needs one"),
    ],
)
def test_what_keeps_mps_from_running_is_one_error_before_anything_starts(launch, mps, fake_gpus, broken, said):
    if broken != "gpus":
        fake_gpus.add(compute_mode=2 if broken == "prohibited" else 0, mig=[1, 1] if broken == "mig" else [0, 0])
    if broken == "lost":  # after it was listed
        fake_gpus.refuse("nvmlDeviceGetHandleByUUID", 15)
    path = {"PATH": os.environ["PATH"]} if broken == "program" else {}
    one = launch("--mode", "mps", "true", **{**mps.environment, **path})
    assert one.wait() == 2
    assert one.errors.startswith("penstock: --mode: ") and one.errors.count("\n") == 1
    assert said in one.errors
    assert not one.records() and not mps.asked()


def test_a_gpu_that_does_not_tell_its_compute_mode_can_be_shared(start, mps, fake_gpus, tmp_path):
    fake_gpus.refuse("nvmlDeviceGetComputeMode", 3)
    tmp_path.joinpath("go").touch()
    one = start("--mode", "mps", *client("go"))
    assert one.wait() == 0, one.errors
    assert shown(one.output)[0]["served"] is True
