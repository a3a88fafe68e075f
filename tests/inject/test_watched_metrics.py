"""`penstock run`: what unmodified scripts log with other libraries is kept, and they notice nothing.

MLflow is the real one, and so is torch's SummaryWriter, above a stand-in for tensorboard, which it writes with.
The others are stand-ins with the calls of wandb since 0.19 (a disabled run has a log of its own, since 0.28 by its
class), tensorboardX 2.6 and radT 0.2; tests/frameworks has the real ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.inject.test_start import TORCH
from tests.scripts import run_python

from penstock.runs.store import Store

pytestmark = pytest.mark.whole

TENSORBOARD = """
import sys
from importlib.machinery import ModuleSpec
__version__ = "2.20.0"
class Kind(type):
    def __getattr__(self, name):
        if name.startswith("__"): raise AttributeError(name)
        return Anything()
class Anything(metaclass=Kind):
    def __init__(self, *words, **named): self.__dict__.update(named)
    def __getattr__(self, name): return Kind.__getattr__(self, name)
    def __call__(self, *words, **named): return Anything()
    def __iter__(self): return iter(())
    def __add__(self, other): return other
class Finder:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=True) if name.startswith("tensorboard.") else None
    def create_module(self, spec): return None
    def exec_module(self, module): module.__getattr__ = lambda name: Kind(name, (Anything,), {})
sys.meta_path.append(Finder())
"""
WANDB = {
    "__init__.py": """
from wandb.sdk.wandb_init import init
def log(data, step=None, commit=None): raise RuntimeError("You must call wandb.init() before wandb.log()")
class Image: pass
""",
    "sdk/__init__.py": "",
    "sdk/lib/__init__.py": "",
    "sdk/wandb_config.py": """
class Config:
    def __init__(self): object.__setattr__(self, "_items", {})
    def keys(self): return self._items.keys()
    def __getitem__(self, key): return self._items[key]
    def __setitem__(self, key, value): self._items[key] = value
    __setattr__ = __setitem__
    def update(self, d, allow_val_change=None): self._items.update(d)
    def setdefaults(self, d): object.__setattr__(self, "_items", {**d, **self._items})
""",
    "sdk/wandb_run.py": """
import functools
from .wandb_config import Config
def _raise_if_finished(method):
    @functools.wraps(method)
    def checked(self, *args, **kwargs):
        if self.finished: raise ValueError("run is finished")
        return method(self, *args, **kwargs)
    return checked
class Run:
    def __init__(self, id="7", name=None, starting_step=0):
        self.id, self.name, self.starting_step, self._local_step = id, name, starting_step, starting_step
        self.finished, self.sent, self.config = False, [], Config()
    @_raise_if_finished
    def log(self, data, step=None, commit=None):
        self.sent.append(data)
        if step is not None and step > self._local_step: self._local_step = step
        if commit or (commit is None and step is None): self._local_step += 1
    def define_metric(self, name, step_metric=None): pass
    def finish(self): self.finished = True
""",
    "sdk/lib/noop_run.py": """
from wandb.sdk.wandb_run import Run
class NoopRun(Run):
    def log(self, data, *args, **kwargs) -> None: self.sent.append(data)
""",
    "sdk/wandb_init.py": """
import os, random, wandb
from .lib.noop_run import NoopRun
from .wandb_run import Run
def init(project=None, mode=None, name=None, resume_at=0, config=None):
    mode, id = mode or os.environ.get("WANDB_MODE", "online"), f"{random.getrandbits(40):x}"
    if mode == "disabled": run = NoopRun(id, name or f"dummy-{id}")
    else: run = Run(id, name, resume_at)
    if mode == "disabled before 0.28": run.log = lambda data, *_, **__: run.sent.append(data)
    run.config._items.update(config or {})
    wandb.run, wandb.log = run, run.log
    return run
""",
}
TENSORBOARD_X = {
    "__init__.py": "from .writer import SummaryWriter",
    "writer.py": """
