"""What a training script logs reaches its run, whatever the script does; outside a run nothing happens."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.forked import Forked, ForkServer
from tests.scripts import output_of, run_python

from penstock.runs.record import GroupPlan, RunPlan, RunRecord
from penstock.runs.store import Store

PLAN = RunPlan(command=("true",), name="lr=0.1", parameters={"lr": "0.1", "Width": "8"}, directory="/")


class Script:
    """Runs Python text as a run's script would run."""

    def __init__(self, store: Store, server: ForkServer) -> None:
        self.store, self._server = store, server
        self.record: RunRecord = store.add(GroupPlan(name="g", runs=(PLAN,)))[0]
        self.id = self.record.id
        self.environment = {
            **os.environ,
            "PENSTOCK_STORE": str(store.folder),
            "PENSTOCK_RUN_ID": self.id,
            "PENSTOCK_RUN_INDEX": "3",
            "PENSTOCK_RUN_NAME": PLAN.name,
            "PENSTOCK_RUN_FOLDER": "/its/files",
            "PENSTOCK_RUN_PARAMETERS": json.dumps(PLAN.parameters),
        }

    def run(self, text: str, **more: str) -> str:
        """Run a script to its end; return what it wrote to stderr."""
        path = self.store.folder.with_name("script.py")
        path.write_text(f"import os, sys, penstock\n{text}")
        errors = path.with_name("errors")
        errors.unlink(missing_ok=True)
        environment = {**self.environment, **more}
        ran = Forked(self._server, str(path), [], path.with_name("out"), errors=errors, environment=environment)
        assert ran.wait() == 0, errors.read_text()
        return errors.read_text()

    def run_anew(self, text: str, **more: str) -> str:
        """Run it in a new Python, which has imported nothing, and writes what it says into a pipe."""
        env = {**self.environment, **more}
        ran = run_python("-W", "error", "-c", f"import os, sys, penstock\n{text}", env=env)
        assert ran.returncode == 0, ran.stderr
        return ran.stderr

    def series(self, name: str) -> list[float]:
        return list(self.store.series(self.id)[name].values)


@pytest.fixture
def script(tmp_path: Path, servers: dict[str, ForkServer]):
    with Store.open(tmp_path / "store") as store:
        yield Script(store, servers["numpy"])


def test_what_is_logged_is_in_the_series_of_the_run(script: Script):
    said = script.run("for step in range(100): penstock.log(step=step, loss=1 / (step + 1), ok=True)")
    assert not said
    assert script.series("step") == list(range(100))
    assert script.series("loss") == [1 / (step + 1) for step in range(100)]
    assert script.series("ok") == [1.0] * 100
    series = script.store.series(script.id)
    assert (series["step"].times_s == series["loss"].times_s).all()
    assert set(series) == {"step", "loss", "ok"}, "nothing of waits for data, of which there are none"


def test_the_run_tells_about_itself(script: Script):
    script.run(
        "from pathlib import Path\n"
        "run = penstock.current_run()\n"
        f"assert run.id == {script.id!r} and run.index == 3 and run.name == 'lr=0.1'\n"
        "assert run.parameters == {'lr': '0.1', 'Width': '8'} and run.folder == Path('/its/files')"
    )


@pytest.mark.parametrize("missing", ["PENSTOCK_STORE", "PENSTOCK_RUN_ID"])
def test_outside_a_run_nothing_happens(script: Script, missing: str):
    assert not script.run_anew(
        "assert penstock.current_run() is None\n"
        "penstock.log(loss='no number', **{'a/b': 1})\n"
        "import threading; assert threading.active_count() == 1\n"
        "assert 'penstock.runs.store' not in sys.modules",
        **{missing: ""},
    )
    assert not script.store.series(script.id)


def test_importing_penstock_and_logging_outside_a_run_loads_neither_numpy_nor_the_store():
    loaded = output_of("import penstock, sys; penstock.log(a=1); print(*sys.modules)").split()
    assert not {"numpy", "sqlite3", "penstock.runs.store"} & set(loaded)


def test_who_has_been_told_of_twenty_names_is_told_that_others_are_left_out(script: Script):
    lines = script.run("for i in range(40): penstock.log(**{f'n{i}': ['a list']})").splitlines()
    assert len(lines) == 21 and lines[-1] == "penstock.log: further warnings are not printed"


