"""What ``import penstock`` costs and promises; errors travel from a feeder's process, and from workers."""

from __future__ import annotations

import pickle
import pkgutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import penstock
from penstock import errors
from penstock.errors import PenstockError, ReadFailed

ROOT = Path(__file__).parents[1]


def test_importing_loads_nothing_heavy():
    script = "import sys; before = set(sys.modules); import penstock; print(*set(sys.modules) - before)"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    assert {name for name in loaded if name.split(".")[0] not in sys.stdlib_module_names} == {
        "penstock",
        "penstock._version",
        "penstock.linux",
        "penstock.linux.fork",
        "penstock.linux.when_gone",
    }


def test_a_name_that_is_not_public_is_not_there():
    with pytest.raises(AttributeError):
        penstock.no_such_name  # noqa: B018


EVERY_NAME = """
import importlib, pathlib, pkgutil, sys, threading
import penstock

for module in pkgutil.walk_packages(penstock.__path__, "penstock."):
    if not module.name.endswith("__main__"):  # which runs the command
        importlib.import_module(module.name)

import numpy as np

ids = np.arange(100)
penstock.pack({"id": ids}, sys.argv[1])
feeder = penstock.Feeder(penstock.PackedSource(sys.argv[1], reader="posix"), "packed")
threading.Thread(target=feeder.run).start()
with penstock.attach("packed", 10) as loader:
    assert isinstance(loader, penstock.Loader)
    assert sorted(np.concatenate([batch["id"] for batch in loader])) == list(ids)
    assert [feed.name for feed in penstock.feeds()] == ["packed"]
    penstock.stop("packed")
with penstock.share(lambda: penstock.ArraySource({"id": ids}), "arrays", 10, linger=0.0) as loader:
    assert sorted(np.concatenate([batch["id"] for batch in loader])) == list(ids)
assert penstock.RaggedRows(ids, [0, 60, 100]).lengths.tolist() == [60, 40]
assert sorted(penstock.SelectionSampler(penstock.Selection(ids < 5))) == [0, 1, 2, 3, 4]
ids.astype(np.uint16).tofile(sys.argv[1] + ".bin")
assert sum(len(rows) for rows in penstock.TokenSource(sys.argv[1] + ".bin", length=9)) == 11
import simplejpeg
(pathlib.Path(sys.argv[1]) / "images").mkdir()
for i in range(3):
    whole = simplejpeg.encode_jpeg(np.full((9, 9, 3), i, np.uint8))
    (pathlib.Path(sys.argv[1]) / "images" / f"{i}.jpg").write_bytes(whole)
import pyarrow
import pyarrow.parquet
pyarrow.parquet.write_table(pyarrow.table({"id": ids}), sys.argv[1] + ".parquet")
assert sum(len(rows["id"]) for rows in penstock.RecordSource(sys.argv[1] + ".parquet")) == 100
(pathlib.Path(sys.argv[1]) / "log").mkdir()
(pathlib.Path(sys.argv[1]) / "log" / "a.jsonl").write_text('{"id": 1}\\n{"id": 2}\\n')
records = f"watch:{sys.argv[1]}/log"
with penstock.share(lambda: penstock.StreamSource(records, cycle=2), "log", 2, linger=0.0) as loader:
    assert [sorted(batch["id"]) for batch in loader] == [[1, 2]]
cache = penstock.Cache(sys.argv[1] + "/cache", "1GB")
images = penstock.ImageSource(sys.argv[1] + "/images", size=8, workers=1, cache=cache)
assert [len(batch) for batch in images] == [3]
assert penstock.select.RandomSubsets(ids < 10, 0.5).selection(0).ids.max() < 10
for name in dir(penstock.select):
    assert getattr(penstock.select, name).__module__.startswith("penstock."), name
penstock.log(loss=1.0)
penstock.params(lr=1.0)
assert callable(penstock.load_runs) and callable(penstock.show)
penstock.autoshare()
assert penstock.current_run() is None
used = "Selection SelectionSampler autoshare load_runs show log current_run pack Feeder PackedSource".split()
used += "params attach Loader feeds stop PenstockError select errors share ArraySource".split()
used += "Cache ImageSource TokenSource RecordSource StreamSource RaggedRows __version__".split()
assert isinstance(penstock.__version__, str)
assert set(used) == set(dir(penstock))
"""


@pytest.mark.whole
def test_every_public_name_does_its_work_after_every_submodule_has_been_imported(tmp_path: Path):
    subprocess.run([sys.executable, "-W", "error", "-c", EVERY_NAME, tmp_path / "packed"], check=True, timeout=100)


def test_the_version_is_the_package_s():
    assert penstock.__version__ == version("penstock")


def test_no_benchmark_of_our_own_claims_is_installed():
    (packages,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
        "targets"
    ].values()
    assert packages == {"packages": ["src/penstock"]}
    modules = pkgutil.iter_modules([str(ROOT / "src/penstock/bench")])
    measured_by_users = {name.partition("_")[0] for _, name, _ in modules}
    assert measured_by_users == {"demo", "experiment", "io", "load", "loop", "share"}


KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PenstockError)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_can_be_made_of_its_message_and_pickled(kind: type[PenstockError]) -> None:
    assert str(pickle.loads(pickle.dumps(kind("the disk is on fire")))) == "the disk is on fire"


def test_what_an_error_tells_besides_is_pickled_too() -> None:
    failed = pickle.loads(pickle.dumps(ReadFailed("bad", "/data/x", 4096, 5)))
    assert (failed.path, failed.offset, failed.errno) == ("/data/x", 4096, 5)
