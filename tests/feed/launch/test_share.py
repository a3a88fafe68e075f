"""``share``: a script started several times elects one feeder, which runs what lives in its ``__main__``."""

from __future__ import annotations

import functools
import io
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.feed.reading import at_once
from tests.forked import Forked, ForkServer, eventually

import penstock
from penstock.feed.launch import feeds, shared
from penstock.feed.launch.spec import FeederSpec, pickle_spec, read_spec
from penstock.feed.settings import Settings
from penstock.fingerprint.functions import fingerprint_of

SCRIPT = """
import functools, json, os, sys, time
import numpy as np, penstock

def note(**event):
    print(json.dumps(event), flush=True)

def make():
    with open("started", "a") as file:
        file.write(f"{os.getpid()}\\n")
    return penstock.ArraySource({"id": np.arange(500)}, batch_size=10, segments=5)

def epoch(loader):
    return [int(i) for batch in loader for i in batch["id"]]
"""


class Script(Forked):
    """A training script that begins with ``SCRIPT``, forked, as its feeder is unless it is to be Python's own."""

    def __init__(
        self, server: ForkServer, path: Path, said: Path, arguments: tuple[str, ...], feeders: bool
    ) -> None:
        self._errors = said / "errors"
        files: dict[str, Any] = {"errors": self._errors, "directory": path.parent}
        super().__init__(server, str(path), arguments, said / "out", **files, forks_feeders=feeders)

    def says(self) -> list[dict[str, Any]]:
        """What it noted, once it has ended well."""
        assert self.wait() == 0, self._errors.read_text()
        return [json.loads(line) for line in self.output.splitlines()]


@pytest.fixture
def start(servers: Any, tmp_path: Path, tmp_path_factory: Any) -> Iterator[Callable[..., Script]]:
    """Start a script; a test's share a directory, and what still runs at its end is killed."""
    scripts: list[Script] = []

    def run(text: str, *arguments: str, forks_feeders: bool = True) -> Script:
        path = tmp_path / "script.py"
        if not path.exists():  # or one that starts now could find it half written
            path.write_text(SCRIPT + text)
        said = tmp_path_factory.mktemp("said")
        scripts.append(Script(servers["numpy"], path, said, arguments, forks_feeders))
        return scripts[-1]

    yield run
    for script in scripts:
        if not script.ended:
            script.kill()


def test_the_same_script_started_four_times_elects_one_feeder(start, tmp_path):
    text = """
with penstock.share(make, "numbers", 1 + 16 * int(sys.argv[1]), linger=1.0) as loader:
    for _ in range(3):
        note(ids=epoch(loader))
    note(feeder=loader.statistics().feeder_pid)
"""
    said = [script.says() for script in [start(text, str(i), forks_feeders=False) for i in range(4)]]
    for events in said:
        for event in events[:3]:
            assert sorted(event["ids"]) == list(range(500))
    (feeder,) = {events[3]["feeder"] for events in said}
    assert (tmp_path / "started").read_text().split() == [str(feeder)]


def test_a_module_beside_the_script_is_found_by_the_feeder(start, tmp_path):
    (tmp_path / "beside.py").write_text("import numpy as np\ndef make():\n    return {'id': np.arange(50)}\n")
    text = """
import beside
with penstock.share(beside.make, "numbers", 7, linger=0.0) as loader:
    note(ids=epoch(loader))
"""
    (event,) = start(text).says()
    assert sorted(event["ids"]) == list(range(50))


def test_a_module_that_shares_while_it_is_imported_is_refused_by_the_feeder_that_imports_it(start, tmp_path):
    """As a new user found: the feeder waited for itself."""
    (tmp_path / "beside.py").write_text(
        "import numpy as np, penstock\n"
        "def make():\n    return {'id': np.arange(50)}\n"
        "loader = penstock.share(make, 'numbers', 7, linger=0.0)\n"
    )
    text = """
try:
    import beside
except penstock.errors.BadSetting as error:
    note(error=str(error))
"""
    (event,) = start(text).says()
    assert "share('numbers') runs again in the feeder's process" in event["error"]
    assert 'below `if __name__ == "__main__":`' in event["error"]


def test_a_feeders_traceback_names_the_users_file_whatever_pickles_the_function():
    def make():
        raise ValueError("no such data")

    unpickled = read_spec(io.BytesIO(pickle_spec(FeederSpec(make, "x", Settings(), fingerprint_of(make), []))))
    assert unpickled.make_loader.__code__.co_filename == __file__


