"""Spec files are held by one process, and runs of radT's CSV that have ended are known from the store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.fakes.mps.fake_mps import PROGRAM
from tests.fakes.nvml.fake_gpus import FakeGpus
from tests.runs.store.groups import DEAD, living

from penstock.errors import BadSetting
from penstock.runs.masking import add_masked
from penstock.runs.record import GroupPlan, RunRecord, Status
from penstock.runs.spec.checks import Gpus
from penstock.runs.spec.open import Spec as OpenedSpec
from penstock.runs.spec.radt import plan_rows, rows_of
from penstock.runs.store import Store

HEADER = "Experiment,Workload,Name,Status,Run,Devices,Collocation,File,Listeners,Params\n"
PLAIN = """0,1,alone,,,0,-,train.py,smi+top,--epochs 2 --lr 0.05
0,2,a,,,0+1,-,train.py,smi+top,--epochs 2 --lr 0.05
0,2,b,,,0,-,train.py,dcgmi+nsys,"--name ""x y"", z"
"""


UUIDS = tuple(f"GPU-0000000{i}-0000-4000-8000-000000000000" for i in range(2))


def Spec(path: Path, *, without: bool = False) -> OpenedSpec:  # noqa: N802
    return OpenedSpec(path, Gpus(without=without))


@pytest.fixture
def file(tmp_path: Path, fake_gpus: FakeGpus, tmp_path_factory: Any, monkeypatch: Any) -> Path:
    """A table on a machine of two GPUs and a profiler."""
    programs = tmp_path_factory.mktemp("bin")
    (programs / "nsys").touch(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    for uuid in UUIDS:
        assert fake_gpus.add() == uuid
    (tmp_path / "train.py").touch()
    path = tmp_path / "runs.csv"
    path.write_text(HEADER + PLAIN)
    return path


def again(file: Path, store: Store) -> list[str]:
    """Which groups are left to be run."""
    with OpenedSpec(file, Gpus(), stored=store.runs) as spec:
        return [group.name for group in spec.groups]


def ran(store: Store, group: GroupPlan, *statuses: Status | None) -> list[RunRecord]:
    """Add a group to the store whose runs ended so; None for one that never began and failed."""
    records = store.add(group)
    for record, status in zip(records, statuses, strict=True):
        if status not in (None, "waiting"):
            store.began(record.id, keeper=living() if status == "running" else DEAD, pid=1)
        if status not in ("waiting", "running"):
            store.ended(record.id, status or "failed", None if status is None else 1, "")
    return records


def test_rows_of_one_experiment_and_workload_start_together(file: Path):
    with Spec(file) as spec:
        one, two = spec.groups
    assert (one.name, one.mode, two.name, two.mode) == ("0-1", "alone", "0-2", "plain")
    assert one.listeners == ("gpu", "proc", "host")
    assert two.listeners == ("gpu", "proc", "host", "gpm")
    assert [run.profile for run in spec.groups[-1].runs][-1:] == [("nsys",)]
    assert [run.name for run in two.runs] == ["a", "b"]
    assert two.runs[0].devices == UUIDS
    assert two.runs[0].command == (sys.executable, "train.py", "--epochs", "2", "--lr", "0.05")
    assert two.runs[1].command[2:] == ("--name", "x y,", "z")
    assert two.runs[1].directory == str(file.parent)


def test_columns_come_in_any_order_and_a_script_runs_in_its_own_folder(file: Path):
    (file.parent / "deep").mkdir()
    (file.parent / "deep" / "go.py").touch()
    file.write_text(
        "Params,  File   , Listeners, Collocation, Devices, Run, Status, Workload, Experiment\n"
        "      , deep/go.py,         ,           ,        ,    ,       ,        1, vision\n"
    )
    with Spec(file) as spec:
        (group,) = spec.groups
    (run,) = group.runs
    assert (group.name, group.mode, group.listeners) == ("vision-1", "alone", None)
    assert (run.name, run.directory, run.devices) == ("go", str(file.parent / "deep"), ())
    assert run.command == (sys.executable, "go.py")


def test_an_interrupted_file_goes_on_where_it_stopped_and_is_left_as_it_is(file: Path, store: Store):
    with Spec(file) as spec:
        one, two = spec.groups
    assert again(file, store) == ["0-1", "0-2"]
    ran(store, one, "finished")
    ran(store, two, "failed", "killed")
    assert again(file, store) == ["0-2"]
    ran(store, two, "out_of_memory", "timed_out")
    assert again(file, store) == []
    assert file.read_text() == HEADER + PLAIN


@pytest.mark.parametrize("status", ["killed", "lost", "waiting", None])
def test_a_run_that_was_broken_off_runs_again(file: Path, store: Store, status: Status | None):
    with Spec(file) as spec:
        ran(store, spec.groups[0], status)
    assert again(file, store) == ["0-1", "0-2"]


def test_a_run_that_goes_on_keeps_the_file_from_being_started(file: Path, store: Store):
    with Spec(file) as spec:
        [run] = ran(store, spec.groups[0], "running")
    with pytest.raises(BadSetting, match=rf"runs\.csv:2: {run.id} goes on; wait, or end it: penstock runs stop"):
        again(file, store)


@pytest.mark.parametrize(
    ("before", "after", "left"),
    [
        ("smi+top", "top", []),
        ("0,1,alone,,,0,", "0,1,alone,,,1,", []),
        ("0,1,", "7,1,", ["7-1"]),
        ("alone", "other", ["0-1"]),
        ("--epochs 2 --lr 0.05\n0,2,a", "--epochs 3 --lr 0.05\n0,2,a", ["0-1"]),
        ("0,2,b", "0,3,b", ["0-2", "0-3"]),
        ("0,1,alone,,,0,-", "0,2,alone,,,0,-", ["0-2"]),
    ],
)
def test_what_has_ended_is_known_by_group_name_command_and_folder(file: Path, store: Store, before, after, left):
    with Spec(file) as spec:
        ran(store, spec.groups[0], "finished")
        ran(store, spec.groups[1], "finished", "failed")
    file.write_text((HEADER + PLAIN).replace(before, after, 1))
    assert again(file, store) == left


def test_secrets_in_a_command_do_not_make_it_another(file: Path, store: Store):
    file.write_text(HEADER + "0,1,x,,,0,-,train.py,,--token abcdefgh\n")
    with Spec(file) as spec:
        records = add_masked(store, spec.groups[0])
    store.began(records[0].id, keeper=DEAD, pid=1)
    store.ended(records[0].id, "finished", 0)
    assert again(file, store) == []


def test_groups_that_ended_are_looked_at_no_more(file: Path):
    file.write_text(HEADER + "9,9,,FINISHED a (0),x,0,MPS,gone.py,nsys,\n" + PLAIN)
    with Spec(file) as spec:
        assert [group.name for group in spec.groups] == ["0-1", "0-2"]


def test_spaces_that_align_columns_quotes_and_a_byte_order_mark_are_no_content(file: Path):
    head = "\ufeffFile , Name,Params , Status,Run,Experiment,Workload,Devices,Collocation,Listeners\r\n\r\n"
    file.write_text(head + ' train.py,"a ""b"", c",  "--x 1\n2" , ,"",e,1,0,-,\r\nno.py,,,,,e,2,0,-,', newline="")
    with pytest.raises(BadSetting, match=r"runs\.csv:5, column File: there is no script"):
        Spec(file)
    file.write_text(file.read_text().replace("no.py", "train.py"))
    with Spec(file) as spec:
        run = spec.groups[0].runs[0]
    assert (run.name, run.command[1:]) == ('a "b", c', ("train.py", "--x", "1", "2"))


def test_a_second_penstock_run_on_one_spec_is_refused_until_the_first_has_ended(file: Path):
    with Spec(file):  # noqa: SIM117
        with pytest.raises(BadSetting, match="another penstock run is at work on it"):
            Spec(file)
    Spec(file).close()


def test_a_killed_process_holds_no_spec(file: Path):
    hold = (
        "import sys; from pathlib import Path; from penstock.runs.spec.open import Spec; "
        "from penstock.runs.spec.checks import Gpus; "
        "spec = Spec(Path(sys.argv[1]), Gpus(without=True)); print(flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", hold, file], **pipes) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(BadSetting, match="another penstock run"):
            Spec(file)
        holder.kill()
    Spec(file).close()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("0,1,x,,,0,-,no.py,smi,", "2, column File: there is no script"),
        ("0,1,x,,,0,-,,smi,", "2, column File: there is none"),
        ("0,1,x,,,0,XPS,train.py,smi,", "2, column Collocation: 'XPS' is none of -, MPS and a MIG profile"),
        ("0,1,x,,,0,MPS,train.py,smi,", "2, column Collocation: MPS cannot run here: no nvidia-cuda-mps-control"),
        ("0,1,x,,,7,-,train.py,smi,", f"2, column Devices: there is no GPU '7'; there are 0 ({UUIDS[0]}, NVIDIA"),
        ("0,1,x,,,0+0,-,train.py,smi,", f"2, column Devices: '0' is GPU {UUIDS[0]}, which is there already"),
        ("0,1,,,,0,-,train.py,,\n0,1,,,,0,MPS,train.py,,", "3, column Collocation: 'MPS' beside '-'"),
        ("0,1,x,,,first,-,train.py,smi,", "2, column Devices: there is no GPU 'first'"),
        ("0,1,x,,,0,-,train.py,smu,", "2, column Listeners: there is no listener 'smu'"),
        ('0,1,x,,,0,-,train.py,smi,"--x \'a"', "2, column Params: No closing quotation"),
        ("0,1,x,,,0,-,train.py,smi", "2: 9 cells under 10 columns"),
        ('0,1,"x,,,0,-,train.py,smi,', '2: unexpected end of data: a " within a cell'),
    ],
)
def test_a_wrong_cell_is_one_error_with_line_and_column(file: Path, row: str, said: str):
    file.write_text(f"{HEADER}{row}\n")
    with pytest.raises(BadSetting) as error:
        Spec(file)
    assert str(error.value).startswith(f"{file}:{said}")
    file.write_text(HEADER + PLAIN)
    Spec(file).close()  # what was refused is not held


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (HEADER.replace("Devices", "Device"), "1: there is no column 'Device'; did you mean Devices?"),
        (HEADER.replace("Devices", "GPU"), "1: there is no column 'GPU'; there are Experiment, Workload"),
        (HEADER.replace("Devices,", ""), "1: column Devices is missing"),
        (HEADER.replace("Devices", "Devices,Devices"), "1: column Devices is there twice"),
        ("", "1: column Experiment is missing"),
        (HEADER + "\n0,1,\udc80", "3: not UTF-8"),
    ],
)
def test_a_wrong_table_is_one_error_with_its_line(file: Path, header: str, said: str):
    file.write_bytes(header.encode(errors="surrogateescape"))
    with pytest.raises(BadSetting) as error:
        Spec(file)
    assert str(error.value).startswith(f"{file}:{said}")


def test_mig_profiles_that_differ_are_planned_as_one_mode(file: Path):
    file.write_text(HEADER + "0,1,,,,0,1g.5gb,train.py,,\n0,1,,,,0,3g.20gb,train.py,,\n")
    rows = rows_of(file, file.read_text())
    assert plan_rows(file, rows, Gpus()).mode == "mig:1g.5gb,3g.20gb"


def test_without_a_gpu_what_needs_one_is_left_out_and_that_is_said_once(file: Path):
    file.write_text(HEADER + PLAIN + "0,3,x,,,0,MPS,train.py,smi+top+dcgmi,\n0,4,y,,,0,3g.20gb,train.py,top,\n")
    with Spec(file, without=True) as spec:
        assert [group.mode for group in spec.groups] == ["alone", "plain", "plain", "plain"]
        assert [group.listeners for group in spec.groups] == 4 * [("proc", "host")]
        assert not any(run.devices for group in spec.groups for run in group.runs)
        assert not any(run.profile for group in spec.groups for run in group.runs)
    (left_out,) = spec.left_out
    assert left_out == (
        "--no-gpu leaves out devices, profiler nsys, listener gpu, listener gpm, mode mps (plain instead), mode "
        "mig:3g.20gb (plain instead)"
    )


def test_a_machine_without_a_gpu_is_one_error_that_names_what_helps(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(BadSetting) as error:
        Spec(file)
    assert str(error.value) == (
        f"{file}:2, column Devices: CUDA_VISIBLE_DEVICES shows no GPU; "
        "penstock run --no-gpu leaves out what needs one"
    )


def test_numbers_of_gpus_count_inside_those_that_are_visible(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    for named in ("0", "GPU-00000001"):
        file.write_text(f"{HEADER}0,1,x,,,{named},-,train.py,top,\n")
        with Spec(file) as spec:
            assert spec.groups[0].runs[0].devices == UUIDS[1:]
    file.write_text(HEADER + "0,1,x,,,1,-,train.py,top,\n")
    with pytest.raises(BadSetting, match=r"there is no GPU '1'; there are 0 \(GPU-00000001-"):
        Spec(file)


def test_a_yaml_file_is_held_too(file: Path):
    spec_path = file.with_name("spec.yaml")
    spec_path.write_text(text := "groups: [{command: train.py}]")
    with Spec(spec_path), pytest.raises(BadSetting, match="another penstock run"):
        Spec(spec_path)
    assert spec_path.read_text() == text
    spec_path.write_text("groups:\n- command: train.py\n  mode: mp")
    with pytest.raises(BadSetting, match=r"spec.yaml: groups\[0\].mode='mp': there are alone"):
        Spec(spec_path)


def test_a_group_that_becomes_plain_is_there_once(file: Path):
    spec_path = file.with_name("spec.yaml")
    spec_path.write_text("groups: [{command: train.py, modes: [alone, plain, mps, 'mig:3g.20gb']}]")
    with Spec(spec_path, without=True) as spec:
        assert [group.mode for group in spec.groups] == ["alone", "plain"]


def test_runs_that_would_share_a_gpu_under_two_daemons_are_refused(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(PROGRAM.parent))
    spec_path = file.with_name("spec.yaml")
    spec_path.write_text(
        "groups:\n- mode: mps\n  runs:\n"
        "  - {command: train.py, devices: [0]}\n  - {command: train.py, devices: [0, 1]}\n"
    )
    with pytest.raises(
        BadSetting, match=rf"spec.yaml: groups\[0\].mode: one run may use .*; {UUIDS[0]} would have two MPS"
    ):
        Spec(spec_path)


def test_a_missing_file_is_one_error(tmp_path: Path):
    with pytest.raises(BadSetting, match=r"no.csv: No such file"):
        Spec(tmp_path / "no.csv")
    with pytest.raises(BadSetting, match=r"Is a directory"):
        Spec(tmp_path)


def test_plans_can_be_kept_in_the_store_s_way(file: Path):
    with Spec(file) as spec:
        for group in spec.groups:
            assert msgspec.json.decode(msgspec.json.encode(group), type=type(group)) == group
