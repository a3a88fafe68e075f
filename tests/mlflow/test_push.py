"""What `penstock runs push` brings to an MLflow server, read back from there."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from tests.mlflow.conftest import Pushed
from tests.mlflow.groups import BEGAN, COMMIT, ended_group
from tests.mlflow.server import Server

from penstock.runs.store import Store

Push = Callable[..., Pushed]
MS = round(BEGAN * 1000)


def test_a_group_is_a_run_with_a_nested_run_for_each_of_its_runs(server: Server, store: Store, push: Push) -> None:
    runs = ended_group(store, "nested", ["finished", "failed", "killed"])
    done = push("--mlflow", server.uri, "nested")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = server.runs("nested")
    (parent,) = (run for run in found if "mlflow.parentRunId" not in run["tags"])
    assert parent["run_name"] == "nested"
    assert parent["status"] == "FAILED"
    assert (parent["start_time"], parent["end_time"]) == (MS, MS + 27_000)
    nested = [run for run in found if run is not parent]
    assert {run["tags"]["mlflow.parentRunId"] for run in nested} == {parent["run_id"]}
    assert [run["run_name"] for run in nested] == [run.name for run in runs]
    assert [run["status"] for run in nested] == ["FINISHED", "FAILED", "KILLED"]
    times = [(run["start_time"], run["end_time"]) for run in nested]
    assert times == [(MS + 1000 * i, MS + 1000 * i + 25_000) for i in range(3)]


def test_parameters_and_tags_say_what_the_run_was(server: Server, store: Store, push: Push) -> None:
    (run,) = ended_group(store, "told", ["failed"])
    assert push("--mlflow", server.uri, run.id).returncode == 0
    (found,) = server.runs("told")  # a group of one run has no parent
    assert found["params"] == {"lr": "0.0", "odd name_": "x" * 6000}
    tags = found["tags"]
    assert tags["penstock.id"] == run.id
    assert tags["penstock.group"] == "told"
    assert tags["penstock.mode"] == "plain"
    assert tags["penstock.reason"] == "it broke"
    assert tags["penstock.exit_code"] == "3"
    assert tags["mlflow.source.name"] == "train.py"
    assert tags["mlflow.source.git.commit"] == COMMIT
    assert "mlflow.user" not in tags
    assert found.get("user_id") in (None, "", "unknown")


def test_what_a_script_logged_has_its_name_times_and_steps(server: Server, store: Store, push: Push) -> None:
    (run,) = ended_group(store, "logged", ["finished"])
    assert push("--mlflow", server.uri, run.id).returncode == 0
    (found,) = server.runs("logged")
    assert [name for name in found["metrics"] if not name.startswith("system/")] == [
        "loss",
        "recall_5",
        next(name for name in found["metrics"] if name.startswith("recall_5-")),
    ]
    loss = server.history(found["run_id"], "loss")
    assert [(time_ms, step) for time_ms, _, step in loss] == [(MS + 1500 + 1000 * i, 100 * i) for i in range(5)]
    assert [value for _, value, _ in loss if not math.isnan(value)] == [1, 1 / 2, 1 / 4, 1 / 5]
    assert math.isnan(loss[2][1])
    at_5 = server.history(found["run_id"], found["metrics"][2])
    assert at_5 == [(MS + 1750 + 1000 * i, i, i + 1) for i in range(5)]


def test_what_was_sampled_has_mlflows_names_and_a_point_in_ten_seconds(server: Server, store: Store, push: Push):
    (run,) = ended_group(store, "sampled", ["finished"])
    assert push("--mlflow", server.uri, run.id).returncode == 0
    (found,) = server.runs("sampled")
    times = [(MS + 9_500, 9), (MS + 19_500, 19), (MS + 24_500, 24)]

    def points(name: str) -> list[float]:
        history = server.history(found["run_id"], name)
        assert [(time_ms, step) for time_ms, _, step in history] == times, name
        return [value for _, value, _ in history]

    assert points("system/gpu_0_power_usage_watts") == [109, 119, 124]
    assert points("system/gpu_0_memory_usage_megabytes") == [2000 + i / 1e6 for i in (9, 19, 24)]
    assert points("system/system_memory_usage_megabytes") == [6000] * 3
    assert points("system/system_memory_usage_percentage") == [75] * 3
    assert points("system/cpu_utilization_percentage") == [25] * 3
    assert points("system/proc.cpu_s") == [4.5, 9.5, 12]


def test_output_environment_and_the_runs_own_files_are_artifacts(server: Server, store: Store, push: Push) -> None:
    runs = ended_group(store, "artifacts")
    (store.folder_of(runs[0].id) / "files" / "link").symlink_to("/etc/hostname")
    assert push("--mlflow", server.uri, "artifacts").returncode == 0
    nested = [run for run in server.runs("artifacts") if "penstock.id" in run["tags"]]
    names = ["environment.json", "files/deep/model.bin", "output"]
    for found, run in zip(nested, runs, strict=True):
        assert server.artifacts(found) == names
        for name in names:
            assert server.artifact(found, name) == (store.folder_of(run.id) / name).read_bytes()


def test_files_of_more_than_a_gibibyte_are_left_out_and_said(server: Server, store: Store, push: Push) -> None:
    (run,) = ended_group(store, "huge", ["finished"])
    with (store.folder_of(run.id) / "files" / "checkpoint").open("wb") as file:
        file.truncate((1 << 30) + 1)  # a hole: no bytes on the disk
    done = push("--mlflow", server.uri, "huge")
    assert done.returncode == 0
    assert f"run {run.id}: its own files have 1,073,742,081 bytes" in done.stderr
    (found,) = server.runs("huge")
    assert server.artifacts(found) == ["environment.json", "output"]


def test_pushing_twice_makes_nothing_twice(server: Server, store: Store, push: Push) -> None:
    ended_group(store, "twice")
    assert push("--mlflow", server.uri, "twice").returncode == 0
    before, metrics = server.runs("twice"), server.rows("metrics")
    done = push("--mlflow", server.uri, "twice")
    assert (done.returncode, done.stdout) == (0, "0 points and 0 files of 2 runs were new there.\n")
    assert server.runs("twice") == before
    assert server.rows("metrics") == metrics


def test_an_experiment_can_be_named_and_each_has_its_own(server: Server, store: Store, push: Push) -> None:
    ended_group(store, "one-group", ["finished"])
    for name in ("chosen", "another"):
        assert push("--mlflow", server.uri, "--experiment", name, "one-group").returncode == 0
        assert len(server.runs(name)) == 1


def test_a_run_that_was_deleted_on_the_server_is_pushed_again(server: Server, store: Store, push: Push) -> None:
    (run,) = ended_group(store, "deleted", ["finished"])
    assert push("--mlflow", server.uri, run.id).returncode == 0
    (before,) = server.runs("deleted")
    server.ask("runs/delete", run_id=before["run_id"])
    assert push("--mlflow", server.uri, run.id).returncode == 0
    (after,) = server.runs("deleted")
    assert after["run_id"] != before["run_id"]
    assert after["metrics"] == before["metrics"]


def test_an_experiment_that_was_deleted_is_an_error_with_a_remedy(server: Server, store: Store, push: Push):
    ended_group(store, "gone", ["finished"])
    made = server.ask("experiments/create", name="gone")
    server.ask("experiments/delete", experiment_id=made["experiment_id"])
    done = push("--mlflow", server.uri, "gone")
    assert done.returncode == 2
    assert "experiment 'gone' is deleted; restore it there, or give another with --experiment" in done.stderr


def test_only_what_has_ended_is_pushed_and_the_rest_is_counted(server: Server, store: Store, push: Push) -> None:
    ended_group(store, "ended", ["finished", "waiting"])
    done = push("--mlflow", server.uri, "ended")
    assert (done.returncode, done.stderr) == (0, "penstock: runs that have not ended, and are left out: 1\n")
    assert sorted((run["run_name"], run["status"]) for run in server.runs("ended")) == [
        ("ended", "RUNNING"),
        ("train lr=0.0", "FINISHED"),
    ]


@pytest.mark.parametrize("word", ["nobody", "zzzzzz"])
def test_a_run_that_is_not_there_is_an_error(server: Server, store: Store, push: Push, word: str) -> None:
    done = push("--mlflow", server.uri, word)
    assert done.returncode == 2
    assert f"has no run {word!r}" in done.stderr
