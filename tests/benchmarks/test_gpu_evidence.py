"""What `make gpu` leaves, with commands that stand in for those that need a GPU, and where there is none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.gpu import report
from benchmarks.gpu.evidence import MARK, Bench, main, unpack
from benchmarks.gpu.facts import told
from benchmarks.gpu.record import ROOT, Record, counts_of, read
from benchmarks.gpu.steps import PARTS, Step
from tests.scripts import run_python

pytestmark = pytest.mark.whole

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
GPU = {"driver": "NVRM version: 580.95.05", "torch": "2.11.0+cu130", "cuda": "13.0", "names": ["NVIDIA H200"]}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """One on a machine that is said to have a GPU."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(Bench, "_gpu_found", lambda self: (GPU, ""))
    return Bench(tmp_path / "out")


def python(name: str, code: str, **options: Any) -> Step:
    return Step(name, ("-c", code), **options)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_every_part_is_not_run_and_says_so(tmp_path: Path) -> None:
    done = run_python("-m", "benchmarks.gpu.evidence", "--out", tmp_path, cwd=ROOT, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    for part in PARTS:
        record = read(tmp_path / f"{part}.json")
        assert (record.part, record.status, record.why) == (part, "not run", "no GPU")
        assert record.machine["cpu"]
        assert f"{part}: not run: no GPU" in done.stdout
        assert str(ROOT) not in (tmp_path / f"{part}.json").read_text()


def test_a_step_that_hangs_is_killed_in_time_with_what_it_has_detached(bench: Bench) -> None:
    bench.limit_s = 8.0
    hangs = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(1000)']\n"
        "print(os.getpid(), subprocess.Popen(sleep, start_new_session=True).pid, flush=True)\n"
        "time.sleep(1000)"
    )
    record = bench.run("part", [python("hangs", hangs, limit_s=5.0), python("next", "print(1)")])
    pids = [int(pid) for pid in (bench.out / "hangs.log").read_text().split()]
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)
    first, second = record.steps
    assert (first.status, first.why) == ("cut off", "killed after 5 s")
    assert second.status in {"passed", "not run"}, "what time is left is its own"
    assert (record.status, record.why) == ("cut off", "hangs")
    assert read(bench.out / "part.json") == record


def test_a_parts_steps_have_no_more_time_than_it_has(bench: Bench) -> None:
    bench.limit_s = 0.5
    record = bench.run("part", [python("hangs", "import time; time.sleep(1000)"), python("next", "print(1)")])
    assert [step.status for step in record.steps] == ["cut off", "not run"]
    assert record.steps[1].why == "its part's time was spent"


def test_a_record_is_there_while_its_part_runs(bench: Bench) -> None:
    look = f"import json; print(json.load(open({str(bench.out / 'part.json')!r})))"
    bench.run("part", [python("first", "pass"), python("looks", look)])
    seen = (bench.out / "looks.log").read_text()
    assert "'status': 'running'" in seen
    assert "'step': 'first', 'status': 'passed'" in seen


def test_a_record_of_a_part_that_was_killed_says_so(tmp_path: Path) -> None:
    Record("part", 1.0).save(tmp_path / "part.json")
    found = read(tmp_path / "part.json")
    assert (found.status, found.why) == ("cut off", "whatever ran it was killed")


