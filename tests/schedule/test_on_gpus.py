"""Schedules on (fake) GPUs: where runs go, what others use, and the daemons of MPS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.fakes.mps.fake_mps import CLIENT, FakeMps
from tests.fakes.nvml.by_number import by_number
from tests.fakes.nvml.fake_gpus import FakeGpus
from tests.forked import ForkServer, eventually
from tests.runs.running import launches, records
from tests.schedule.scheduled import Scheduled, counted, events, spec

pytestmark = pytest.mark.whole

GIB = 2**30


@pytest.fixture
def schedule(
    servers: dict[str, ForkServer], tmp_path: Path, fake_gpus: FakeGpus
) -> Iterator[Callable[..., Scheduled]]:
    with launches(Scheduled, servers, tmp_path) as start:
        yield lambda *words, **more: start(*words, **{**fake_gpus.environment, **more})


def on_real_gpus(path: str, **machine: object) -> str:
    """Have a file's runs use the GPUs that there are."""
    text = json.loads(Path(path).read_text())
    Path(path).write_text(json.dumps({**text, "machine": machine}))
    return path


@by_number
def test_runs_are_given_gpus_by_uuid_and_none_where_a_stranger_leaves_no_room(
    schedule: Callable[..., Scheduled], fake_gpus: FakeGpus, tmp_path: Path
) -> None:
    busy, free = fake_gpus.add(), fake_gpus.add()
    fake_gpus.set(0, processes=[[os.getpid(), 70 * GIB, None]])
    runs = [{"command": f"train.py {name} 1 0.01", "name": name, "memory": "30GiB"} for name in "abc"]
    one = schedule(on_real_gpus(spec(tmp_path, *runs)))
    assert one.wait() == 0, one.errors
    assert {words[2] for words in events(tmp_path) if words[1] == "began"} == {free}, busy
    assert counted(tmp_path, "ended") == dict.fromkeys("abc", 1)


@by_number
def test_a_run_starts_once_a_stranger_is_gone(
    schedule: Callable[..., Scheduled], fake_gpus: FakeGpus, tmp_path: Path
) -> None:
    fake_gpus.add(processes=[[os.getpid(), 70 * GIB, None]])
    run = {"command": "train.py a 1 0", "name": "a", "memory": "30GiB"}
    one = schedule(on_real_gpus(spec(tmp_path, run)))
    one.wait_until_failed("nothing can start: a")
    fake_gpus.set(0, processes=[])
    assert one.wait() == 0, one.errors


def test_what_no_gpu_has_room_for_is_one_error(
    schedule: Callable[..., Scheduled], fake_gpus: FakeGpus, tmp_path: Path
) -> None:
    fake_gpus.add()
    one = schedule(on_real_gpus(spec(tmp_path, {"command": "train.py a 1 0", "name": "a", "memory": "90GiB"})))
    assert one.wait() == 2
    assert "90" in one.errors and "memory" in one.errors and not records(tmp_path)


@pytest.mark.skipif(os.getuid() != 0, reason="makes a namespace of processes, as root")
def test_in_a_container_what_runs_use_is_not_taken_for_strangers(fake_gpus: FakeGpus, tmp_path: Path) -> None:
    fake_gpus.add(processes=[[os.getpid(), 70 * GIB, None]])
    path = on_real_gpus(spec(tmp_path, {"command": "train.py a 1 0", "name": "a", "memory": "30GiB"}))
    inside = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-m", "penstock", "schedule", "run"]
    done = subprocess.run(
        [*inside, path, "--dry-run", "--json", "--store", str(tmp_path / "store")],
        env={**os.environ, **fake_gpus.environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.count("memory that others use on the GPUs counts as free: this container numbers") == 1
    (run,) = json.loads(done.stdout)["runs"]
    assert run["start_s"] is not None


@pytest.fixture
def mps(tmp_path: Path, fake_gpus: FakeGpus) -> Iterator[FakeMps]:
    with tempfile.TemporaryDirectory(prefix="penstock-", dir="/tmp") as runtime:  # a short path, for sockets
        fake = FakeMps(tmp_path / "mps", runtime, fake_gpus)
        yield fake
        eventually(lambda: not os.listdir(runtime), "the folders of daemons are never removed")


@pytest.mark.parametrize(("signal", "status"), [("SIGKILL", -9), ("SIGINT", 130)])
def test_when_a_scheduler_ends_before_its_runs_its_mps_daemons_end_with_the_last(
    schedule: Callable[..., Scheduled],
    fake_gpus: FakeGpus,
    mps: FakeMps,
    tmp_path: Path,
    feeds_directory: Path,
    signal: str,
    status: int,
) -> None:
    gpu = fake_gpus.add()
    client = f"{sys.executable} {CLIENT} {tmp_path}/go"
    path = on_real_gpus(spec(tmp_path, {"command": client, "name": "a"}, mode="mps"))
    one = schedule(path, **mps.environment)
    eventually(lambda: '"served": true' in one.output or one.ended)
    (daemon,) = mps.daemons()
    assert daemon["devices"] == gpu
    one.signal(signal)
    assert one.wait() == status
    assert Path(f"/proc/{daemon['started']}").exists()  # its run goes on
    (tmp_path / "go").touch()
    eventually(lambda: not Path(f"/proc/{daemon['started']}").exists(), "the daemon never ended")
    eventually(lambda: records(tmp_path)[0].status == "finished")
    for claim in feeds_directory.glob("*.claim"):  # of one that was killed: the next would have taken it
        claim.unlink()


def test_under_mps_a_run_without_gpus_has_no_daemon(
    schedule: Callable[..., Scheduled], fake_gpus: FakeGpus, mps: FakeMps, tmp_path: Path
) -> None:
    fake_gpus.add(), fake_gpus.add()
    run = {"command": ["sh", "-c", "echo pipes=$CUDA_MPS_PIPE_DIRECTORY."], "name": "a", "gpus": 0}
    one = schedule(on_real_gpus(spec(tmp_path, run, mode="mps")), **mps.environment)
    assert one.wait() == 0, one.errors
    assert "pipes=." in one.output


def test_a_run_on_several_gpus_under_mps_is_one_error(
    schedule: Callable[..., Scheduled], fake_gpus: FakeGpus, mps: FakeMps, tmp_path: Path
) -> None:
    fake_gpus.add(), fake_gpus.add()
    run = {"command": "train.py a 1 0", "name": "a", "gpus": 2}
    one = schedule(on_real_gpus(spec(tmp_path, run, mode="mps")), **mps.environment)
    assert one.wait() == 2
    assert (
        "a: gpus: 2: a schedule has no runs on several GPUs under MPS" in one.errors
        and "Traceback" not in one.errors
    )
    assert not records(tmp_path) and not mps.daemons()


def test_a_table_is_scheduled_without_runs_that_have_ended(
    schedule: Callable[..., Scheduled], tmp_path: Path
) -> None:
    spec(tmp_path)
    (tmp_path / "runs.csv").write_text(
        "Experiment,Workload,Name,Status,Run,Devices,Collocation,File,Listeners,Params\n"
        "1,1,a,,,,-,train.py,proc,a 1 0\n"
        "1,1,b,,,,-,train.py,proc,b 1 0 fails\n"
        "2,1,c,FINISHED,,,-,train.py,proc,c 1 0\n"
    )
    one = schedule("runs.csv")
    assert one.wait() == 1, one.errors
    assert counted(tmp_path, "began") == {"a": 1, "b": 1}
