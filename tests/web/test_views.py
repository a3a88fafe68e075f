"""What the page asks for is what the store has, and never more than it can draw."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from tests.web.seeded import add_points, drawn, group

from penstock.runs.store import Series
from penstock.web.charts import is_counter, rates, unit_of
from penstock.web.views import _figures


def test_rows_are_the_runs_of_the_store(page, store):
    assert page.rows() == []
    [good] = group(store, "good", parameters={"lr": "0.1"}, command=["python", "train.py", "--width", "8"])
    [bad] = group(store, "bad", status="failed", reason="ValueError: boom")
    rows = page.rows()
    assert [row["id"] for row in rows] == [good.id, bad.id]
    assert rows[0]["parameters"] == {"width": "8", "lr": "0.1"} and rows[0]["ended"] and rows[0]["seconds"] == 60
    assert (rows[1]["status"], rows[1]["exit_code"], rows[1]["reason"]) == ("failed", 1, "ValueError: boom")


def test_a_series_comes_reduced_and_a_counter_as_its_rate(page, store):
    [run] = group(store, "one", series={"loss": np.arange(5000.0), "proc.cpu_s": np.linspace(0, 30, 5000)})
    asked = f"/api/chart?id={run.id}&most=100"
    found = page.json(f"{asked}&name=loss")
    [(_, values)] = found["lines"]
    assert len(found["times"]) <= 100 and max(values) == 4999 and min(values) == 0
    assert found["ends"] == [pytest.approx(60)] and found["times"][0] == pytest.approx(0, abs=1)
    [(_, cores)] = page.json(f"{asked}&name=proc.cpu_s")["lines"]
    assert cores == pytest.approx([0.5] * len(cores), rel=1e-3)
    span = f"begin={run.began + 30}&end={run.began + 31}"
    part = page.json(f"/api/chart?id={run.id}&name=loss&over=clock&{span}&most=9999")
    assert 80 < len(part["times"]) < 90 and part["times"][0] > run.began + 29
    assert page.json(f"{asked}&name=nothing")["lines"] == [[None, []]]


def test_runs_that_are_compared_come_on_one_time_line(page, store):
    [one] = group(store, "one", series={"loss": [1.0, 2.0, 3.0]})
    [other] = group(store, "other", series={"loss": [4.0, 5.0]})
    found = page.json(f"/api/chart?id={one.id}&id={other.id}&name=loss")
    assert found["times"] == pytest.approx([0, 30, 60])
    assert found["lines"] == [[None, [1, 2, 3]], [[0, 2], [4, 5]]]
    assert page.json(f"/api/titles?id={one.id}&id={other.id}") == {
        "loss": {"text": "loss", "unit": "", "place": 0}
    }


def test_what_json_cannot_hold_is_a_gap(page, store):
    [run] = group(store, "one", series={"loss": [1, float("nan"), float("inf"), 2]})
    assert page.json(f"/api/chart?id={run.id}&name=loss")["lines"] == [[None, [1, None, None, 2]]]
    assert page.json(f"/api/runs/{run.id}")["series"]["loss"]["last"] == 2


def test_a_run_that_is_not_there_is_said_in_words(page):
    answer = page.ask("/api/runs/zzz")
    assert answer.status == 404
    assert "has no run 'zzz'" in json.loads(answer.body)["error"]
    assert page.ask("/api/chart?id=zzz&begin=soon").status == 400


def test_groups_come_with_their_verdict_once_they_have_ended(page, store):
    alone = group(store, "small", runs=["a", "b"], mode="alone", seconds=100)
    plain = group(store, "small", runs=["a", "b"], mode="plain", seconds=60)
    found = page.json(f"/api/groups?id={plain[0].group_id}&id={alone[0].group_id}")
    assert [each["mode"] for each in found["groups"]] == ["alone", "plain"]
    assert "sooner than one after the other" in found["sentences"][0]
    assert found["groups"][1]["runs"][0]["parts"]["waiting"] == pytest.approx(0.4 * 59 / 60)
    running = group(store, "goes", status=None)
    found = page.json(f"/api/groups?id={running[0].group_id}&id={alone[0].group_id}")
    assert len(found["groups"]) == 2 and found["sentences"] == []


def test_a_description_that_was_cut_off_hides_nothing_else(page, store):
    [run] = group(store, "one")
    (store.folder_of(run.id) / "environment.json").write_text('{"command": ["py')
    shown = page.json(f"/api/runs/{run.id}")
    assert shown["environment"]["environment"].startswith("unreadable") and shown["series"]


def test_the_mean_and_the_last_of_a_counter_are_rates(page, store):
    [run] = group(store, "one", series=drawn() | {"proc.read_bytes": [0, 0, 60]})
    series = page.json(f"/api/runs/{run.id}")["series"]
    assert (series["proc.read_bytes"]["last"], series["proc.read_bytes"]["mean"]) == pytest.approx((2, 1))
    assert series["proc.rss_bytes"]["last"] == 5e8 + 59e6
    assert series["proc.cpu_s"]["mean"] == pytest.approx(0.8 * 59 / 60) and series["proc.cpu_s"]["unit"] == "cores"
    assert series["proc.rss_bytes"]["mean"] == pytest.approx(5e8 + 1e6 * 29.5)


def test_what_a_run_did_on_the_whole_is_told_once_it_has_ended(page, store):
    [ended] = group(store, "ended")
    [goes] = group(store, "goes", status=None)
    found = page.json(f"/api/summaries?id={ended.id}&id={goes.id}")
    assert set(found) == {ended.id}
    assert found[ended.id]["waiting"] == pytest.approx(0.4 * 59 / 60)
    assert found[ended.id]["memory_bytes"] == 5e8 + 59e6
    assert found[ended.id]["logged"] == {"loss": drawn()["loss"][-1]}


def test_the_newest_points_of_runs_that_go_on_come_as_they_are_written(page, store):
    [run] = group(store, "goes", status=None)
    asked = f"/api/newest?id={run.id}&name=loss&name=proc.cpu_s&name=nothing"
    found = page.json(asked)[run.id]
    assert set(found) == {"loss", "proc.cpu_s"}
    assert found["loss"][1][-1] == drawn()["loss"][-1] and len(found["loss"][0]) < 20
    add_points(store, run.id, "loss", [9.0], run.began + 61, 0)
    assert page.json(asked)[run.id]["loss"][1][-1] == 9
    assert page.json(f"/api/chart?id={run.id}&name=loss&most=9999")["lines"] == [[None, [*drawn()["loss"], 9]]]


@pytest.mark.whole
def test_what_changes_is_sent_while_it_happens(page, store):
    group(store, "before")
    with page.changes() as changes:
        assert [row["group"] for row in next(changes)["all"]] == ["before"]
        [run] = group(store, "now", status=None)
        seen = next(each["glances"][run.id] for each in changes if run.id in each["glances"])
        assert seen["logged"]["loss"] == drawn()["loss"][-1]
        add_points(store, run.id, "loss", [7.0], run.began + 61, 0)
        next(each for each in changes if each["glances"][run.id]["logged"]["loss"] == 7)
        store.ended(run.id, "finished", 0)
        next(row for each in changes for row in each["rows"] if row["id"] == run.id and row["ended"])
        store.remove([run.id])
        next(each for each in changes if run.id in each["removed"])


def test_a_run_that_was_removed_while_others_are_looked_at_is_left_out(page, store):
    there, gone = group(store, "two", runs=["a", "b"], status=None, series={"loss": [1.0, 2.0]})
    store.ended(gone.id, "finished", 0)
    store.remove([gone.id])
    asked = f"id={gone.id}&id={there.id}"
    assert list(page.json(f"/api/titles?{asked}")) == ["loss"]
    assert list(page.json(f"/api/newest?{asked}&name=loss")) == [there.id]
    chart = page.json(f"/api/chart?{asked}&name=loss")
    assert chart["lines"] == [[[], []], [None, [1.0, 2.0]]] and chart["figures"][0]["last"] is None


def test_counters_are_known_by_their_names():
    counters = ["proc.cpu_s", "disk.nvme0n1.read_bytes", "feed.wait_s", "energy.package0_j", "sampler.missed"]
    assert all(map(is_counter, ("feed.cpu_s", "feed.read_bytes", "feed.write_bytes")))
    others = [
        "proc.rss_bytes",
        "run.cpu_s",
        "loss",
        "time_s",
        "feed.epoch_s",
        "feed.lag_samples",
        "feed.memory_bytes",
        "gpm.0.pcie_rx_bytes_per_s",
    ]
    assert [name for name in [*counters, *others] if is_counter(name)] == counters
    assert [unit_of(name) for name in counters] == ["cores", "bytes/s", "% of the time", "W", "/s"]
    assert [unit_of(name) for name in others] == ["bytes", "s", "", "s", "s", "", "bytes", "bytes/s"]
    assert unit_of("feed.held_back_s") == "% of the time"


def test_a_rate_is_what_was_counted_by_the_time_it_took():
    times, values = rates(np.array([0, 1, 1, 3.0]), np.array([0, 2, 4, 8.0]))
    assert times.tolist() == [1, 3] and values.tolist() == [4, 2]
    assert rates(np.empty(0), np.empty(0))[0].tolist() == []


def test_the_rate_of_what_two_processes_count_at_moments_of_their_own_is_steady_and_ends_so(page, store):
    both = {"feed.wait_s": (0.6, 0.4), "feed.samples": (100.0, 100.0)}
    [run] = group(store, "ranks", series={"loss": [1.0]}, seconds=60)
    for rank in range(2):
        for name, each in both.items():
            counts = np.arange(60) * each[rank]
            add_points(store, run.id, name, counts, run.began + 0.02 * rank, 59, writer=f"script-{rank}-a")
    for name, rate in (("feed.wait_s", 60), ("feed.samples", 200)):
        [[_, values]] = page.json(f"/api/chart?id={run.id}&name={name}")["lines"]
        assert values == pytest.approx([rate] * 59, rel=0.05), name


def test_the_last_of_a_counter_with_two_points_at_its_last_moment_is_the_rate_up_to_the_newer():
    series = Series(np.array([0.0, 30, 60, 60]), np.array([0.0, 60, 60, 120]))
    assert _figures("proc.read_bytes", {"proc.read_bytes": series})["last"] == 2


def test_what_numpy_imports_late_is_there_before_threads_are() -> None:
    """Two threads that call ``np.unique`` first, at once, end in a RecursionError of NumPy's."""
    code = "import sys, penstock.web.views; sys.exit('numpy.ma' not in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_is_gone_of_a_run_is_said_on_its_page(page, store):
    whole, damaged = group(store, "one", runs=["a", "b"])
    path = next((store.folder_of(damaged.id) / "series").iterdir())
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    said = page.json(f"/api/runs/{damaged.id}")["damage"]
    assert said.startswith(f"points of run {damaged.id} that are gone: about ")
    assert page.json(f"/api/runs/{whole.id}")["damage"] == ""
