"""`penstock run`: what is started, what it finds, and how its end is told and kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import refused
from tests.forked import eventually
from tests.runs.running import UNWATCHED, Launch, nothing_is_left, records
from tests.runs.store.groups import group

from penstock.runs.launch import groups
from penstock.runs.launch.launcher import Launcher
from penstock.runs.record import ENDED
from penstock.runs.store import Store


@pytest.fixture
def launch(launch: Callable[..., Launch]) -> Callable[..., Launch]:
    return lambda *words, **environment: launch(
        *(() if "spec.yaml" in words else UNWATCHED), *words, **environment
    )


def ended(launch, *words: str, **environment: str):
    launched = launch(*words, **environment)
    launched.wait()
    return launched


def test_one_run_says_what_it_says_and_ends_as_it_ends(launch):
    one = ended(launch, "sh", "-c", "echo out; echo err >&2; exit 7")
    assert one.wait() == 7
    record = one.record()
    told, last = one.errors.splitlines()
    assert (one.output, told) == ("out\n", "err")
    assert last.startswith(f"penstock: run {record.id}: failed, exit code 7, after 0.")
    assert last.endswith(f" s. More: penstock runs show {record.id}")
    assert (record.status, record.exit_code, record.reason) == ("failed", 7, "err")
    assert sorted(one.kept().split()) == ["err", "out"]


def test_a_store_that_was_not_there_is_said_to_be_new_once(command, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_STORE", str(tmp_path / "store"))
    first, second = (command("run", *UNWATCHED, "true").stderr for _ in range(2))
    assert first.startswith(
        f"penstock: the store of runs {tmp_path / 'store'} was not there and is new: see --store"
    )
    assert "is new" not in second


def test_what_is_not_utf8_is_one_error(command, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_STORE", str(tmp_path / "store"))
    Store.open(tmp_path / "store").close()
    for words in ("run true", "run --name", "run -n 2 true --group", "runs show", "runs compare"):
        told = command(*words.split(), "a\udcff", *(["true"] if words.endswith(("name", "group")) else []))
        assert told.returncode == 2, words
        assert told.stderr.startswith("penstock: 'a\\udcff' is not UTF-8") and told.stderr.count("\n") == 1


def penstock(folder: Path, *words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run the command line to its end, as no test's own child."""
    environment = {**os.environ, "PENSTOCK_STORE": str(folder / "store")}
    return subprocess.run([sys.executable, "-m", "penstock", *words], env=environment, check=False, **options)


