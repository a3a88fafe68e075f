"""How Penstock gets into a Python, and what it leaves as it was. The torch here is a few lines."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.scripts import run_python

from penstock.inject import injected, without_injection
from penstock.runs.inside import SITE

DATALOADER = """
class DataLoader:
    def _get_iterator(self):
        "Begins."
        return iter([1, 2])
"""
TORCH = {f"{package}__init__.py": "" for package in ("", "utils/", "utils/data/")}
TORCH |= {"utils/data/dataloader.py": DATALOADER}
SAYS = "import torch.utils.data.dataloader as d; print(hasattr(d.DataLoader._get_iterator, '__wrapped__'))"
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PENSTOCK"))}
SOURCE = str(Path(__file__).parents[2] / "src")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "torch/utils/data").mkdir(parents=True)
    for file, text in TORCH.items():
        (tmp_path / "torch" / file).write_text(text)
    return tmp_path


@pytest.fixture
def python(folder: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*words: str, inject: bool = True, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {**CLEAN, "PYTHONPATH": f"{folder}:{SOURCE}"}
        environment = {**(injected(environment, SITE) if inject else environment), **more}
        process = run_python(*words, env=environment, cwd=folder)
        process.stdout = re.sub("0x[0-9a-f]+", "0x", process.stdout)
        return process

    return run


def said(process: subprocess.CompletedProcess[str]) -> str:
    assert (process.returncode, process.stderr) == (0, ""), process.stderr
    return process.stdout


def test_loaders_are_hooked_once_they_are_imported_and_nothing_is_loaded_before(python):
    text = "import sys; print([name for name in sys.modules if name.startswith(('penstock', 'torch'))]); "
    assert said(python("-c", text + SAYS)) == "[]\nTrue\n"


def test_a_program_finds_its_modules_its_path_and_its_loaders_as_without(python):
    text = (
        "import sys, inspect, importlib; import torch.utils.data.dataloader as module\n"
        "print(sys.path, 'sitecustomize' in sys.modules, module.__spec__, module.__loader__.__dict__)\n"
        "method = module.DataLoader._get_iterator\n"
        "print(inspect.getsource(module), method.__name__, method.__doc__, inspect.signature(method))\n"
        "importlib.reload(module)"
    )
    assert said(python("-c", text)) == said(python("-c", text, inject=False))


DELEGATES = """
import importlib.machinery, importlib.util, sys
class Asks:
    busy = False
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        {}
class Old:
    "Is passed over since Python 3.12."
    def find_module(self, name, path=None): return None
sys.meta_path.insert({}, Asks)
sys.meta_path.insert(1, Old())
"""
ASKS = {
    "the others": "return next((s for f in sys.meta_path if f is not cls and hasattr(f, 'find_spec') "
    "and (s := f.find_spec(name, path, target))), None)",
    "all, once": (
        "if cls.busy: return None\n        cls.busy = True\n"
        "        try: return importlib.util.find_spec(name)\n        finally: cls.busy = False"
    ),
}


@pytest.mark.parametrize("how", ASKS)
@pytest.mark.parametrize("place", [0, 1, 99])
def test_a_finder_that_asks_the_others_finds_the_module_and_it_is_hooked(python, how: str, place: int):
    assert said(python("-c", DELEGATES.format(ASKS[how], place) + SAYS)) == "True\n"


OWN = {
    "works": "import sys; sys.own = __file__; print('own')",
    "fails": "raise ValueError('no\\nway')",
    "misses": "import nowhere",
    "leaves": "import sys; print('leaves'); sys.exit(3)",
    "torch": "import torch.utils.data.dataloader",
    "empty": "",
}


@pytest.mark.parametrize("how", OWN)
def test_the_program_s_own_sitecustomize_runs_as_without(python, folder: Path, how: str):
    (folder / "sitecustomize.py").write_text(OWN[how])
    text = "import sys; own = sys.modules.get('sitecustomize'); print(own and own.__file__, own and own.__spec__)"
    with_us, without = (python("-c", text, inject=inject) for inject in (True, False))
    assert (with_us.returncode, with_us.stdout) == (without.returncode, without.stdout)
    if how == "leaves":  # which Python calls a fatal error of its site module, with a traceback
        assert with_us.stderr.splitlines()[-3:] == without.stderr.splitlines()[-3:]
    else:
        assert with_us.stderr == without.stderr
    if how in ("works", "fails", "torch"):
        assert python("-c", SAYS).stdout.endswith("True\n")


@pytest.mark.parametrize("flag", ["-S", "-I", "-E"])
def test_a_python_that_takes_no_site_or_no_environment_is_left_alone(python, folder: Path, flag: str):
    assert said(python(flag, "-c", f"import sys; sys.path.insert(0, {str(folder)!r}); {SAYS}")) == "False\n"


@pytest.mark.parametrize("other", ["30b06f0:/elsewhere", "2070000:/usr", "", "x"])
def test_another_python_is_left_alone(python, folder: Path, other: str):
    (folder / "sitecustomize.py").write_text("print('own')")
    assert said(python("-c", SAYS, PENSTOCK_INJECT=other)) == "own\nFalse\n"


def test_a_python_started_by_a_hooked_one_is_hooked_unless_its_path_is_cleared(python):
    child = "import subprocess, sys, os; subprocess.run([sys.executable, *sys.argv], env=os.environ | {%s})"
    assert said(python("-c", child % "", SAYS)) == "True\n"
    cleared = python("-c", child % "'PYTHONPATH': os.getcwd()", SAYS)
    assert said(cleared) == "False\n"


NEITHER = "penstock: loaders of {} are neither watched nor shared: {}\n"


def test_what_goes_wrong_with_us_is_one_line_and_the_program_goes_on(python, folder: Path):
    (folder / "penstock.py").write_text("raise RuntimeError('not today')")
    broken = python("-c", SAYS)
    assert broken.stderr == NEITHER.format("torch.utils.data.dataloader", "RuntimeError: not today")
    assert (broken.returncode, broken.stdout) == (0, "False\n")
    (folder / "penstock.py").unlink()
    (folder / "torch/utils/data/dataloader.py").write_text("class DataLoader: pass")
    strange = python("-c", "import torch.utils.data.dataloader as module; print(module.DataLoader)")
    said = "TypeError: DataLoader._get_iterator is not the method that is known"
    assert strange.stderr == NEITHER.format("torch.utils.data.dataloader", said)
    assert strange.returncode == 0


def test_loaders_of_fastai_are_declined_in_one_line(python, folder: Path):
    (folder / "fastai/data").mkdir(parents=True)
    (folder / "fastai/data/load.py").write_text("class DataLoader: pass")
    run = python("-c", "import fastai.data.load as module; print(module.DataLoader())")
    assert "fastai.data.load.DataLoader" in run.stdout
    said = "TypeError: DataLoader._get_iterator is not the method that is known"
    assert run.stderr == NEITHER.format("fastai.data.load", said)


def test_the_environment_is_as_it_was_once_the_injection_is_taken_out():
    for before in ({}, {"PYTHONPATH": "/a:/b", "HOME": "/h"}, {"PYTHONPATH": ""}, {"PYTHONPATH": "/a::/b"}):
        assert without_injection(injected(before, SITE)) == {
            name: value for name, value in before.items() if name != "PYTHONPATH" or value
        }
        assert injected(injected(before, SITE), SITE) == injected(before, SITE)