import os, socket, time
class SummaryWriter:
    def __init__(self, logdir=None, comment=""):
        of_itself = time.strftime("%b%d_%H-%M-%S_") + socket.gethostname() + comment
        self.logdir = logdir or os.path.join("runs", of_itself)
    def add_scalar(self, tag, scalar_value, global_step=None, walltime=None, display_name="", **_):
        float(scalar_value)
    def add_scalars(self, main_tag, tag_scalar_dict, global_step=None, walltime=None): pass
    def add_hparams(self, hparam_dict, metric_dict, name=None, global_step=None):
        inner = SummaryWriter(os.path.join(self.logdir, name or str(time.time())))
        for key, value in metric_dict.items(): inner.add_scalar(key, value, global_step)
""",
}
RADT = {
    "__init__.py": "from . import run",
    "run/__init__.py": "from .benchmark import RADTBenchmark",
    "run/benchmark.py": """
import mlflow, os
class RADTBenchmark:
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def log_metric(self, name, value, epoch=0):
        if "RADT_PRESENT" in os.environ: mlflow.log_metric(name, value, epoch)
    def log_metrics(self, metrics, epoch=0):
        if "RADT_PRESENT" in os.environ: mlflow.log_metrics(metrics, epoch)
""",
}


def package(folder: Path, name: str, files: dict[str, str]) -> None:
    for path, text in files.items():
        (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / name / path).write_text(text)


def alone(folder: Path, environment: dict[str, str]) -> str:
    """What a script prints without Penstock."""
    done = run_python("train.py", cwd=folder, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def kept(launch: Callable[..., Any], tmp_path: Path) -> Callable[..., tuple[dict[str, list[float]], str, str]]:
    """Runs a script, which prints what it does without Penstock; returns its series and what is said of it."""
    packages = tmp_path / "packages"
    package(packages, "tensorboard", {"__init__.py": TENSORBOARD})
    package(packages, "wandb", WANDB)
    package(packages, "tensorboardX", TENSORBOARD_X)
    package(packages, "radt", RADT)

    def run(text: str, *options: str, **more: str) -> tuple[dict[str, list[float]], str]:
        (tmp_path / "train.py").write_text(text)
        path = os.pathsep.join(filter(None, (str(packages), os.environ.get("PYTHONPATH"))))
        more = {
            "PYTHONPATH": path,
            "MLFLOW_TRACKING_URI": f"file:{tmp_path}/mlruns",
            "MLFLOW_ALLOW_FILE_STORE": "true",
            **more,
        }
        one = launch("--listeners", "none", *options, "train.py", **more)
        assert one.wait() == 0, one.errors
        assert one.output == (alone(tmp_path, more) if "print(" in text else "")
        with Store.open(tmp_path / "store") as store:
            series = store.series(one.record().id)
        return {name: each.values.tolist() for name, each in series.items() if name != "run.cpu_s"}, one.errors

    return run


@pytest.mark.mlflow
def test_what_mlflow_logs_is_kept_with_its_steps(kept, tmp_path: Path):
    pytest.importorskip("mlflow")
    found, said = kept(
        """
import mlflow
from mlflow import log_metric, log_metrics, MlflowClient
from mlflow.entities import Metric, Param
with mlflow.start_run() as run:
    for epoch in range(3):
        print(log_metric("loss", 1 / (1 + epoch), step=epoch))
    mlflow.log_metric("unstepped", 7.0)
    log_metrics({"a": 1, "b": 2.5}, step=10)
    client = MlflowClient()
    client.log_metric(run.info.run_id, "client", 4.0, step=11)
    client.log_batch(run_id=run.info.run_id, metrics=[Metric("batch", 5.0, 0, 12), Metric("batch", 6.0, 0, 13)])
    mlflow.log_param("lr", 0.1)
    mlflow.log_params({"wd": 1e-2, "name": "x"})
    client.log_param(run.info.run_id, "depth", 3)
    client.log_batch(run.info.run_id, params=[Param("width", "8")])
    try: mlflow.log_metric("bad", "text")
    except Exception as error: print(type(error).__name__)
    print([(each.value, each.step) for each in client.get_metric_history(run.info.run_id, "loss")])
    print(log_metric.__name__, log_metric.__doc__[:30])
