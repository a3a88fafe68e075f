"""What selecting has cost and saved comes from what runs have read and taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.web.seeded import group

from penstock.runs.machine import describe
from penstock.runs.store import Store
from penstock.select.identity import DataIdentity, ScoresHeader
from penstock.select.meter import Cost
from penstock.select.scores import note_used, used_by

pytestmark = pytest.mark.whole


def reached(cpu_s: float, accuracy: float) -> dict[str, list[float]]:
    return {"proc.cpu_s": [0.0, cpu_s], "accuracy": [10.0, accuracy]}


def header_of(**cost: Any) -> ScoresHeader:
    return ScoresHeader(
        data=DataIdentity(100),
        ids_digest="",
        method="sketch",
        method_version="1",
        settings={"epochs": "4"},
        cost=Cost(**{"seconds": 90.0, "cpu_s": 60.0} | cost),
        machine=describe(),
    )


def read_scores(store: Store, id: str, monkeypatch: pytest.MonkeyPatch, name: str = "s", **cost: Any) -> None:
    """Note that a run has read scores."""
    header = header_of(**cost)
    with monkeypatch.context() as inside:
        inside.setenv("PENSTOCK_RUN_ID", id)
        inside.setenv("PENSTOCK_STORE", str(store.folder))
        store.folder_of(id).joinpath("files").mkdir(exist_ok=True)
        note_used(name, header)
    assert used_by(store.folder_of(id) / "files")[name.replace("/", "-")] == header


def asked(*records: Any) -> str:
    return "/api/selections?" + "&".join(f"id={each.group_id}" for each in records)


def test_a_selection_is_compared_with_runs_on_all_samples(page, store, monkeypatch):
    full = group(store, "full", runs=["a", "b"], seconds=120, series=reached(100, 80))
    half = group(store, "half", runs=["a", "b", "c"], seconds=60, series=reached(55, 82))
    for record in half:
        read_scores(store, record.id, monkeypatch, "tweets/sketch")
    [told] = page.json(asked(half[0], full[0]))
    assert (told["group"], told["against"], told["methods"]) == ("half", "full", ["sketch (epochs 4)"])
    measures = {each.pop("unit"): each for each in told["measures"]}
    assert measures["minutes"] == {"scoring": 1.5, "full": 2.0, "selected": 1.0, "after": 2}
    assert measures["CPU-seconds"] == {"scoring": 60, "full": 100, "selected": 55, "after": 2}
    assert measures["Wh of CPU time"]["scoring"] == pytest.approx(60 * 15 / 3600) and told["watts"] == 15
    assert told["reached"] == [{"name": "accuracy", "selected": [82, 82, 82], "full": [80, 80]}]
    [alone] = page.json(asked(half[0]))
    assert alone["against"] == "" and alone["measures"] == [] and alone["scoring_s"] == 90
    assert page.json(asked(full[0])) == page.json(asked()) == []


def test_scores_that_differ_count_with_their_median_and_those_that_never_pay_say_so(page, store, monkeypatch):
    full = group(store, "full", seconds=60, series=reached(50, 80))
    slow = group(store, "slow", runs=["a", "b", "c"], seconds=60, series=reached(60, 80))
    for record, seconds in zip(slow, (10.0, 50.0, 20.0), strict=True):
        read_scores(store, record.id, monkeypatch, seconds=seconds)
    [told] = page.json(asked(full[0], slow[0]))
    assert told["scoring_s"] == 20 and [each["after"] for each in told["measures"]] == [None, None, None]


def test_all_samples_are_those_of_the_comparison_and_all_scores_of_a_run_count(page, store, monkeypatch):
    random = group(store, "random", seconds=30, series=reached(20, 70), parameters={"select.method": "random"})
    full = group(store, "full", seconds=60, series=reached(50, 80), parameters={"select.method": "full"})
    half = group(store, "half", runs=["a", "b"], seconds=40, series=reached(25, 80))
    for record in half:
        read_scores(store, record.id, monkeypatch, "one", seconds=1000.0)
        read_scores(store, record.id, monkeypatch, "two", seconds=10.0)
    [told] = page.json(asked(random[0], full[0], half[0]))
    assert told["against"] == "full" and told["scoring_s"] == 1010


def test_energy_that_was_measured_is_not_set_beside_what_was_estimated(page, store, monkeypatch):
    counted = {"energy.estimated_j": [0.0, 36_000.0]}
    full = group(store, "full", seconds=60, series=reached(50, 80) | counted)
    half = group(store, "half", seconds=40, series=reached(25, 80) | counted)
    read_scores(store, half[0].id, monkeypatch)
    [told] = page.json(asked(full[0], half[0]))
    assert [each["unit"] for each in told["measures"]] == ["minutes", "CPU-seconds"] and told["watts"] is None
    read_scores(store, half[0].id, monkeypatch, wh=3.0)
    [told] = page.json(asked(full[0], half[0]))
    assert told["measures"][-1] == {"unit": "Wh", "scoring": 3, "full": 10, "selected": 10, "after": None}


def test_runs_that_failed_do_not_count_and_what_is_no_header_is_left_out(page, store, monkeypatch):
    [full] = group(store, "full", series=reached(50, 80))
    [failed] = group(store, "half", status="failed", series=reached(1, 10))
    read_scores(store, failed.id, monkeypatch)
    assert page.json(asked(full, failed)) == []
    [own] = group(store, "own", series=reached(50, 80))
    files = store.folder_of(own.id) / "files"
    files.mkdir(exist_ok=True)
    (files / "scores-mine.json").write_text("[1, 2]")
    assert page.json(asked(full, own)) == []


def test_outside_of_a_run_nothing_is_noted(tmp_path: Path, monkeypatch):
    monkeypatch.delenv("PENSTOCK_RUN_ID", raising=False)
    monkeypatch.chdir(tmp_path)
    note_used("s", header_of())
    assert not list(tmp_path.iterdir())