def test_output_and_errors_keep_their_order_where_they_go_to_one_pipe_and_stdin_is_passed_on(tmp_path: Path):
    printed = "".join(f"echo out {i}; echo err {i} >&2; " for i in range(50))
    words = ("run", *UNWATCHED, "sh", "-c", f"read line; echo got $line; cat; {printed}")
    done = penstock(tmp_path, *words, input=b"one\ntwo\0\xff\n", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    in_order = [line for i in range(50) for line in (b"out %d" % i, b"err %d" % i)]
    assert done.stdout.splitlines()[1:-1] == [b"got one", b"two\0\xff", *in_order]
    with Store.open(tmp_path / "store") as store:
        (run,) = store.runs()
        assert (store.folder_of(run.id) / "output").read_bytes().splitlines()[2:] == in_order


def test_a_script_runs_under_this_python_and_its_options_are_its_own(launch, tmp_path: Path):
    text = "import sys; print(sys.executable, sys.argv, sys.stdout.write_through)"
    (tmp_path / "train.py").write_text(text)
    one = ended(launch, "--name", "first", "train.py", "--name", "its", "-n", "3")
    assert one.output == f"{sys.executable} ['train.py', '--name', 'its', '-n', '3'] True\n"
    assert (one.record().name, one.record().group, one.record().mode) == ("first", "first", "alone")


def test_a_run_finds_what_it_is_in_its_environment(launch, tmp_path: Path):
    one = ended(launch, "-n", "2", "sh", "-c", "env | grep ^PENSTOCK_RUN; pwd; ls -d $PENSTOCK_RUN_FOLDER")
    for index, record in enumerate(one.records()):
        files = tmp_path / "store" / record.id / "files"
        assert one.kept(index).split()[-2:] == [str(tmp_path), str(files)]
        assert set(one.kept(index).split()[:-2]) == {
            f"PENSTOCK_RUN_ID={record.id}",
            f"PENSTOCK_RUN_NAME={record.name}",
            f"PENSTOCK_RUN_INDEX={index}",
            "PENSTOCK_RUN_PARAMETERS={}",
            f"PENSTOCK_RUN_FOLDER={files}",
        }


def test_several_runs_are_told_apart_and_the_first_that_fails_gives_the_exit_code(launch):
    program = "echo begins; cat; printf 'half\\rwhole'; [ $PENSTOCK_RUN_INDEX = 0 ] || exit 1$PENSTOCK_RUN_INDEX"
    several = ended(launch, "-n", "3", "--name", "r", "sh", "-c", program)
    assert several.wait() == 11
    lines = several.output.splitlines()
    assert sorted(lines[:6]) == sorted(f"r#{i} | {said}" for i in range(3) for said in ("begins", "whole"))
    assert [line.split()[2:4] for line in lines[-3:]] == [["finished", "0"], ["failed", "11"], ["failed", "12"]]
    assert lines[-4].split() == ["id", "name", "status", "exit", "seconds", "reason"]


@pytest.mark.parametrize(("mode", "most"), [("alone", 1), ("plain", 2)])
def test_runs_are_alone_or_together(launch, tmp_path: Path, mode: str, most: int):
    # Each waits for the other to be there; alone, it sees that nobody is.
    program = "mkdir $0/$PENSTOCK_RUN_INDEX; [ $1 = 1 ] || until [ -d $0/0 -a -d $0/1 ]; do sleep 0.1; done; ls $0"
    both = ended(launch, "-n", "2", "--mode", mode, "sh", "-c", program, str(tmp_path), str(most))
    assert both.wait() == 0, both.output
    assert both.kept(1).count("1\n") == 1
    if mode == "alone":
        assert "1\n" not in both.kept(0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["missing.py"], "no script 'missing.py' in "),
        (["trian.py"], "; did you mean 'train.py'?"),
        (["missing-command"], "no command 'missing-command' on the PATH"),
        (["plain.sh"], "for the file in "),
        (["./plain.sh"], "is not executable"),
        (["--mode", "mp", "sh"], "--mode='mp': there are alone"),
        (["--mps-memory", "1GiB", "sh"], "--mps-memory: only with --mode mps"),
        (["--time-limit", "1x", "sh"], "--time-limit='1x'"),
        (["--store", "/proc/nowhere", "true"], "/proc/nowhere"),
        (["-n", "2", "spec.yaml"], "--repeat beside spec.yaml: write it into that file"),
        (["spec.yaml", "--lr", "1"], "--lr 1 beside spec.yaml"),
        (["--watch-dataloader", "spec.yaml"], "--watch-dataloader beside spec.yaml"),
        (["--listeners", "smi", "sh"], "there is no 'smi'; there are proc, host"),
        (["--grid", "lr=1,2", "sh"], "the command has no {lr}"),
    ],
)
def test_a_mistake_is_one_error_before_anything_starts(here, tmp_path: Path, monkeypatch, words, said: str):
    for name in ("plain.sh", "train.py"):
        tmp_path.joinpath(name).touch()
    tmp_path.joinpath("spec.yaml").write_text("groups:\n- command: sh\n")
    monkeypatch.setenv("PENSTOCK_STORE", str(tmp_path / "store"))
    Store.open(tmp_path / "store").close()
    errors = refused(here("run", *words, cwd=tmp_path))
    assert said in errors and errors.startswith("penstock: ")
    assert not records(tmp_path)


def test_what_cannot_be_executed_has_failed(launch, tmp_path: Path):
    tmp_path.joinpath("script").write_text("echo without a first line that names a shell")
    tmp_path.joinpath("script").chmod(0o700)
    one = ended(launch, "./script")
    assert one.wait() == 126
    assert one.record().status == "failed"
    assert "could not be started: [Errno 8] Exec format error" in one.record().reason


@pytest.mark.parametrize(
    ("program", "status", "code", "reason"),
    [
        ("kill -9 $$", "killed", 137, "died of SIGKILL, which penstock did not send"),
        ("printf 'no end of line'; exit 5", "failed", 5, "no end of line"),
        ("kill -SEGV $$", "failed", 139, "died of SIGSEGV"),
        ("echo 'torch.OutOfMemoryError: CUDA out of memory. Tried'; exit 1", "out_of_memory", 1, "torch.Out"),
        ("trap 'exit 9' TERM; sleep 60 & wait", "timed_out", 9, "ran longer than its time limit of 0.2 s"),
    ],
)
def test_how_a_run_ended_is_kept(launch, program: str, status: str, code: int, reason: str):
    one = ended(launch, "--time-limit", "0.2s" if status == "timed_out" else "1h", "sh", "-c", program)
    assert one.wait() == code
    assert (one.record().status, one.record().exit_code) == (status, code)
    assert one.record().reason.startswith(reason)