"""
    )
    assert found.pop("step") == [0, 1, 2, 10, 11, 12, 13]
    assert found == {
        "loss": [1, 0.5, 1 / 3],
        "unstepped": [7],
        "a": [1],
        "b": [2.5],
        "client": [4],
        "batch": [5, 6],
    }
    assert said.count("penstock: keeps what the script logs with mlflow\n") == 1
    assert "penstock.log" not in said
    assert parameters(tmp_path) == {"lr": "0.1", "wd": "0.01", "name": "x", "depth": "3", "width": "8"}


def parameters(folder: Path) -> dict[str, str]:
    with Store.open(folder / "store") as store:
        return store.runs()[-1].parameters


@pytest.mark.parametrize("mode", ["offline", "disabled"])
def test_parameters_that_scripts_give_are_those_of_the_run(kept, tmp_path: Path, mode: str):
    _, said = kept(
        """
import argparse, penstock, tensorboardX, wandb
run = wandb.init(config={"lr": 0.1, "model": {"layers": 4, "norm": None}, "api_key": "a-secret-of-mine"})
run.config.update({"batch": 8}, allow_val_change=True)
run.config["seed"] = 1
run.config.optimizer = "adam"
run.config.setdefaults({"seed": 5, "warm": True, "hook": print})
penstock.params(argparse.Namespace(depth=3, batch=16, run=run), width=2)
run.config.late = "yes"
tensorboardX.SummaryWriter("x").add_hparams({"drop": 0.5}, {"accuracy": 1})
""",
        WANDB_MODE=mode,
    )
    assert parameters(tmp_path) == {
        "lr": "0.1",
        "model.layers": "4",
        "model.norm": "None",
        "api_key": "***",
        "batch": "16",
        "seed": "1",
        "optimizer": "adam",
        "warm": "true",
        "depth": "3",
        "width": "2",
        "drop": "0.5",
        "hook": "<built-in function print>",
        "late": "yes",
    }
    assert "not kept" not in said


MODES = ["offline", "disabled", "disabled before 0.28"]


@pytest.mark.parametrize("mode", MODES)
def test_what_wandb_logs_is_kept_in_every_mode(kept, mode: str):
    found, said = kept(
        f"""
def train():
    import wandb
    try: wandb.log({{"early": 1}})
    except RuntimeError as error: print(error)
    run = wandb.init(mode="{mode}")
    for i in range(3): wandb.log({{"loss": i, "eval": {{"top": i / 2}}, "image": wandb.Image(), "name": "text"}})
    run.log({{"late": 9}}, step=70)
    print(len(run.sent), run.sent[0]["loss"], run.log.__name__)
    if "{mode}" == "offline":
        run.finish()
        try: run.log({{"gone": 1}})
        except ValueError as error: print(error)
train()
"""
    )
    assert found.pop("step") == [0, 1, 2, 70]
    assert found == {"loss": [0, 1, 2], "eval/top": [0, 0.5, 1], "late": [9]}
    assert said.count("keeps what the script logs with wandb") == 1 and "penstock.log" not in said


@pytest.mark.parametrize("mode", MODES)
def test_steps_are_counted_as_wandb_counts_them(kept, mode: str):
    """Those of a run of wandb 0.31, as its offline file has them."""
    found, _ = kept(
        """
import wandb
run = wandb.init()
run.define_metric("val/*", step_metric="epoch")
run.log({"one": 1}); run.log({"two": 1}, commit=False); wandb.log({"three": 1}); wandb.log({"four": 1}, None)
run.log({"five": 1}, step=70); run.log({"six": 1}); run.log({"seven": 1}, 80, commit=True); run.log({"eight": 1})
run.log({"nine": 1}, step=80); wandb.log({"ten": 1}, commit=True)
""",
        WANDB_MODE=mode,
    )
    assert found["step"] == [0, 1, 1, 2, 70, 70, 80, 81, 82]
    assert len(found) == 10 and "nine" not in found, "wandb drops what lies before its present step"


def test_a_run_of_wandb_that_was_resumed_counts_on(kept):
    found, _ = kept("import wandb; run = wandb.init(resume_at=40); run.log({'a': 1}); run.log({'a': 2})")
    assert (found["step"], found["a"]) == ([40, 41], [1, 2])


@pytest.mark.mlflow
def test_what_summary_writers_get_is_kept(kept):
    pytest.importorskip("google.protobuf")  # of which torch's writer makes its records
    found, said = kept(
        """