numbers = functools.partial(penstock.ArraySource, {"id": np.arange(500)}, batch_size=10, segments=5)


@pytest.mark.parametrize(
    ("setting", "runs", "asked", "shown"),
    [
        ("seed", 1, 2, "2"),
        ("window", "1MiB", "2MiB", "2097152"),
        ("epochs", 3, 4, "4"),
        ("linger", 0.5, 7.0, "7.0"),
        ("stall_timeout", 60.0, 61.0, "61.0"),
        ("whole_batches", False, True, "True"),
        ("segments", 4, 5, "5"),
    ],
)
@pytest.mark.usefixtures("forks_feeders")
def test_a_later_caller_with_other_settings_is_refused_and_told_both_values(setting, runs, asked, shown):
    with penstock.share(numbers, "numbers", **{"linger": 0.5, setting: runs}) as loader:
        with pytest.raises(penstock.errors.SettingsDiffer) as refused:
            penstock.share(numbers, "numbers", **{setting: asked})
        value = {"window": "1048576"}.get(setting, repr(runs))
        assert f"={value} where you asked for {shown}" in str(refused.value)
        assert setting in str(refused.value)
        with penstock.share(numbers, "numbers", **{setting: runs}) as same:
            assert same.statistics().feeder_pid == loader.statistics().feeder_pid
        with penstock.share(numbers, "numbers") as silent:
            assert silent.statistics().feeder_pid == loader.statistics().feeder_pid


class Hidden(torch.utils.data.Dataset[Any]):
    """Reads a variable by a name that no look at its code tells."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, i: int) -> Any:
        return {"id": i, "value": i * int(dict(os.environ)["".join(map(chr, (83, 67)))]), "noise": torch.rand(3)}


def hidden() -> Any:
    return torch.utils.data.DataLoader(Hidden(), 8, shuffle=True)


@pytest.mark.usefixtures("forks_feeders")
def test_a_later_caller_whose_make_loader_makes_other_samples_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SC", "1")
    with penstock.share(hidden, "hidden", linger=0.5) as first:
        assert len(list(first)) == 4
        with penstock.share(hidden, "hidden") as same:
            assert [batch["value"].tolist() for batch in same] != []
        monkeypatch.setenv("SC", "2")
        with (
            penstock.share(hidden, "hidden") as other,
            pytest.raises(
                penstock.errors.SettingsDiffer, match=r"makes other samples than .*of sample \d+, batch\['value'\]"
            ),
        ):
            next(iter(other))
        assert len(list(first)) == 4


@pytest.mark.parametrize(
    ("given", "told"), [({"batch_size": 2}, "batch_size"), ({"shard": (0, 2), "device": "cpu"}, "shard, device")]
)
def test_what_a_shared_loader_does_not_take_is_refused(given, told):
    loader = torch.utils.data.DataLoader(range(4), shuffle=True)
    with pytest.raises(penstock.errors.BadSetting, match=f"no other arguments than the name, and got {told}:"):
        penstock.share(loader, "numbers", **given)
    with pytest.raises(penstock.errors.BadSetting, match="name"):
        penstock.share(loader, "x" * 2000)


def test_what_the_source_raises_is_found_by_its_own_type(start):
    text = """
def broken():
    yield {"id": np.arange(10)}
    raise KeyError("no such row")

class Broken:
    def __iter__(self):
        return broken()

with penstock.share(Broken, "numbers", linger=0.0) as loader:
    try:
        epoch(loader)
    except KeyError as error:
        ours = isinstance(error, penstock.errors.SourceError)
        note(told=str(error), ours=ours, frames="broken" in error.traceback_text)
"""
    (event,) = start(text).says()
    assert "raised KeyError: 'no such row'" in event["told"] and event["ours"] and event["frames"]


def test_the_feeder_ends_when_its_last_trainer_has_been_gone_for_the_linger(start):
    text = """
with penstock.share(make, "numbers", linger=float(sys.argv[1])) as loader:
    next(iter(loader))
    note(feeder=loader.statistics().feeder_pid)
"""
    (first,) = start(text, "60").says()
    (second,) = start(text, "60").says()
    assert second == first
    feeds.stop("numbers")
    (third,) = start(text, "0.2").says()
    assert third != first
    # That it ends, and leaves nothing, is what every test is checked for at its end.


def test_epochs_is_how_many_each_trainer_gets(start):
    text = """
