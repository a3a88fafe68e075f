"""The examples in the docstrings of public names run, and every public name has one."""

from __future__ import annotations

import doctest
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
import penstock.select
from penstock.errors import PenstockError

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
    found = examples_of(name)
    assert found.examples
    threads = set(threading.enumerate())
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(found)
    said = capsys.readouterr().out
    assert not said, said
    for thread in set(threading.enumerate()) - threads:
        thread.join(30)