def test_nan_is_kept_and_what_is_no_number_is_left_out_and_said_once(script: Script):
    said = script.run(
        "class Bad:\n"
        "    def __float__(self): raise RuntimeError('no')\n"
        "for _ in range(3):\n"
        "    penstock.log(a=float('nan'), b=float('inf'), c={3},"
        " d=None, e=[1], f=b'3', g=Bad(), h=10**400, i=1j, k=5)"
    )
    assert all(map(math.isnan, script.series("a"))) and len(script.series("a")) == 3
    assert script.series("b") == [math.inf] * 3 and script.series("k") == [5.0] * 3
    assert set(script.store.series(script.id)) == {"a", "b", "k"}
    lines = said.splitlines()
    assert (
        len(lines) == 7 and "penstock.log: 'c' is left out: it is no number, array, image or text but set" in lines
    )


def test_a_name_of_what_penstock_measures_or_none_is_left_out_and_said_once(script: Script):
    said = script.run(
        "for i in range(3): penstock.log(**{'a\\nb': i, '': i, 'val loss': i})\n"
        "penstock.log({'proc.cpu_s': 777, 'feed.wait_s': 1000.0, 'feedback': 2.0})"
    )
    assert set(script.store.series(script.id)) == {"val loss", "feedback"}
    assert len(said.splitlines()) == 4 and "cannot name a series: it holds control characters" in said


def test_dicts_within_dicts_are_names_with_slashes_beside_keywords(script: Script):
    said = script.run(
        "for i in range(3):\n"
        "    penstock.log({'train/loss': i, 'eval': {'loss': 2 * i, 'top': {5: 3 * i}}}, step=10 * i, lr=0.5)\n"
        "penstock.log({})\n"
        "penstock.log('text')\n"
        "endless = {'a': 1}; endless['b'] = endless\n"
        "penstock.log({'endless': endless})"
    )
    found = {name: list(series.values) for name, series in script.store.series(script.id).items()}
    assert {name: found[name] for name in ("step", "lr")} == {"step": [0, 10, 20], "lr": [0.5] * 3}
    assert found["train/loss"] == [0, 1, 2] and found["eval/top/5"] == [0, 3, 6]
    assert found["endless/a"] == [1] and "'' cannot name a series: it is empty; it is left out" in said
    series = script.store.series(script.id)
    assert list(series["step"].times_s) == list(series["eval/loss"].times_s)


def test_thousands_of_names_lose_nothing(script: Script):
    said = script.run("for i in range(3): penstock.log({f'layer {n}/norm': n * i for n in range(20_000)})")
    series = script.store.series(script.id)
    assert not said and len(series) == 20_000
    assert all(len(each.values) == 3 for each in series.values())


def test_numpy_scalars_and_arrays_of_one_element_are_numbers(script: Script):
    script.run(
        "import numpy as np\n"
        "penstock.log(a=np.float32(0.5), b=np.int64(3), c=np.array([[2.0]]), d=np.bool_(True), e=np.float64(4))"
    )
    found = {name: list(series.values) for name, series in script.store.series(script.id).items()}
    assert found == {"a": [0.5], "b": [3.0], "c": [2.0], "d": [1.0], "e": [4.0]}


@pytest.mark.whole
def test_tensors_of_one_element_are_numbers(script: Script):
    script.run(
        "import torch\n"
        "loss = torch.tensor(2.0, requires_grad=True)\n"
        "penstock.log(a=loss, b=torch.tensor([3]))\n"
        "with torch.no_grad(): loss.add_(1)\n"
        "penstock.log(a=loss)"
    )
    assert script.series("a") == [2.0, 3.0] and script.series("b") == [3.0]


def test_threads_lose_no_point(script: Script):
    script.run(
        "import threading\n"
        "def work(n):\n"
        "    for i in range(2000): penstock.log(**{f'thread {n}': i})\n"
        "threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]\n"
        "for t in threads: t.start()\n"
        "for t in threads: t.join()"
    )
    assert all(script.series(f"thread {n}") == list(range(2000)) for n in range(4))


FORKS = {
    "multiprocessing": (
        "import multiprocessing\n"
        "def work(n): penstock.log(child=n)\n"
        "workers = [multiprocessing.get_context('fork').Process(target=work, args=(n,)) for n in range(3)]\n"
        "for w in workers: w.start()\n"
        "for w in workers: w.join()\n"
    ),
    "fork, then exit": (
        "for n in range(3):\n"
        "    if not os.fork():\n"
        "        penstock.log(child=n)\n"
        "        sys.exit()\n"
        "    os.wait()\n"
    ),
    "children that log nothing": (
        "for n in range(3):\n"
        "    if not os.fork(): sys.exit()\n"
        "    os.wait()\n"
        "penstock.log(child=0); penstock.log(child=1); penstock.log(child=2)\n"
    ),
}


@pytest.mark.parametrize("how", FORKS)
def test_forked_children_log_anew_and_write_nothing_of_their_parent_s(script: Script, how: str):
    said = script.run(f"penstock.log(parent=1)\n{FORKS[how]}penstock.log(parent=2)")
    assert not said
    assert sorted(script.series("child")) == [0, 1, 2]
    assert script.series("parent") == [1, 2]