import numpy as np, torch
from torch.utils.tensorboard import SummaryWriter
import tensorboardX
writer, other = SummaryWriter("here"), tensorboardX.SummaryWriter()
for i in range(3):
    writer.add_scalar("loss", torch.tensor(float(i)), i)
    writer.add_scalars("both", {"a": i, "b": np.float32(2 * i)}, global_step=i)
    other.add_scalar("x", i, i)
    other.add_scalar("loss", 100 + i, i)
try: other.add_scalar("y", "text")
except ValueError as error: print(error)
"""
    )
    assert found.pop("step") == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert found == {"loss": [0, 1, 2], "both/a": [0, 1, 2], "both/b": [0, 2, 4], "x": [0, 1, 2]}
    assert said.count("keeps what the script logs with tensorboard\n") == 1 and "with tensorboardX\n" in said


@pytest.mark.mlflow
def test_of_two_libraries_the_first_keeps_a_name_and_what_radt_passes_to_mlflow_counts_once(kept):
    pytest.importorskip("mlflow")
    found, said = kept(
        """
import mlflow, radt, wandb
wandb.init()
with mlflow.start_run(), radt.run.RADTBenchmark() as run:
    for epoch in range(2):
        run.log_metric("loss", epoch, epoch)
        run.log_metrics({"accuracy": 0.5}, epoch=epoch)
        wandb.log({"loss": epoch, "other": 1})
        mlflow.log_metric("accuracy", 9, step=epoch)
""",
        RADT_PRESENT="1",  # within radT
    )
    assert (found["loss"], found["accuracy"], found["other"]) == ([0, 1], [0.5, 0.5], [1, 1])
    assert all(f"logs with {name}" in said for name in ("radt", "wandb", "mlflow"))


FROM_HERE = "from two folders or runs: from here on they are"


def test_what_two_writers_log_by_one_name_is_kept_apart(kept):
    found, said = kept(
        """
from tensorboardX import SummaryWriter
train, val = SummaryWriter("x/train"), SummaryWriter("x/val")
for i in range(3):
    train.add_scalar("loss", i, i); train.add_scalar("lr", 0.1, i); train.add_scalars("both", {"a": i}, i)
    val.add_scalar("loss", 10 + i, i); val.add_scalars("both", {"a": 10 + i, "b": i}, i)
"""
    )
    assert (found["loss"], found["train/loss"], found["val/loss"]) == ([0], [1, 2], [10, 11, 12])
    assert (found["both/a"], found["train/both/a"], found["val/both/a"]) == ([0], [1, 2], [10, 11, 12])
    assert (found["lr"], found["both/b"]) == ([0.1] * 3, [0, 1, 2]), "names of one writer are as they were"
    assert said.count(f"penstock: tensorboardX gets 'loss' {FROM_HERE} 'train/loss' and 'val/loss'") == 1
    assert said.count(FROM_HERE) == 1


def test_what_one_process_of_a_run_has_renamed_has_its_name_in_the_next(kept):
    process = """
import sys
from tensorboardX import SummaryWriter
train, val = SummaryWriter("x/train"), SummaryWriter("x/val")
for step in range(int(sys.argv[1]), int(sys.argv[2])):
    train.add_scalar("loss", step + int(sys.argv[3]), step)
    if step % 4 == 3: val.add_scalar("loss", -step, step)
"""
    found, said = kept(
        f"""
import subprocess, sys
for words in (("0", "10", "0"), ("8", "16", "100"), ("14", "18", "200")):
    subprocess.run([sys.executable, "-c", {process!r}, *words], check=True)
"""
    )
    again = [*range(4, 10), *range(108, 116), *range(214, 218)]
    assert (found["loss"], found["train/loss"]) == ([0, 1, 2, 3], again)
    assert found["val/loss"] == [-3, -7, -11, -15, -15]
    assert said.count(FROM_HERE) == 1


@pytest.mark.parametrize("mode", MODES)
def test_runs_and_default_folders_of_another_process_are_known_by_their_names(kept, mode: str):
    process = """
