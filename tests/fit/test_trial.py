"""Scripts of every kind are tried: one sentence each of what goes wrong, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from tests.forked import eventually
from tests.runs.running import nothing_is_left

import penstock
from penstock.fit.search import growing
from penstock.fit.trial import Script, ScriptTrials, Trial
from penstock.fit.tries import NotTried, TrialLog
from penstock.linux.files import taken
from penstock.runs.store import Store
from penstock.runs.trial import Bounds

pytestmark = pytest.mark.whole

HEAD = """
import os, subprocess, sys, time
size = int(sys.argv[1])
"""
LOOP = """
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.arange(100_000))
held = []
for _ in range(1000):
    for batch in DataLoader(data, BATCH):
        time.sleep(0.02)
"""
TRAINS = """
model = torch.nn.Linear(1, 1)
def evaluate():
    for batch in DataLoader(data, 1):
        time.sleep(0.002)
        if batch[0] > 200: break
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
evaluate()
while True:
    for i, batch in enumerate(DataLoader(data, size)):
        model(batch[0][:, None].float()).sum().backward(); optimizer.step(); time.sleep(0.02)
        if i == 20: break
    evaluate()
"""
Try = Callable[..., Trial]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store") as store:
        yield store
    nothing_is_left(tmp_path)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scripts").mkdir()
    return tmp_path / "scripts"


def trials(
    store: Store, folder: Path, text: str, *, first_s: float = 30.0, memory_bytes: int = 1 << 33
) -> ScriptTrials:
    (folder / "train.py").write_text(HEAD + text)
    script = Script(("train.py", "{}"), folder)
    bounds = Bounds(first_s, memory_bytes)
    return ScriptTrials(store, script, "a test", group_id="", bounds=bounds, setting="size", listens=False)


def scratch_is_empty(folder: Path) -> bool:
    return not list((folder.parent / "scratch").glob("penstock-fit-*"))


def test_a_batch_size_is_that_of_the_training_whatever_is_evaluated_beside_it(store: Store, folder: Path):
    text = LOOP[: LOOP.index("held")] + TRAINS
    trial = trials(store, folder, text, first_s=100).run(50)
    assert not trial.failed and trial.batch == 50


def test_a_script_is_measured_and_ended_and_what_it_writes_to_its_folder_is_gone(store, folder):
    (folder / "data.txt").write_text("here")
    (folder.parent / "beside.txt").write_text("there")
    text = """
assert open("data.txt").read() == "here"
assert open("../beside.txt").read() == "there"
open("data.txt", "w").write("of a trial")
open("checkpoint.pt", "w").write("x")
"""
    trial = trials(store, folder, text + LOOP.replace("BATCH", "size")).run(50)
    assert not trial.failed
    assert trial.batch == 50
    assert 0 < trial.samples_per_s <= 50 / 0.02
    assert trial.waiting < 1
    assert 50 << 20 < trial.memory_bytes < 2 << 30
    assert sorted(path.name for path in folder.iterdir()) == ["data.txt", "train.py"]
    assert (folder / "data.txt").read_text() == "here"
    assert scratch_is_empty(folder)
    (record,) = store.runs("a test")
    assert (record.name, record.status, record.reason) == ("size=50", "killed", "it was measured")


def test_copies_run_at_once_and_are_one_group_with_those_before(store, folder):
    tried = trials(store, folder, LOOP.replace("BATCH", "10"))
    one, two = tried.run(1), tried.run(2, 2)
    assert 0 < one.samples_per_s <= 10 / 0.02 and 0 < two.samples_per_s <= 20 / 0.02
    assert two.memory_bytes > one.memory_bytes
    assert [record.index for record in store.runs("a test")] == [0, 1, 2]
    assert len({record.group_id for record in store.runs("a test")}) == 1


def test_copies_that_share_read_one_feed_which_ends_with_them(store, folder):
    trial = trials(store, folder, LOOP.replace("BATCH", "10, shuffle=True")).run(2, 2, share=True)
    assert not trial.failed
    assert trial.share and trial.samples_per_s > 0
    assert penstock.feeds() == []
    in_order = trials(store, folder, LOOP.replace("BATCH", "10")).run(2, 2, share=True)
    assert "its loader cannot be shared" in in_order.failed


@pytest.mark.parametrize(
    ("text", "says", "lacks_memory"),
    [
        ("sys.exit('no such data')", "failed: no such data", False),
        ("os._exit(3)", "failed: ended with exit code 3", False),
        ("print('nothing to do')", "it asked no torch DataLoader and no feed", False),
        ("time.sleep(1000)", "no first batch within 4 s", False),
        ("held = [bytearray(1 << 20) for _ in range(1 << 20)]", "more memory than it may take", True),
        ("raise MemoryError('no room')", "MemoryError: no room", True),
        ("raise RuntimeError('CUDA out of memory. Tried to allocate 2 GiB')", "out of memory", True),
        (
            "raise RuntimeError('DataLoader worker (pid 7) is killed by signal: Killed. ')",
            "is killed by signal",
            True,
        ),
    ],
)
def test_what_cannot_be_measured_is_told_in_a_sentence(store, folder, text, says, lacks_memory):
    trial = trials(store, folder, text, first_s=4.0, memory_bytes=1 << 30).run(8)
    assert says in trial.failed
    assert trial.out_of_memory == lacks_memory
    assert scratch_is_empty(folder)


def test_processes_that_a_script_leaves_and_one_that_ignores_its_end_are_gone(store, folder):
    text = """