def test_forks_amid_many_points_neither_lose_nor_repeat_one(script: Script):
    script.run(
        "import threading\n"
        "def work():\n"
        "    for i in range(20000): penstock.log(i=i)\n"
        "thread = threading.Thread(target=work); thread.start()\n"
        "for n in range(8):\n"
        "    if not os.fork(): penstock.log(child=n); sys.exit()\n"
        "    os.wait()\n"
        "thread.join()"
    )
    assert script.series("i") == list(range(20000))
    assert sorted(script.series("child")) == list(range(8))


def test_what_is_logged_while_the_interpreter_ends_is_kept(script: Script):
    script.run(
        "import atexit\n"
        "atexit.register(lambda: penstock.log(late=1))\n"
        "penstock.log(early=1)\n"
        "atexit.register(lambda: penstock.log(early=2))"
    )
    assert script.series("early") == [1, 2]
    assert script.series("late") == [1]


def test_a_script_that_logs_only_in_an_exit_handler_is_heard(script: Script):
    script.run("import atexit, threading\natexit.register(lambda: penstock.log(last=1))")
    assert script.series("last") == [1]


def test_a_killed_script_has_its_points_within_a_second_in_the_store(script: Script):
    text = "import sys, time, penstock\npenstock.log(a=1)\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", text], env=script.environment) as process:
        try:
            for _ in range(600):
                if script.store.series(script.id):
                    break
                threading.Event().wait(0.05)
        finally:
            process.kill()
    assert script.series("a") == [1]


def test_a_store_that_is_gone_or_full_fails_no_script(script: Script):
    series = script.store.folder_of(script.id) / "series"
    series.touch()
    said = script.run("for _ in range(3): penstock.log(a=1)")
    assert said.count("penstock.log:") == 2 and "did not take 3 points" in said
    series.unlink()
    said = script.run_anew(
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "for _ in range(3000): penstock.log(a=1)"
    )
    assert "penstock.log: the store cannot use" in said and "points; they are lost" in said


@pytest.mark.whole
def test_how_long_a_script_waits_for_data_is_kept(script: Script) -> None:
    script.run(
        """
import threading, time
import numpy as np
class Slow:
    def __iter__(self):
        for i in range(8):
            time.sleep(0.2)
            yield {"id": np.arange(4)}
feeder = penstock.Feeder(Slow(), "waits", epochs=1)
thread = threading.Thread(target=feeder.run)
thread.start()
with penstock.attach("waits") as loader:
    assert len(list(loader)) == 8
    waited = loader.statistics().wait_s
thread.join()
print(waited, file=open(os.environ["WAITED"], "w"))
""",
        WAITED=str(script.store.folder / "waited"),
    )
    waits = script.series("feed.wait_s")
    assert waits == sorted(waits) and waits[-1] > 0.5
    assert len(waits) >= 3, "also while it waits"
    assert waits[-1] >= float((script.store.folder / "waited").read_text())
    (epoch_s,) = script.series("feed.main.epoch_s")
    assert waits[-1] <= script.series("feed.loop_s")[-1] <= epoch_s + 0.1
    assert (script.series("feed.batches")[-1], script.series("feed.samples")[-1]) == (8, 32)


def test_the_loops_of_forked_children_are_kept(script: Script) -> None:
    script.run(
        """
from penstock.waits import Iteration
from penstock.runs.inside.run import watch_waits
def loop(batches):
    iteration = Iteration(loop)
    for _ in range(batches):
        iteration.ask()
        iteration.give(2)
watch_waits()
loop(3)
if not os.fork():
    loop(5)
    sys.exit()
os.wait()
"""
    )
    assert script.series("feed.batches")[-1] == 8
    assert len(list((script.store.folder_of(script.id) / "series").glob("script-*.points"))) == 2


def test_a_process_that_replaces_its_program_counts_on(script: Script) -> None:
    text = """
import os, sys
from penstock.waits import Iteration
from penstock.runs.inside import run as inside
inside.watch_waits()
iteration = Iteration(inside)
for _ in range(int(sys.argv[1])):
    iteration.ask()
    iteration.give(2)
if sys.argv[1] == "100":
    inside._here.recorder.write()
    os.execv(sys.executable, [sys.executable, sys.argv[0], "140"])
"""
    path = script.store.folder / "script.py"
    path.write_text(text)
    subprocess.run([sys.executable, path, "100"], env=script.environment, check=True)
    assert script.series("feed.batches")[-1] == 240 and script.series("feed.samples")[-1] == 480


