"""The pages are true: their code runs, their links lead somewhere, and the map is the disk's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name

import pytest

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
    ran = subprocess.run(
        [sys.executable, "-W", "error", script],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=folder,
        check=False,
    )
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
    plain = {
        "PenstockError",
        "PinningRefused",
        "BadSetting",
        "InsecureDirectory",
        "FeedEnded",
        "Refused",
        "VersionMismatch",
        "LoaderClosed",
    }
    assert not [error for error in errors if error not in plain and f"`{error}`" not in page]
