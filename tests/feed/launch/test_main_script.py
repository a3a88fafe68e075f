"""A loader that lives in the main script is shared, whatever started the trainer and the loader's workers."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.forked import Forked

pytestmark = pytest.mark.whole

HANG_S = 90.0
SCRIPT = Path(__file__).parent / "main_script.py"

STARTED = ["plain", "process fork", "process spawn", "process forkserver"]
ORIGINS = [*STARTED, "pool spawn", "executor forkserver", "torch", "both spawn"]
KINDS = ["function", "lambda", "partial", "method", "object"]
WORKERS = ["none", "fork", "spawn", "forkserver"]
EVERY = list(itertools.product(ORIGINS, KINDS, WORKERS))
QUICK = ("plain", "lambda", "spawn")
SOME = [  # every kind but a function, which is below, and every way to start workers: each imports torch anew
    ("plain", "method", "forkserver"),
    ("torch", "partial", "fork"),
    ("both spawn", "object", "none"),
    ("executor forkserver", "object", "none"),
]


def said_by(folder: Path, *command: str, typed: str | None = None) -> str:
    """What Python prints, to its end, which is without an error; if it hangs, its processes say where."""
    run = subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        stdin=subprocess.PIPE if typed is not None else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        process_group=0,
    )
    try:
        said, errors = run.communicate(typed, HANG_S)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGABRT)
        said, errors = run.communicate(timeout=10)
    assert run.returncode == 0, errors
    return said


@pytest.mark.parametrize(
    ("origin", "kind", "workers"),
    [
        QUICK,
        *(pytest.param(*cell, marks=pytest.mark.whole) for cell in SOME),
        *(pytest.param(*cell, marks=pytest.mark.soak) for cell in EVERY if cell not in (QUICK, *SOME)),
    ],
)
def test_a_loader_of_the_main_script_is_shared_and_the_script_runs_in_no_other_process(
    tmp_path, origin, kind, workers
):
    shutil.copy(SCRIPT, tmp_path / "script.py")
    said = said_by(tmp_path, "-W", "error", "script.py", origin, kind, workers)
    trainers = [json.loads(line) for line in said.splitlines()]
    assert len(trainers) == (2 if origin in ("torch", "both spawn") else 1)
    (feeder,) = {trainer["feeder"] for trainer in trainers}
    executed = {int(pid) for pid in (tmp_path / "executed").read_text().split()}
    # The script itself, the trainers that were spawned, and a fork server: not the feeder, nor its workers.
    assert feeder not in executed
    assert len(executed) <= 1 + len(trainers) + ("forkserver" in origin)


MODULE = """
import json
from typing import NamedTuple, Any
import torch
from torch.utils.data import DataLoader, Dataset
import penstock

class Pair(NamedTuple):
    id: Any
    square: Any

class Numbers(Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, i):
        return Pair(torch.tensor(i), torch.tensor(i * i))

def make():
    return DataLoader(Numbers(), batch_size=16, **WORKERS)

def train():
    with penstock.share(make, "numbers", 7, linger=0.5) as loader:
        batches = list(loader)
        assert {type(batch) for batch in batches} == {Pair}
        assert sorted(i for batch in batches for i in batch.id.tolist()) == list(range(100))
"""


SPAWNED = {"num_workers": 1, "multiprocessing_context": "spawn"}
RUNS = [("command", {})]  # as a script above
WHOLE_RUNS = [("module", SPAWNED), ("interactive", {})]
MORE_RUNS = [("command", SPAWNED), ("script", SPAWNED), ("script", {}), ("module", {}), ("interactive", SPAWNED)]


@pytest.mark.parametrize(
    ("how", "workers"),
    [
        *RUNS,
        *(pytest.param(*run, marks=pytest.mark.whole) for run in WHOLE_RUNS),
        *(pytest.param(*run, marks=pytest.mark.soak) for run in MORE_RUNS),
    ],
)
def test_however_python_runs_the_script_its_loader_is_shared(tmp_path, how, workers):
    module = MODULE.replace("WORKERS", repr(workers))
    text = module + "\nif __name__ == '__main__':\n    train()\n    print('well')\n"
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "sizes.py").write_text("SIZE = 16\n")
    relative = text.replace("def make():", "def make():\n    from .sizes import SIZE")
    (package / "script.py").write_text(relative if how == "module" else text)
    command = {
        "script": ["pkg/script.py"],
        "module": ["-m", "pkg.script"],
        "command": ["-c", text],
        "interactive": ["-i", "-q"],
    }[how]
    typed = f"exec({module!r})\ntrain()\nprint('well')\n" if how == "interactive" else None
    assert said_by(tmp_path, *command, typed=typed) == "well\n"


USES = {
    "a cached function": "@functools.cache\ndef rows(): return np.arange(50)\ndef make(): return {'id': rows()}",
    "a class in a class": "class A:\n class B:\n  def rows(self): return np.arange(50)\n"
    "def make(b=A.B()): return {'id': b.rows()}",
    "a decorated function": "def twice(f):\n @functools.wraps(f)\n def g(): return {'id': f()}\n return g\n"
    "@twice\ndef make(): return np.arange(50)",
    "an enumeration": "class Size(enum.Enum):\n ALL = 50\ndef make(): return {'id': np.arange(Size.ALL.value)}",
    "a generic class": "T = typing.TypeVar('T')\nclass Rows(typing.Generic[T]):\n rows: T = np.arange(50)\n"
    "def make(): return {'id': Rows[int]().rows}",
    "a class that inherits": "class A:\n def rows(self): return np.arange(50)\nclass B(A):\n"
    " def rows(self): return super().rows()\ndef make(): return {'id': B().rows()}",
    "a global that the script has changed": "n = 3\ndef make(): return {'id': np.arange(n)}\nn = 50",
    "a global that another function sets": "rows = None\ndef read():\n global rows\n rows = np.arange(50)\n"
    "def make():\n read()\n return {'id': rows}",
}


SPAWNED_TOO = ("a class in a class", "a global that another function sets")


@pytest.mark.parametrize(
    ("uses", "spawned"), [*((uses, False) for uses in USES), *((uses, True) for uses in SPAWNED_TOO)]
)
def test_what_a_script_defines_and_its_loader_uses_comes_along(servers, tmp_path, uses, spawned):
    train = "sorted(int(i) for batch in penstock.share(make, 'numbers', 7, linger=0.2) for i in batch['id'])"
    text = f"""
import enum, functools, multiprocessing, typing
import numpy as np, penstock
{USES[uses]}
def train():
    assert {train} == list(range(50))
if __name__ == "__main__":
    if {spawned}:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            pool.apply(train)
    else:
        train()
"""
    (tmp_path / "script.py").write_text(text)
    out = tmp_path / "out"
    script = Forked(servers["numpy"], str(tmp_path / "script.py"), [], out, directory=tmp_path, forks_feeders=True)
    assert script.wait() == 0, script.output