def test_what_is_logged_is_kept_whatever_becomes_of_the_figures_of_loops(script: Script) -> None:
    said = script.run(
        """
from penstock.waits import Iteration
from penstock.runs.inside.run import watch_waits
watch_waits()
iteration = Iteration(os)
iteration._figures.samples = "no number"
for i in range(200): penstock.log(loss=i)
"""
    )
    assert script.series("loss") == list(range(200))
    assert said.count("penstock.log:") == 1 and "what loops wait for cannot be recorded" in said


def test_a_script_that_can_start_no_thread_is_heard_when_it_ends(script: Script) -> None:
    said = script.run("import threading\nthreading.stack_size(1 << 46)\nfor i in range(3): penstock.log(a=i)")
    assert script.series("a") == [0, 1, 2]
    assert said.count("penstock.log:") == 1 and "can't start new thread" in said


@pytest.mark.parametrize(
    ("limit", "calls", "most"),
    [(900_000, 60_000, 100_000), (5_000, 30_000, 100_000), (0, 9_000, 100_000), (200_000, 60_000, 500)],
)
def test_on_a_full_disk_points_that_are_kept_and_that_are_said_to_be_lost_are_all(
    script: Script, limit, calls, most
):
    said = script.run_anew(
        "import resource\n"
        "from penstock.runs.inside import run as inside\n"
        f"inside._MOST_WAITING = {most}\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY))\n"
        f"for step in range({calls}): penstock.log(step=step, loss=1.0)"
    )
    kept = sum(len(series.values) for series in script.store.series(script.id).values())
    lost = [int(found.replace(",", "")) for found in re.findall(r"did not take ([\d,]+) points", said)]
    assert len(lost) == 1 and kept + lost[0] == 2 * calls
    assert len(said.splitlines()) <= 3 and ("Make room" in said or most == 500)


def test_parameters_that_a_script_gives_are_beside_those_of_its_command(script: Script):
    said = script.run(
        """
class Settings:
    def __init__(self): self.lr, self.steps, self.on = 0.5, 100, False
penstock.params(Settings(), model={"layers": [2, 3], "name": "vit"}, password="hunter2hunter2")
penstock.params({"steps": 200, "steps of": object()})
penstock.params(steps=200)
penstock.params(5)
penstock.params(**{f"n{i}": i for i in range(2000)})
penstock.params(**{f"m{i}": i for i in range(2000)})
"""
    )
    record = script.store.run(script.id)
    assert len(record.given) == 1000
    assert {name: text for name, text in record.parameters.items() if name[0] not in "nm" or "." in name} == {
        **PLAN.parameters,
        "steps": "200",
        "on": "false",
        "model.layers": "[2, 3]",
        "model.name": "vit",
        "password": "***",
    }
    assert record.given["lr"] == "0.5" and "given" not in record.fields
    assert said.count("parameters that the script gives are not kept: ") == 1 and said.count("at most 1,000") == 1
    lines = (script.store.folder_of(script.id) / "parameters.jsonl").read_text().splitlines()
    assert len([*filter(None, lines)]) == 3, "what is given again is not written again"


def test_of_ranks_the_first_gives_parameters_and_outside_a_run_nobody(script: Script, tmp_path: Path):
    script.run("penstock.params(a=1)", RANK="1")
    script.run("penstock.params(b=1)", RANK="0")
    assert script.store.run(script.id).given == {"b": "1"}
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    assert run_python("-c", "import penstock; penstock.params(c=1)", env=outside, cwd=tmp_path).returncode == 0
    assert not [*tmp_path.glob("parameters.jsonl")]


def test_half_a_line_of_parameters_costs_those_alone(script: Script):
    script.run("penstock.params(a=1, b=2)")
    with (script.store.folder_of(script.id) / "parameters.jsonl").open("a") as file:
        file.write('{"a": "7')
    assert script.store.run(script.id).given == {"a": "1", "b": "2"}
    script.run("penstock.params(c=3, odd='x' + chr(0xDCE9))")
    assert script.store.run(script.id).given == {"a": "1", "b": "2", "c": "3", "odd": "x?"}


def test_what_an_option_says_is_no_second_parameter_and_large_dicts_are_one(script: Script):
    script.run("penstock.params({'lr': 3, 'id2label': {i: i for i in range(1000)}, 'db/password': 'x' * 9})")
    given = script.store.run(script.id).given
    assert given["db/password"] == "***" and given["id2label"].startswith("{0: 0, 1: 1")
    plan = RunPlan(command=("train.py", "--batch-size", "8"), name="a", directory="/")
    record = replace(script.store.run(script.id), plan=plan, given={"batch_size": "16", "lr": "3"})
    assert record.parameters == {"batch-size": "8", "lr": "3"}