import sys, wandb
from tensorboardX import SummaryWriter
at = int(sys.argv[1])
for name in ("fold", "fold", "all"):
    wandb.init(name=name).log({"accuracy": at})
here = [SummaryWriter(comment=comment) for comment in ("lr 0.1", "lr 0.2")]
for writer in here + here: writer.add_scalar("loss", at, at)
"""
    found, _ = kept(
        f"""
import subprocess, sys, time
for word in "12":
    subprocess.run([sys.executable, "-c", {process!r}, word], check=True)
    time.sleep(1)
""",
        WANDB_MODE=mode,
    )
    assert (found["accuracy"], found["fold/accuracy"]) == ([1], [2]), "each as the first of its name"
    assert (found["fold 2/accuracy"], found["all/accuracy"]) == ([1, 2], [1, 2])
    assert (found["loss"], found["lr 0.1/loss"], found["lr 0.2/loss"]) == ([1], [1, 2, 2], [1, 1, 2, 2])


def test_folders_of_one_name_are_told_apart_and_a_folder_that_is_opened_again_is_the_same_writer(kept):
    found, _ = kept(
        """
import os
from tensorboardX import SummaryWriter
def log(folder, *values):
    writer = SummaryWriter(folder)
    for value in values: writer.add_scalar("loss", value)
    return writer
first = log("a/fold", 1)
log("b/fold", 2)
log("a/fold", 3)
log(os.path.abspath("b/fold"), 4)
log("c/run.1", 5)  # as Penstock's own series begin
os.makedirs("elsewhere", exist_ok=True); os.chdir("elsewhere")
first.add_scalar("loss", 6)
"""
    )
    assert found == {"loss": [1], "fold/loss": [3, 6], "b/fold/loss": [2, 4], "run_1/loss": [5]}


def test_default_folders_are_named_by_their_comment_and_not_by_the_time(kept):
    found, _ = kept(
        """
from tensorboardX import SummaryWriter
for value, comment in enumerate(["", "lr 0.1", "lr 0.2"]):
    writer = SummaryWriter(comment=comment)
    for _ in range(2): writer.add_scalar("loss", value)
for value in range(2): writer.add_hparams({"lr": 0.1}, {"hparam/loss": value})
SummaryWriter("other").add_scalar("hparam/loss", 7)
"""
    )
    assert found == {
        "loss": [0, 0],
        "lr 0.1/loss": [1, 1],
        "lr 0.2/loss": [2, 2],
        "hparam/loss": [0, 1],
        "other/hparam/loss": [7],
    }


@pytest.mark.parametrize("mode", MODES)
def test_runs_of_wandb_one_after_the_other_are_kept_apart(kept, mode: str):
    found, said = kept(
        """
import wandb
for value, name in enumerate(["a", "b", None, None]):
    run = wandb.init(name=name)
    for epoch in range(2): run.log({"loss": value, "epoch": epoch})
    run.finish()
""",
        WANDB_MODE=mode,
    )
    assert (found["step"], found["epoch"]) == ([0, 1] * 4, [0, 1] * 4), "what all are drawn over"
    del found["step"], found["epoch"]
    assert found == {"loss": [0, 0], "b/loss": [1, 1], "wandb/loss": [2, 2], "wandb 2/loss": [3, 3]}
    assert said.count(FROM_HERE) == 1


@pytest.mark.mlflow
def test_nested_runs_of_mlflow_are_kept_apart_by_their_names(kept):
    pytest.importorskip("mlflow")
    found, said = kept(
        """
import mlflow
from mlflow import MlflowClient
with mlflow.start_run(run_name="search"):
    mlflow.log_metric("loss", 0, step=0)
    for lr in (0.1, 0.2):
        with mlflow.start_run(run_name=f"lr={lr}", nested=True) as child:
            for step in range(2): mlflow.log_metric("loss", lr + step, step=step)
    mlflow.log_metrics({"loss": 9, "best": 1}, step=1)
