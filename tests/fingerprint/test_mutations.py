"""Mutations of what samples hang on: each is seen in a fingerprint, or by the witness."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.fingerprint.mutations import ALIKE, MUTATIONS
from tests.scripts import run_python

PARTS = 12


def tried(names: list[str], folder: Path) -> dict[str, dict[str, str]]:
    """Return what came of scripts, each in processes of its own."""
    done = run_python("-m", "tests.fingerprint.tried", folder, *names, cwd=Path(__file__).parents[2], timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_there_are_as_many_mutations_as_are_asked_for() -> None:
    assert len([one for one in MUTATIONS.values() if one.by == "fingerprint"]) >= 74
    assert len(ALIKE) >= 20


def is_seen(name: str, found: dict[str, str]) -> bool:
    if any(told.startswith(("WRONG", "REFUSED")) for told in found.values()):
        return False
    if MUTATIONS[name].by == "fingerprint":
        return found["both"] == "apart"
    refused = ("refused by the witness", "falls back")
    return any(found[which].startswith(refused) for which in ("second", "both"))


@pytest.mark.whole
@pytest.mark.parametrize("part", range(PARTS))
def test_a_mutation_is_never_shared_by_whom_it_changes_the_samples_of(part: int, tmp_path: Path) -> None:
    all_found = tried(list(MUTATIONS)[part::PARTS], tmp_path)
    assert not [name for name, found in all_found.items() if found["values"] != "differ"], "no mutations"
    assert not {name: found for name, found in all_found.items() if not is_seen(name, found)}


@pytest.mark.whole
def test_what_changes_no_sample_is_shared(tmp_path: Path) -> None:
    all_found = tried(list(ALIKE), tmp_path)
    shared = {"first": "shared", "second": "shared", "both": "shared"}
    assert not {name: found for name, found in all_found.items() if found | shared != found}
