"""The site builds without a warning, and its reference has every public name. ``make test-docs`` runs this."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import penstock

ROOT = Path(__file__).parents[2]
NAMES = [name for name in dir(penstock) if name not in ("__version__", "select", "errors", "PenstockError")]
NAMES += [f"select.{name}" for name in dir(penstock.select)]
NAMES += [f"errors.{name}" for name, kind in vars(penstock.errors).items() if isinstance(kind, type)]

pytest.importorskip("mkdocs", reason="make test-docs installs it")


def public(name: str) -> Any:
    return attrgetter(name)(penstock)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.whole
def test_the_reference_has_every_public_name_with_what_its_docstring_says(site: Path):
    page = (site / "reference" / "index.html").read_text()
    for name in NAMES:
        entry = re.search(rf'id="penstock\.{re.escape(name)}".*?<p>(.*?)</p>', page, re.DOTALL)
        assert entry, name
        said = re.sub(r"<[^>]+>", "", entry[1])
        documented = inspect.getdoc(public(name))
        assert documented, name
        assert said.split()[:3] == documented.replace("``", "").split()[:3], name


@pytest.mark.whole
def test_what_pages_show_from_outside_their_folder_is_in_the_site(site: Path):
    assert (site / "images" / "feed.svg").exists()
    assert (site / "benchmarks" / "results" / "share.png").exists()
    assert "Measured" in (site / "index.html").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_the_docstring_of_a_public_function_names_its_arguments_and_errors(name: str):
    thing = public(name)
    if isinstance(thing, type) and issubclass(thing, Exception):
        return
    documented = inspect.getdoc(thing) or ""
    made_elsewhere = name in ("Loader", "select.Scorer")
    for argument in inspect.signature(thing).parameters:
        assert made_elsewhere or re.search(rf"^    {argument}: ", documented, re.MULTILINE), argument
    raises_nothing = name in ("Loader", "feeds", "log", "params", "current_run", "select.overlap")
    assert raises_nothing or "Raises:" in documented or "\nAttributes:" in documented
