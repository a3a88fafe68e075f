"""The pages are true: their code and that of docstrings runs, links lead somewhere, figures are of the results."""

from __future__ import annotations

import doctest
import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
import penstock.select
from penstock.errors import PenstockError

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
OF_FRAMEWORKS = {
    "select-texts.md",
    "hugging-face.md",
    "lightning.md",
    "accelerate.md",
    "timm.md",
    "tutorial-frameworks.md",
}
"""Pages whose code needs other packages: tests/frameworks runs it."""
LINK = re.compile(r"\[[^]]*\]\(([^)#:]+)(?:#[^)]*)?\)")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.whole
@pytest.mark.parametrize(
    "page", [p for p in PAGES if CODE.search(p.read_text()) and p.name not in OF_FRAMEWORKS], ids=name
)
def test_the_code_of_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path):
    run_code(page, tmp_path)


@pytest.mark.whole
@pytest.mark.parametrize("page", [p for p in PAGES if "penstock.pack(" in p.read_text()], ids=name)
def test_a_page_that_packs_can_be_run_twice(page: Path, tmp_path: Path):
    run_code(page, tmp_path)
    run_code(page, tmp_path)


def run_code(page: Path, folder: Path) -> None:
    script = folder / "page.py"
    script.write_text("\n\n".join(CODE.findall(page.read_text())).replace("import penstock\n", QUICK, 1))
    command = [sys.executable, "-W", "error", script]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr


# A feeder that share() starts waits half a minute for other trainers; the test need not.
QUICK = "import penstock\nfrom penstock.feed.launch import shared as _share\n_share.DEFAULT_LINGER_S = 0.5\n"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_links_of_a_page_lead_somewhere(page: Path):
    missing = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert not missing


def test_the_map_is_that_of_the_disk():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    first_cells = re.findall(r"^\| (`[^|]+`) \|", page[page.index("## Map") :], re.MULTILINE)
    mapped = {found for cell in first_cells for path in re.findall(r"`([^`]+)`", cell) for found in places(path)}
    tracked = subprocess.run(
        ["git", "ls-files", "src/penstock"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    rooms = {ROOT / "/".join(path.split("/")[:3]) for path in tracked if path.count("/") > 2}
    assert rooms <= mapped


PLACE = re.compile(r"`((?:src|tests|docs|benchmarks|examples|[a-z_]+(?=/))/?[\w/]*(?:/|\.py|\.cuh))`")
MODULE = re.compile(r"`(penstock(?!\.json)(?:\.\w+)+)`")


def places(path: str, page: Path = ROOT / "README.md") -> list[Path]:
    """Where a path lies that a page names: from the top of the repository, of the package, or beside the page."""
    return [
        place for place in (ROOT / path, ROOT / "src" / "penstock" / path, page.parent / path) if place.exists()
    ]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_files_and_modules_that_a_page_names_are_there(page: Path):
    text = page.read_text()
    assert not [path for path in PLACE.findall(text) if not places(path, page)]
    assert not [found for found in MODULE.findall(text) if not is_there(found)]


def is_there(dotted: str) -> bool:
    """Whether a module is there, or what stands in one."""
    try:
        resolve_name(dotted)
    except (ImportError, AttributeError):
        return False
    return True


def test_every_decision_is_listed():
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text()
    assert not [path.name for path in folder.glob("0*.md") if path.name not in index]


def test_every_error_has_a_line_in_the_page_on_trouble_or_speaks_for_itself():
    page = (ROOT / "docs" / "how-to" / "trouble.md").read_text()
    errors = re.findall(r"^class (\w+)", (ROOT / "src" / "penstock" / "errors.py").read_text(), re.MULTILINE)
    plain = (
        "PenstockError PinningRefused BadSetting InsecureDirectory FeedEnded Refused VersionMismatch LoaderClosed"
    )
    assert not [error for error in errors if error not in plain.split() and f"`{error}`" not in page]


def printed(*words: str) -> str:
    """What the script says that prints the tables."""
    command = [sys.executable, ROOT / "benchmarks" / "readme.py", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_the_measured_rows_of_the_readme_are_those_of_the_results():
    begin, end = "<!-- measured: begin -->", "<!-- measured: end -->"
    assert f"{begin}\n{printed()}\n{end}" in (ROOT / "README.md").read_text()


def test_the_page_of_benchmarks_is_that_of_the_results():
    assert printed("page") == (ROOT / "docs" / "benchmarks.md").read_text().strip()


def test_every_result_names_its_machine_and_date():
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        result = json.loads(path.read_text())
        assert result.get("date") or result["machine"]["date"], path
        assert result["machine"]["cpu"], path
        assert str(ROOT) not in path.read_text()


PUBLIC: dict[str, Any] = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (penstock, penstock.select)
    for name in dir(module)
    if not name.startswith("__") and name not in ("select", "errors")
}


def examples_of(name: str) -> doctest.DocTest:
    """Return the examples of a name's docstring, which may use what a reader has imported."""
    given = {"penstock": penstock, "np": np, "threading": threading, "Path": Path, "__name__": "__main__"}
    return doctest.DocTestParser().get_doctest(PUBLIC[name].__doc__, given, name, None, None)


def is_error(public: Any) -> bool:
    return isinstance(public, type) and issubclass(public, PenstockError)


@pytest.mark.whole
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", [name for name, public in PUBLIC.items() if not is_error(public)])
def test_the_example_of_a_public_name_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    simplejpeg = pytest.importorskip("simplejpeg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for kind in ("cats", "dogs"):
        folder = tmp_path / "photos" / kind
        folder.mkdir(parents=True)
        (folder / "1.jpg").write_bytes(simplejpeg.encode_jpeg(np.zeros((90, 120, 3), np.uint8)))
    (tmp_path / "table").mkdir()
    table = pa.table({"x": np.arange(8.0), "label": np.arange(8) % 2})
    pq.write_table(table, tmp_path / "table" / "0.parquet", row_group_size=4)
    found = examples_of(name)
    assert found.examples
    threads = set(threading.enumerate())
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(found)
    said = capsys.readouterr().out
    assert not said, said
    for thread in set(threading.enumerate()) - threads:
        thread.join(30)
