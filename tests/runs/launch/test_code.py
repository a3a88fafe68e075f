"""What is kept of a run's code: its script, and what that imports from its folder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.runs.launch import code
from penstock.runs.launch.code import code_of
from penstock.runs.launch.environment import describe_all
from penstock.runs.record import GroupPlan, RunPlan
from penstock.runs.store import Store

FILES = {
    "train.py": "import json, models.net\nfrom data import load\n\ndef late():\n    from models import losses\n",
    "models/__init__.py": "",
    "models/net.py": "from . import parts\nfrom .parts import block\nfrom ..other import no\n",
    "models/parts.py": "import train  # a circle\napi_token = 'abcdefgh'\n",
    "models/losses.py": "import torch\n",
    "data.py": "import models.absent\n",
    "broken.py": "def (:\n",
    "unused.py": "x = 1\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "other.py").write_text("outside = 1\n")
    return tmp_path


@pytest.mark.parametrize("script", ["project/train.py", "./project/../project/train.py"])
def test_a_script_and_what_it_imports_from_its_folder_are_kept(folder: Path, script: str) -> None:
    found = code_of(script, str(folder))
    assert set(found) == set(FILES) - {"broken.py", "unused.py"}
    assert found["data.py"] == {
        "digest": hashlib.sha256(FILES["data.py"].encode()).hexdigest(),
        "text": FILES["data.py"],
    }
    assert "abcdefgh" not in found["models/parts.py"]["text"]
    assert code_of(str(folder / "project" / "train.py"), "/") == found


def test_what_does_not_parse_is_kept_and_what_is_not_there_is_not(folder: Path) -> None:
    assert [*code_of("broken.py", str(folder / "project"))] == ["broken.py"]
    assert code_of("absent.py", str(folder)) == {}
    (folder / "binary.py").write_bytes(b"\xff\xfe")
    assert code_of("binary.py", str(folder)) == {}


def test_of_files_that_are_too_large_digests_are_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "MOST_BYTES", len(FILES["train.py"]))
    found = code_of("train.py", str(folder / "project"))
    assert found["train.py"]["text"] and not found["models/net.py"]["text"]
    assert found["models/net.py"]["digest"] == hashlib.sha256(FILES["models/net.py"].encode()).hexdigest()


def test_a_script_that_is_edited_between_two_runs_is_kept_as_each_had_it(folder: Path, store: Store) -> None:
    script = folder / "project" / "unused.py"
    plans = [RunPlan(command=("python", str(script)), name=name, directory=str(folder)) for name in "ab"]
    records = store.add(GroupPlan(name="group", mode="plain", runs=tuple(plans)))
    for record, text in zip(records, ("x = 1\n", "x = 2\n"), strict=True):
        script.write_text(text)
        run: Any = SimpleNamespace(record=record, environment={})
        describe_all(store, [run])
        kept = json.loads((store.folder_of(record.id) / "environment.json").read_text())
        assert [each["text"] for each in kept["code"].values()] == [text]