client = MlflowClient()
for _ in range(2):
    twin = client.create_run(child.info.experiment_id, run_name="twin").info.run_id
    for step in range(2): client.log_metric(twin, "loss", 20, step=step)
mlflow.log_metric("loss", 30, step=2, run_id=twin)
"""
    )
    del found["step"]
    assert found == {
        "loss": [0],
        "lr=0.1/loss": [0.1, 1.1],
        "lr=0.2/loss": [0.2, 1.2],
        "search/loss": [9],
        "best": [1],
        "twin/loss": [20, 20],
        "twin 2/loss": [20, 20, 30],
    }
    assert said.count(FROM_HERE) == 1


WANDB_LOGS = "import wandb; wandb.init(); wandb.log({'a': 1})"


def test_who_refuses_it_keeps_nothing(kept):
    assert kept(f"import sys; {WANDB_LOGS}; print('penstock' in sys.modules)", "--no-watch-metrics")[0] == {}


def test_metrics_are_kept_without_watching_loaders(kept, tmp_path: Path):
    package(tmp_path / "packages", "torch", TORCH)
    hooked = "import torch.utils.data.dataloader as d; print(hasattr(d.DataLoader._get_iterator, '__wrapped__'))"
    assert kept(f"{WANDB_LOGS}; {hooked}", "--no-watch-dataloader")[0]["a"] == [1]


def test_of_a_library_of_an_unknown_version_one_line_says_what_is_not_kept_and_nothing_breaks(kept, tmp_path):
    writer = TENSORBOARD_X["writer.py"].replace("add_scalars", "add_all")
    package(tmp_path / "packages", "tensorboardX", {"writer.py": writer})
    wandb = {
        "sdk/wandb_run.py": "class Run: pass",
        "sdk/wandb_init.py": "from wandb.sdk.wandb_run import Run; init = 0",
    }
    package(tmp_path / "packages", "wandb", wandb)
    found, said = kept("import tensorboardX as t, wandb; t.SummaryWriter('x').add_scalar('loss', 1, 0)")
    assert found == {"step": [0], "loss": [1]}
    for module, of, gone in (
        ("tensorboardX.writer", "SummaryWriter", "add_scalars"),
        ("wandb.sdk.wandb_run", "Run", "log"),
        ("wandb.sdk.wandb_init", "Run", "log"),
    ):
        line = f"penstock: not all that is logged with {module} is kept: AttributeError: type object {of!r} has no"
        assert said.count(f"{line} attribute {gone!r}\n") == said.count(f"logged with {module} ") == 1


def test_a_library_of_other_modules_is_left_alone_in_one_line(kept, tmp_path: Path):
    package(
        tmp_path / "packages", "wandb", {"__init__.py": "from wandb.sdk.a import log", "sdk/a.py": "log = print"}
    )
    found, said = kept("import wandb; print(wandb.log({'a': 1})); import wandb.sdk")
    assert not found
    lacks = "this version has no wandb.sdk.wandb_run, wandb.sdk.wandb_init, wandb.sdk.wandb_config\n"
    assert said.count(f"penstock: not all that is logged with wandb is kept: ImportError: {lacks}") == 1


def test_a_folder_of_wandb_without_the_library_is_no_library(kept, tmp_path: Path):
    """As it makes one where a script runs."""
    (tmp_path / "packages" / "wandb").rename(tmp_path / "packages" / "moved")
    (tmp_path / "wandb" / "offline-run-1").mkdir(parents=True)
    found, said = kept("import wandb; print(hasattr(wandb, 'log'))")
    assert not found and "logged with" not in said


def test_processes_and_threads_lose_nothing(kept):
    found, said = kept(
        """
import os, sys, threading, wandb
run = wandb.init()
def work(name):
    for i in range(100): run.log({name: i})
threads = [threading.Thread(target=work, args=(f"thread {n}",)) for n in range(3)]
for t in threads: t.start()
for t in threads: t.join()
if not os.fork():
    work("child"); sys.exit()
os.wait()
""",
        RANK="1",
    )
    assert all(found[name] == list(range(100)) for name in ("thread 0", "thread 1", "thread 2", "child"))
    assert "keeps what" not in said, "only the first rank says it"