@pytest.mark.whole
@pytest.mark.parametrize("name", ["INT", "TERM", "HUP"])
def test_a_signal_is_passed_on_and_a_second_ctrl_c_kills(launch, name: str):
    program = f"trap 'echo heard' INT {name}; echo ready; while :; do sleep 60 & wait; done"
    both = launch("-n", "2", "sh", "-c", program)
    eventually(lambda: both.output.count("ready") == 2)
    both.signal(f"SIG{name}")
    eventually(lambda: both.output.count("heard") == 2)
    assert [record.status for record in both.records()] == ["running", "running"]
    if name != "INT":
        both.signal("SIGINT")
        eventually(lambda: both.output.count("heard") == 4)  # or two that are seen late are taken for one
    time.sleep(groups._ONE_SIGNAL_S)
    both.signal("SIGINT")
    assert both.wait() == 137
    assert {record.status for record in both.records()} == {"killed"}
    assert {record.reason for record in both.records()} == {"killed by a second Ctrl-C"}


class Told:
    """A run that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def send(self, **words: object) -> None:
        self.told.append(f"{words['signal']}")

    def kill(self, why: str) -> None:
        self.told.append(why)


def test_ctrl_c_within_a_second_is_one_as_timeout_sends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with Store.open(tmp_path) as store, monkeypatch.context() as patch:
        started = groups.GroupsInTurn(store, [store.add(group(1))], listeners=[()])
        patch.setattr(Launcher, "running", [run := Told()])
        for now_s in (100.0, 100.1, 100.9, 101.0):
            patch.setattr(groups.time, "monotonic", lambda now_s=now_s: now_s)
            started._forward(signal.SIGINT, "Ctrl-C")
    assert run.told == [*3 * [f"{signal.SIGINT:d}"], "killed by a second Ctrl-C"]


def test_a_script_that_obeys_a_ctrl_c_was_killed_and_those_after_it_never_begin(launch):
    two = launch("-n", "2", "--mode", "alone", "sh", "-c", "echo ready; exec sleep 60")
    two.wait_until_said("ready")
    two.signal("SIGINT")
    assert two.wait() == 130
    first, second = two.records()
    assert (first.status, first.exit_code, first.reason) == ("killed", 130, "Ctrl-C")
    assert (second.status, second.exit_code, second.reason) == ("killed", None, "never began: Ctrl-C")


CHAIN = """machine: {gpus: 1, simulated: true, objective: jct}
groups:
- listeners: []
  runs:
    - {name: c, command: [sh, -c, "cat log"], after: b, priority: 2}
    - {name: b, command: [sh, -c, "echo b >> log"], gpus: 1, after: a}
    - {name: a, command: [sh, -c, "echo ready; until [ -e go ]; do sleep 0.1; done; echo a >> log"], gpus: 1}
    - {name: d, command: [sh, -c, "echo d >> log"], gpus: 1, after: [a, b]}
