"""`penstock run` as people use it: sampled, from grids and files, compared."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import pytest
from tests.forked import Forked, eventually

from penstock.runs.store import Store

pytestmark = pytest.mark.whole


def series(folder: Path, id: str) -> dict[str, list[float]]:
    with Store.open(folder / "store") as store:
        return {name: each.values.tolist() for name, each in store.series(id).items()}


def sampler(folder: Path) -> psutil.Process | None:
    words = ["-m", "penstock.runs.sampler", str(folder / "store")]
    for process in psutil.process_iter(["cmdline"]):
        if (process.info["cmdline"] or [])[1:] == words:
            return process
    return None


def test_a_run_is_sampled_and_its_series_are_compacted(launch, tmp_path: Path):
    busy = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; sleep 2.2"
    one = launch("--listeners", "proc,host", "sh", "-c", busy)
    assert one.wait() == 0
    found = series(tmp_path, one.record().id)
    assert found["run.cpu_s"][-1] > 0
    assert len(found["proc.rss_bytes"]) >= 2 and max(found["proc.rss_bytes"]) > 0
    assert found["proc.cpu_s"] == sorted(found["proc.cpu_s"])
    assert found["proc.cpu_s"][-1] <= found["run.cpu_s"][-1] + 0.05, "clock ticks against the kernel's own figure"
    assert found["host.cores"][-1] > 0
    assert [path.name for path in (tmp_path / "store" / one.record().id / "series").iterdir()] == ["compacted"]


def test_a_sampler_that_is_killed_is_replaced(launch, tmp_path: Path):
    one = launch("--listeners", "host", "sh", "-c", "until [ -e go ]; do sleep 0.1; done")
    first = eventually(lambda: sampler(tmp_path))
    first.send_signal(signal.SIGKILL)
    second = eventually(lambda: (now := sampler(tmp_path)) and now.pid != first.pid and now)
    eventually(lambda: series(tmp_path, one.record().id).get("host.cores"))
    assert second.is_running()
    tmp_path.joinpath("go").touch()
    assert one.wait() == 0


def test_a_grid_is_run_and_each_run_has_its_values(launch):
    grid = launch("--grid", "lr=0.1,0.03", "--listeners", "none", "sh", "-c", "echo rate {lr} $PENSTOCK_PARAM_LR")
    assert grid.wait() == 0
    assert [record.plan.parameters for record in grid.records()] == [{"lr": "0.1"}, {"lr": "0.03"}]
    assert sorted(grid.kept(i).strip() for i in range(2)) == ["rate 0.03 0.03", "rate 0.1 0.1"]
    assert set(series(grid.folder, grid.records()[0].id)) == {"run.cpu_s"}, "nobody asks for more"


def test_a_table_of_runs_goes_on_where_it_stopped(launch, tmp_path: Path):
    tmp_path.joinpath("good.py").write_text("print('good')")
    tmp_path.joinpath("bad.py").write_text("raise SystemExit(3)")
    table = tmp_path / "runs.csv"
    table.write_text(
        "Experiment,Workload,Status,Run,Devices,Collocation,File,Listeners,Params\n"
        "0,1,,,0,-,good.py,top,\n"
        "0,2,,,0,-,bad.py,top,\n"
        "0,2,,,0,-,good.py,top,\n"
    )
    written = table.read_bytes()
    first = launch("--no-gpu", "runs.csv")
    assert first.wait() == 3
    assert [record.status for record in first.records()] == ["finished", "failed", "finished"]
    assert table.read_bytes() == written
    again = launch("--no-gpu", "runs.csv")
    assert again.wait() == 0
    assert again.output.endswith("\nNothing is left to run: all runs of this file have ended.\n")


def test_one_file_runs_a_group_in_each_mode_and_one_command_compares_them(launch, command, tmp_path: Path):
    tmp_path.joinpath("spec.yaml").write_text(
        "groups:\n- name: naps\n  command: [sh, -c, 'sleep 0.4']\n  repeats: 3\n"
        "  modes: [alone, plain]\n  listeners: []\n"
    )
    both = launch("spec.yaml")
    assert both.wait() == 0
    store = str(tmp_path / "store")
    found = json.loads(command("runs", "compare", "naps", "--json", "--store", store).stdout)
    assert [group["mode"] for group in found["groups"]] == ["alone", "plain"]
    assert found["groups"][0]["seconds"] > found["groups"][1]["seconds"]
    shown = command("runs", "compare", "naps", "--store", store)
    assert "3 runs of 'naps' (plain) finish" in shown.stdout and "sooner than one after the other" in shown.stdout
    absent = command("runs", "compare", "nobody", "--store", store)
    assert (absent.returncode, absent.stdout) == (2, "")
    assert "has no group 'nobody'" in absent.stderr


def test_what_runs_do_is_shown_while_they_do_it(launch, servers, tmp_path: Path):
    one = launch("--listeners", "proc", "--name", "nap", "sh", "-c", "until [ -e go ]; do sleep 0.1; done")
    eventually(lambda: one.records() and series(tmp_path, one.record().id).get("proc.cpu_s", [])[1:])
    shown = tmp_path / "shown"
    environment = {**os.environ, "PENSTOCK_STORE": str(tmp_path / "store"), "COLUMNS": "100"}
    words = ["runs", "ls", "--watch", "--interval", "0.2"]
    top = Forked(servers["command"], "penstock", words, shown, directory=tmp_path, environment=environment)
    eventually(lambda: one.record().id in shown.read_text())
    (line, *_) = (line.split() for line in shown.read_text().splitlines() if one.record().id in line)
    assert line[1:5] == ["nap", "nap", "alone", "running"]
    assert float(line[6]) < 2 and float(line[7]) > 0, "cores and MiB"
    top.signal("SIGINT")
    assert top.wait() == 130
    tmp_path.joinpath("go").touch()
    assert one.wait() == 0