def test_who_ends_it_leaves_a_record_and_no_process(tmp_path: Path) -> None:
    code = (
        "import signal, sys\nfrom pathlib import Path\nfrom benchmarks.gpu import evidence\n"
        "from benchmarks.gpu.steps import PARTS, Step\n"
        f"evidence.Bench._gpu_found = lambda self: ({GPU!r}, '')\n"
        "PARTS['hangs'] = lambda out: [Step('hangs', ('-c', 'import os, time; print(os.getpid(), flush=True); "
        "time.sleep(1000)'))]\n"
        f"sys.exit(evidence.main(['--part', 'hangs', '--out', {str(tmp_path)!r}]))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=ENVIRONMENT)
    log = tmp_path / "hangs.log"
    while not (log.exists() and log.read_text().endswith("\n")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 143
    record = read(tmp_path / "hangs.json")
    assert (record.status, record.why) == ("cut off", "by SystemExit")
    assert record.steps[0].status == "cut off"
    assert not alive(int(log.read_text()))


def test_what_is_missing_is_not_run_and_says_what(bench: Bench) -> None:
    steps = [
        python("module", "pass", modules=("json", "no_such_module")),
        python("package", "pass", modules=("no_such_package.part",)),
        python("tool", "pass", under=("no-such-tool", "--option")),
    ]
    record = bench.run("part", steps)
    missing = ("no_such_module", "no_such_package.part", "no-such-tool")
    assert [step.why for step in record.steps] == [f"{each} is not installed" for each in missing]
    assert record.status == "not run"


def test_a_step_may_find_out_that_the_machine_has_not_what_it_measures(bench: Bench) -> None:
    code = "print('noise'); print('no nvidia-fs here'); raise SystemExit(2)"
    record = bench.run("part", [python("gds", code, unavailable=2), python("other", code)])
    ended = [(step.status, step.why) for step in record.steps]
    assert ended == [("not run", "no nvidia-fs here"), ("failed", "status 2")]


def test_tests_are_counted_and_failures_shown_without_this_machines_paths(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pytest\ndef test_one(): pass\ndef test_two(): pass\n"
        f"def test_three(): raise AssertionError('read {ROOT}/README.md')\n"
        "@pytest.mark.skip(reason='no')\ndef test_four(): pass\n"
    )
    command = ("-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider", str(tmp_path / "test_some.py"))
    record = bench.run("part", [Step("tests", command)])
    (step,) = record.steps
    assert (step.status, step.why) == ("failed", "status 1")
    assert step.counts == {"passed": 2, "failed": 1, "skipped": 1}
    assert "read ./README.md" in step.tail
    assert counts_of("3 passed in 4.51s\n========= ERROR SUMMARY: 0 errors\n") == {"passed": 3}


def test_what_a_step_measured_is_in_the_record(bench: Bench) -> None:
    result = bench.out / "one.result.json"
    code = f'open({str(result)!r}, \'w\').write(\'{{"rate": 5, "where": "{bench.out}/file"}}\')'
    record = bench.run("part", [python("one", code, result="one.result.json")])
    assert record.steps[0].result == {"rate": 5, "where": "OUT/file"}
    bench.limit_s = 2.0
    hangs = python("hangs", f"{code}; import time; time.sleep(1000)", result="one.result.json")
    assert bench.run("part", [hangs]).steps[0].result == record.steps[0].result


def test_a_part_or_step_that_is_none_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part in ("nothing", "tests/nothing"):
        with pytest.raises(SystemExit):
            main(["--part", part, "--out", str(tmp_path)])
        assert f"--part {part}: there is none; parts are facts, right" in capsys.readouterr().err


def test_wheels_for_this_python_are_unpacked_and_others_named(tmp_path: Path) -> None:
    here, wheels = f"cp{sys.version_info.major}{sys.version_info.minor}", tmp_path / "wheels"
    wheels.mkdir()
    for module, tags in {
        "ours": f"{here}-{here}-manylinux_2_17_x86_64.manylinux2014_x86_64",
        "stable": "cp38-abi3-manylinux_2_28_x86_64",
        "pure": "py3-none-any",
        "later": "cp399-abi3-manylinux_2_28_x86_64",
        "other": "cp27-cp27mu-manylinux1_x86_64",
    }.items():
        with zipfile.ZipFile(wheels / f"{module}-1.0-{tags}.whl", "w") as wheel:
            wheel.writestr(f"{module}.py", "")
    refused = unpack(wheels, tmp_path / "unpacked")
    assert sorted(path.name for path in (tmp_path / "unpacked").iterdir()) == ["ours.py", "pure.py", "stable.py"]
    assert [line.split("-")[0] for line in refused] == ["later", "other"]


def test_every_part_says_what_of_tests_gpu_it_runs() -> None:
    for part in ("tests", "sanitizer"):
        for step in PARTS[part](Path("out")):
            file, chosen = step.command[-3], step.command[-1]
            text = (ROOT / file).read_text()
            words = {*chosen.replace("(", " ").replace(")", " ").split()} - {"not", "or"}
            assert all(word in text for word in words), step


def test_a_fact_that_cannot_be_had_says_why_and_the_others_go_on(tmp_path: Path) -> None:
    def refused() -> None:
        raise RuntimeError("no device")

    told(tmp_path / "facts.json", {"one": refused, "two": lambda: {"seen": 3}})
    found = json.loads((tmp_path / "facts.json").read_text())
    assert found == {"one": "RuntimeError: no device", "two": {"seen": 3}}


def test_the_report_keeps_what_ran_and_says_of_each_step_what_came_of_it(bench: Bench, tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\n{report.NOTHING}\n{report.END}\nafter\n")
    bench.run("io", [python("gds", "pass", modules=("no_such_module",)), python("gpu", "print('fine')")])
    bench.run("tests/readers", [python("readers", "raise SystemExit(3)")])
    bench.run("demo", [python("demo", "pass", modules=("no_such_module",))])
    for _ in range(2):
        assert report.main(["--out", str(bench.out), "--results", str(results), "--page", str(page)]) == 0
    assert sorted(path.name for path in results.iterdir()) == ["gpu-h200-io.json", "gpu-h200-tests-readers.json"]
    where = f"NVIDIA H200, driver 580.95.05, torch 2.11.0+cu130, Python {sys.version.split()[0]}, "
    lines = page.read_text().splitlines()
    assert lines[0] == "before"
    assert lines[-1] == "after"
    assert lines[4].startswith(f"| io: gds | not run: no_such_module is not installed | {where}")
    assert lines[5].startswith(f"| io: gpu | passed | {where}")
    assert lines[6].startswith(f"| tests: readers | **failed**: status 3 | {where}")
    assert len(lines) == 9


def test_the_page_says_what_the_committed_results_say() -> None:
    page = report.PAGE.read_text()
    assert page == report.with_lines(page, report.lines(report.RESULTS))


def test_a_tool_runs_python_with_the_mark_in_its_environment(bench: Bench) -> None:
    code = f"import os; assert os.environ['X'] == '1' and os.environ[{MARK!r}]"
    record = bench.run("part", [python("under", code, under=("env", "X=1"))])
    assert record.status == "passed", record
