"""What cannot be printed or recorded, as on a full disk: one line says so; no run ends or is repeated for it."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.forked import ForkServer, eventually
from tests.runs.running import UNWATCHED, launches, nothing_is_left, records
from tests.schedule.scheduled import Scheduled

FULL_BYTES = 20_000
PRINTS = "echo out; echo err >&2; sleep 0.2; echo more"
SHARES = "from torch.utils.data import DataLoader\nfor batch in DataLoader(range(8), batch_size=4): print(batch)\n"


def planned(folder: Path, *runs: dict[str, Any]) -> None:
    """Write a file of these runs on a machine with one GPU."""
    machine = {"gpus": 1, "simulated": True}
    spec = {"machine": machine, "groups": [{"listeners": [], "runs": runs}]}
    (folder / "spec.yaml").write_text(json.dumps(spec))


def printed(folder: Path, words: str, to: str) -> subprocess.CompletedProcess[str]:
    """Run a command line whose outputs a shell opens."""
    planned(folder, *({"name": name, "command": ["sh", "-c", PRINTS]} for name in "ab"))
    (folder / "train.py").write_text(SHARES)
    (folder / "prints.sh").write_text(PRINTS)
    (folder / "store").mkdir(mode=0o700, exist_ok=True)
    text = f"exec {sys.executable} -m penstock {words} {to}"
    environment = {**os.environ, "PENSTOCK_STORE": str(folder / "store")}
    done = subprocess.run(
        ["sh", "-c", text], cwd=folder, env=environment, check=False, stderr=subprocess.PIPE, text=True
    )
    nothing_is_left(folder)
    return done


@pytest.mark.parametrize(
    ("words", "to"),
    [
        ("run --listeners none sh prints.sh", ">/dev/full"),
        ("run --listeners none sh prints.sh", ">&- 2>&- <&-"),
        ("run --listeners none -n 2 sh prints.sh", ">&-"),
        ("run --listeners none -n 2 sh prints.sh", ">/dev/full 2>/dev/full"),
        pytest.param("run --listeners none --share train.py", ">/dev/full", marks=pytest.mark.whole),
        pytest.param("run --listeners none --share train.py", ">&- 2>&- <&-", marks=pytest.mark.whole),
        pytest.param("schedule run spec.yaml", ">&-", marks=pytest.mark.whole),
        pytest.param("schedule run spec.yaml", ">/dev/full 2>/dev/full", marks=pytest.mark.whole),
    ],
)
def test_runs_go_on_where_nothing_can_be_printed_and_one_line_says_so(tmp_path: Path, words: str, to: str):
    done = printed(tmp_path, words, to)
    assert done.returncode == 0, done.stderr
    assert {record.status for record in records(tmp_path)} == {"finished"}
    assert "Traceback" not in done.stderr
    why = "No space left on device" if "full" in to else "Bad file descriptor"
    line = f"penstock: not all that runs print can be written to standard output: {why}; they go on"
    assert done.stderr.count(line) == ("2>" not in to), done.stderr
    kept = [(tmp_path / "store" / record.id / "output").read_text() for record in records(tmp_path)]
    assert all("more" in text or "tensor" in text for text in kept)


def test_ids_of_detached_runs_that_cannot_be_printed_are_said_to_be_so(tmp_path: Path):
    done = printed(tmp_path, "run --listeners none --detach true", ">/dev/full")
    assert (done.returncode, done.stderr) == (
        0,
        "penstock: which runs go on cannot be printed: No space left on device\n",
    )
    eventually(lambda: [record.status for record in records(tmp_path)] == ["finished"])


def without_room(pid: int, most_bytes: int = 0) -> None:
    """Have what a process, and what it starts from now on, writes behind these bytes of files fail."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))


def full(folder: Path, pid: int) -> None:
    """Have only the store fail, whose log has more bytes by now, for what starts runs and for their keepers."""
    assert (folder / "store" / "runs.sqlite-wal").stat().st_size > FULL_BYTES
    without_room(pid, FULL_BYTES)


@pytest.mark.parametrize(("code", "status"), [(0, "finished"), (3, "failed"), (137, "killed")])
def test_how_a_run_ended_is_known_though_its_keeper_could_write_nothing(
    launch, tmp_path: Path, code: int, status: str
):
    end = "kill -9 $$" if code == 137 else f"exit {code}"
    one = launch(*UNWATCHED, "sh", "-c", f"echo ready; until [ -e go ]; do sleep 0.02; done; {end}")
    one.wait_until_said("ready")
    without_room(eventually(lambda: one.record().keeper)[0])
    (tmp_path / "go").touch()
    assert one.wait() == code
    record = one.record()
    assert (record.status, record.exit_code) == (status, code)
    assert record.reason == "the disk was full: more is not recorded"
    assert f"of its end only '{status}' and the exit code are recorded" in one.errors


def test_where_not_even_a_beginning_could_be_written_a_run_ended_as_it_ended(launch, tmp_path: Path):
    one = launch(
        *UNWATCHED, "-n", "2", "--mode", "alone", "sh", "-c", "until [ -e go ]; do sleep 0.02; done; exit 5"
    )
    eventually(lambda: one.records() and one.records()[0].keeper)
    full(tmp_path, one.pid)
    (tmp_path / "go").touch()
    assert one.wait() == 5
    assert [(record.status, record.exit_code) for record in one.records()] == 2 * [("failed", 5)]


@pytest.fixture
def schedule(servers: dict[str, ForkServer], tmp_path: Path) -> Iterator[Callable[..., Scheduled]]:
    with launches(Scheduled, servers, tmp_path) as start:
        yield start


def test_no_run_that_has_ended_starts_again_because_the_disk_was_full(schedule, tmp_path: Path):
    program = "mkdir $0/began-$PENSTOCK_RUN_NAME-$$; until [ -e $0/go-$PENSTOCK_RUN_NAME ]; do sleep 0.02; done"
    planned(tmp_path, *({"name": name, "command": ["sh", "-c", program, str(tmp_path)]} for name in "abc"))
    first = schedule("spec.yaml")
    eventually(lambda: [*tmp_path.glob("began-a-*")] and records(tmp_path)[0].status == "running")
    full(tmp_path, first.pid)
    (tmp_path / "go-a").touch()
    (tmp_path / "go-b").touch()
    eventually(lambda: [*tmp_path.glob("began-c-*")])
    first.kill()  # before the schedule is over, which the next would begin anew
    assert [record.status for record in records(tmp_path)][:2] == ["finished", "finished"]
    (tmp_path / "go-c").touch()
    again = schedule("spec.yaml")
    assert again.wait() == 0, again.errors
    began = [re.sub(r"-\d+$", "", path.name) for path in tmp_path.glob("began-*")]
    assert sorted(began) == ["began-a", "began-b", "began-c"]


@pytest.mark.parametrize("name", ["INT", "TERM"])
def test_a_signal_ends_a_scheduler_alone(schedule, tmp_path: Path, name: str):
    text = "trap 'echo heard > heard' INT TERM; echo ready; until [ -e go ]; do sleep 0.02; done"
    planned(tmp_path, {"name": "a", "command": ["sh", "-c", text]})
    first = schedule("spec.yaml")
    first.wait_until_said("ready")
    first.signal(f"SIG{name}")
    assert first.wait() == 130
    assert "1 runs go on, 0 wait: the same command goes on with them" in first.errors
    assert [record.status for record in records(tmp_path)] == ["running"]
    (tmp_path / "go").touch()
    eventually(lambda: [record.status for record in records(tmp_path)] == ["finished"])
    assert not (tmp_path / "heard").exists()