with penstock.share(make, "numbers", 33, epochs=2, linger=1.0) as loader:
    for _ in range(2):
        note(ids=epoch(loader))
    try:
        next(iter(loader))
    except penstock.errors.FeedEnded as error:
        note(ended=str(error))
"""
    for script in [start(text) for _ in range(3)]:
        first, second, ended = script.says()
        assert sorted(first["ids"]) == sorted(second["ids"]) == list(range(500))
        assert "epochs=2" in ended["ended"]


RESUMES = """
rank, size, stop, directory = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
path = os.path.join(directory, f"state-{rank}")
with penstock.share(make, "numbers", size, linger=float(sys.argv[5])) as loader:
    if os.path.exists(path):
        with open(path) as file:
            loader.load_state_dict(json.load(file))
    taken = 0
    while loader.epoch < 3 and taken < stop:
        epoch = loader.epoch
        for batch in loader:
            note(epoch=epoch, ids=[int(i) for i in batch["id"]])
            taken += 1
            if taken == stop:
                break
    with open(path, "w") as file:
        json.dump(loader.state_dict(), file)
"""


@pytest.mark.parametrize("linger", ["0", "60"], ids=["a new feeder", "the same feeder"])
@pytest.mark.parametrize(
    "stops", [[(5, 5, 5), (40, 40, 40)], [(3, 70, 150), (1, 1, 160), (17, 100, 2)]], ids=["together", "apart"]
)
def test_trainers_that_restart_from_checkpoints_go_on_with_the_next_sample(start, tmp_path, stops, linger):
    """Each run of the three is stopped after some batches; joined together they are three whole epochs."""
    sizes = (7, 10, 33)
    got: list[dict[int, list[int]]] = [{}, {}, {}]
    for stop in [*stops, (10**6,) * 3]:
        scripts = [start(RESUMES, str(i), str(sizes[i]), str(stop[i]), str(tmp_path), linger) for i in range(3)]
        for i, script in enumerate(scripts):
            for event in script.says():
                got[i].setdefault(event["epoch"], []).extend(event["ids"])
    for epochs in got:
        assert {epoch: len(ids) for epoch, ids in epochs.items()} == {0: 500, 1: 500, 2: 500}
        for ids in epochs.values():
            assert sorted(ids) == list(range(500))
    if linger != "0":
        feeds.stop("numbers")


def test_the_feeder_is_in_a_session_of_its_own_and_keeps_none_of_the_scripts_descriptors(start, tmp_path):
    """It outlives the script, whose captured output would not end while another process has it open."""
    text = """
kept = open("kept", "w")
os.set_inheritable(kept.fileno(), True)

def noisy():
    print("a line of the loader", flush=True)
    print("another", file=sys.stderr, flush=True)
    return make()

with penstock.share(noisy, "numbers", 33, linger=60.0) as loader:
    note(feeder=loader.statistics().feeder_pid)
"""
    script = start(text, forks_feeders=False)
    (event,) = script.says()
    feeder = event["feeder"]
    assert os.getsid(feeder) == feeder, "the feeder ended with its script, or is of its session"
    opened = {fd: os.readlink(f"/proc/{feeder}/fd/{fd}") for fd in os.listdir(f"/proc/{feeder}/fd")}
    assert not {str(script._output), str(script._errors)} & {*opened.values()}
    assert str(tmp_path / "kept") not in opened.values()
    feeds.stop("numbers")


def test_make_loader_sees_the_arguments_of_the_script_that_started_the_feeder(start):
    text = """
def make_of_argument():
    return penstock.ArraySource({"id": np.arange(int(sys.argv[2]))}, batch_size=10)

with penstock.share(make_of_argument, "numbers", linger=0.5) as loader:
    note(ids=epoch(loader), batches=len(loader))