import os
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
open(os.environ["PID_FILE"], "w").write(str(child.pid))
"""
    path = folder.parent / "pid"
    text = f"os.environ['PID_FILE'] = {str(path)!r}\n" + text
    assert not trials(store, folder, text + LOOP.replace("BATCH", "size")).run(8).failed
    assert not psutil.pid_exists(int(path.read_text()))


def tries(store: Store, folder: Path, text: str, setting: str = "batch size") -> TrialLog:
    (folder / "train.py").write_text(HEAD + text)
    return TrialLog(
        store,
        Script(("train.py", "{}"), folder),
        setting,
        bounds=Bounds(30.0, 1 << 33),
        gpu="",
        seconds=1000.0,
        within="",
        again=False,
        tell=lambda done, what: None,
    )


def test_a_script_that_ignores_its_argument_is_told_so_after_two_trials(store, folder):
    found = tries(store, folder, LOOP.replace("BATCH", "32"))
    with pytest.raises(
        NotTried, match="train ignores its batch size: asked for 8 and for 16, it takes 32 samples"
    ):
        found.search(growing([8, 16, 32, 64]))
    assert len(found.tried.trials) == 2


def test_a_search_goes_on_where_it_was_until_the_script_changes(store, folder):
    text = LOOP.replace("BATCH", "size")
    assert tries(store, folder, text).search(growing([8]))
    again = tries(store, folder, text)
    assert again.search(growing([8, 16]))
    assert again.cost.startswith("That took 1 trial, and 1 known from before")
    assert len({record.group_id for record in store.runs()}) == 1
    assert tries(store, folder, text + "\n# another\n").tried.trials == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing_and_keeps_what_was_measured(folder, number):
    (folder / "train.py").write_text(HEAD + LOOP.replace("BATCH", "size"))
    words = [sys.executable, "-m", "penstock", "advise", "batch-size", "--store", str(folder.parent / "store")]
    with subprocess.Popen([*words, "--", "train.py", "{}"], cwd=folder, stderr=subprocess.PIPE) as process:
        kept = folder.parent / "store" / "fits"
        eventually(lambda: list(kept.glob("*.json")), "no trial has ended")
        time.sleep(1.0)
        process.send_signal(number)
        said = process.communicate()[1].decode()
    assert process.returncode == 128 + number
    assert "Traceback" not in said
    assert len(list(kept.glob("*.json"))) == 1
    assert scratch_is_empty(folder)
    nothing_is_left(folder.parent)


def test_small_folders_are_copies_the_store_and_large_ones_are_those_that_are_there(folder, monkeypatch):
    monkeypatch.setattr("penstock.fit.trial._COPIED_BYTES", 1 << 20)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "last.txt").write_text("good")
    (folder / "large").mkdir()
    (folder / "large" / "weights.bin").write_bytes(bytes(2 << 20))
    text = """
assert open("checkpoints/last.txt").read() == "good"
open("checkpoints/last.txt", "w").write("of a trial")
open("large/new.txt", "w").write("of a trial")
import tempfile
assert tempfile.mkdtemp().startswith(os.environ["TMPDIR"])
"""
    with Store.open(folder / "runs" / "store") as store:
        trial = trials(store, folder, text + LOOP.replace("BATCH", "size")).run(50)
        assert not trial.failed
        assert store.run(trial.run_id).reason == "it was measured"
    assert (folder / "checkpoints" / "last.txt").read_text() == "good"
    assert (folder / "large" / "new.txt").exists()
    assert scratch_is_empty(folder)
    nothing_is_left(folder.parent)


def test_what_a_call_that_was_killed_has_left_is_removed_by_the_next(store, folder):
    left, held = (folder.parent / "scratch" / f"penstock-fit-{name}" for name in ("left", "held"))
    for each in (left, held):
        each.mkdir()
        os.utime(each, (1.0, 1.0))
    lock = taken(held, os.O_RDONLY)
    trials(store, folder, LOOP.replace("BATCH", "size")).run(50)
    assert not left.exists() and held.exists()
    os.close(lock)