"""


def test_runs_of_a_file_wait_for_those_before_them_and_what_is_ignored_is_said(launch, tmp_path: Path):
    (tmp_path / "spec.yaml").write_text(CHAIN)
    four = launch("spec.yaml")
    four.wait_until_said("a | ready")
    assert [record.status for record in four.records()] == ["waiting", "waiting", "running", "waiting"]
    (tmp_path / "go").touch()
    assert four.wait() == 0
    said, more = four.errors.splitlines()
    group_id = four.records()[0].group_id
    assert more == f"penstock: more, and what to change first: penstock runs compare {group_id}"
    assert said == "penstock: penstock run ignores priority, machine.objective: penstock schedule run obeys them"
    assert (tmp_path / "log").read_text().split()[:2] == ["a", "b"]
    assert four.kept(0).split()[:2] == ["a", "b"]


def test_a_ctrl_c_ends_what_runs_and_those_after_it_never_begin(launch, tmp_path: Path):
    (tmp_path / "spec.yaml").write_text(CHAIN)
    four = launch("spec.yaml")
    four.wait_until_said("a | ready")
    four.signal("SIGINT")
    assert four.wait() == 130
    of = {record.name: (record.status, record.reason) for record in four.records()}
    assert of == {"a": ("killed", "Ctrl-C"), **dict.fromkeys("bcd", ("killed", "never began: Ctrl-C"))}


def test_a_run_that_waits_for_another_can_be_stopped_and_detached_runs_go_on(launch, command, tmp_path: Path):
    (tmp_path / "spec.yaml").write_text(CHAIN)
    detached = launch("--detach", "spec.yaml")
    assert detached.wait() == 0
    b = detached.records()[1]
    eventually(lambda: detached.records()[2].status == "running")
    assert command("runs", "stop", b.id, "--store", str(tmp_path / "store")).returncode == 0
    (tmp_path / "go").touch()
    eventually(lambda: all(record.status in ENDED for record in detached.records()))
    assert [record.status for record in detached.records()] == ["failed", "killed", "finished", "failed"]
    assert detached.records()[3].reason == "never began: it comes after b, which was killed"
    nothing_is_left(tmp_path)


def test_detached_runs_go_on_by_themselves_and_are_stopped_by_id(launch, command, tmp_path: Path, monkeypatch):
    detached = launch("--detach", "-n", "2", "--mode", "alone", "sh", "-c", "echo ready; exec sleep 60")
    assert detached.wait() == 0
    ids = [record.id for record in detached.records()]
    assert detached.output.split() == ids
    eventually(lambda: detached.records()[0].status == "running")
    monkeypatch.setenv("PENSTOCK_STORE", str(tmp_path / "store"))
    from penstock.runs.stop import stop

    with Store.open() as store:
        (first, second) = stop(store, ids)
    assert [before.status for before, _ in (first, second)] == ["running", "waiting"]
    assert (first[1].status, first[1].exit_code) == ("killed", 143)
    assert f"with process {os.getpid()}" in first[1].reason
    assert second[1].status == "killed"
    nothing_is_left(tmp_path)
    assert command("runs", "stop", ids[0]).stdout == f"Run {ids[0]} (sh#0): had ended already: killed.\n"


def test_the_environment_of_a_run_is_kept_without_secrets(launch, tmp_path: Path):
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x", "--allow-empty"]):
        tmp_path.joinpath("config.txt").write_text("lr=1\n")
        identity = ["-c", "user.name=n", "-c", "user.email=e"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True)
    tmp_path.joinpath("config.txt").write_text("lr=2\napi_key: abcdefgh12345\n")
    secret = "hf_abcdefghijklmnopqrstuvwxyz"
    words = ["sh", "-c", "sleep 0.3", "--api-key", "X123", f"--data=s3://{secret}", "token=T456", "--lr=3"]
    one = ended(launch, *words, MY_PRIVATE="p", WANDB_API_KEY="wandb-secret", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    record = json.loads((tmp_path / "store" / one.record().id / "environment.json").read_text())
    masked = ["sh", "-c", "sleep 0.3", "--api-key", "***", "--data=s3://***", "token=***", "--lr=3"]
    assert record["command"] == masked
    assert list(one.record().plan.command) == record["command"]
    assert record["directory"] == str(tmp_path)
    assert "+lr=2\n+api_key: ***\n" in record["git"]["diff"]
    assert len(record["git"]["commit"]) == 40
    assert record["packages"] is None
    assert record["variables"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert not {"MY_PRIVATE", "WANDB_API_KEY"} & set(record["variables"])
    assert record["machine"]["kernel"]
    every = "".join(path.read_text(errors="replace") for path in (tmp_path / "store").rglob("*") if path.is_file())
    assert not [leaked for leaked in (secret, "X123", "T456", "wandb-secret", "abcdefgh12345") if leaked in every]


def test_a_secret_that_a_script_is_given_and_prints_as_it_ends_is_not_in_its_record(launch, tmp_path: Path):
    one = ended(launch, "sh", "-c", 'echo "unrecognized arguments: $*" >&2; exit 2', "train.sh", "--key", "0123")
    assert one.record().plan.command[-2:] == ("--key", "***")
    assert one.record().reason == "unrecognized arguments: --key ***"


def test_a_script_that_prints_for_nobody_any_more_ends(tmp_path: Path):
    environment = {**os.environ, "PENSTOCK_STORE": str(tmp_path / "store")}
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "penstock", "run", *UNWATCHED, "yes"]
    with subprocess.Popen(command, stdout=writing, env=environment) as process:
        os.close(writing)
        assert os.read(reading, 2) == b"y\n"
        os.close(reading)
        assert process.wait() == 128 + signal.SIGTERM
    nothing_is_left(tmp_path)