"""
    (event,) = start(text, "--size", "70").says()
    assert sorted(event["ids"]) == list(range(70))


def test_what_make_loader_draws_is_the_same_in_the_next_feeder():
    def make() -> penstock.ArraySource:
        files = list(range(100))
        random.shuffle(files)
        return penstock.ArraySource({"id": np.random.permutation(files)}, batch_size=10, shuffle=False)

    orders: list[list[int]] = []
    feeders: set[int] = set()
    for _ in range(2):
        with penstock.share(make, "files", linger=0) as loader:
            orders.append([int(i) for batch in loader for i in batch["id"]])
            feeders.add(loader.statistics().feeder_pid)
    assert len(feeders) == 2
    assert orders[0] == orders[1]


def test_threads_and_forked_children_of_one_process_share_at_once(start, tmp_path):
    """A child is forked while a thread waits for the feeder that it has started."""
    text = """
import threading
from pathlib import Path

def note(**event):
    os.write(1, (json.dumps(event) + "\\n").encode())  # one line at once, whichever thread says it

def slow():
    while not os.path.exists("forked"):
        time.sleep(0.01)
    return make()

def train():
    with penstock.share(slow, "numbers", 7, linger=60.0) as loader:
        note(right=sorted(epoch(loader)) == list(range(500)))

threads = [threading.Thread(target=train) for _ in range(3)]
for thread in threads:
    thread.start()
while not list(Path(os.environ["PENSTOCK_DIR"]).glob("*.log")):
    time.sleep(0.01)
children = []
for _ in range(2):
    if (pid := os.fork()) == 0:
        train()
        os._exit(0)
    children.append(pid)
open("forked", "w").close()
for thread in threads:
    thread.join()
note(ends=[os.waitpid(pid, 0)[1] for pid in children])
"""
    said = start(text).says()
    assert said[-1] == {"ends": [0, 0]}
    assert said[:-1] == [{"right": True}] * 5
    assert len((tmp_path / "started").read_text().split()) == 1
    feeds.stop("numbers")


@pytest.mark.whole
@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_a_daemon_without_standard_descriptors_shares(start, tmp_path, closed):
    text = f"""
for fd in {closed}:
    os.close(fd)
with penstock.share(make, "numbers", 7, linger=0.2) as loader:
    os.write(2, b"what a library says\\n")
    right = sorted(epoch(loader)) == list(range(500))
with open("right", "w") as file:
    file.write(str(right))
os._exit(0)
"""
    assert start(text, forks_feeders=False).wait() == 0
    assert (tmp_path / "right").read_text() == "True"


SHARES = SCRIPT + 'note(ids=epoch(penstock.share(make, "numbers", 7, linger=0.2)))\n'


def shares(folder: Path, *command: str) -> None:
    run = [sys.executable, *command]
    out = subprocess.run(run, cwd=folder, capture_output=True, check=True).stdout
    assert sorted(json.loads(out)["ids"]) == list(range(500))


@pytest.mark.whole
@pytest.mark.parametrize("flag", ["-O", "-I", "-P"])
def test_a_python_with_other_flags_shares(tmp_path, flag):
    (tmp_path / "script.py").write_text(f"import sys\nsys.path = {sys.path!r}\n{SHARES}")
    shares(tmp_path, flag, "script.py")


def test_a_script_in_a_directory_that_has_been_deleted_shares(tmp_path):
    text = SHARES.replace('    with open("started", "a") as file:\n        file.write(f"{os.getpid()}\\n")\n', "")
    gone = tmp_path / "gone"
    gone.mkdir()
    shares(gone, "-c", f"import os; os.rmdir({str(gone)!r})\n{text}")


@pytest.mark.usefixtures("forks_feeders")
def test_who_starts_a_feeder_and_who_waits_for_it_say_after_3_s_for_what(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(shared, "_SAY_AFTER_S", 0.1)
    maker, go, said = tmp_path / "maker", tmp_path / "go", list[str]()

    def make() -> penstock.ArraySource:
        maker.write_text(str(os.getpid()))
        while not go.exists():
            time.sleep(0.01)
        return penstock.ArraySource({"id": np.arange(10)}, batch_size=10)

    def read(_: int) -> int:
        with penstock.share(make, "numbers", linger=0.1) as loader:
            return loader.statistics().feeder_pid

    def both_have_said_it() -> bool:
        said.extend(line for line in capsys.readouterr().err.splitlines() if "is not there after" in line)
        return len(said) >= 2 and any(f"process {maker.read_text()} makes its loader" in line for line in said)

    with ThreadPoolExecutor(1) as thread:
        feeders = thread.submit(at_once, read, 2)
        eventually(maker.exists)
        eventually(both_have_said_it)
        go.touch()
        assert {*map(str, feeders.result())} == {maker.read_text()}
