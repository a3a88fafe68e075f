"""``penstock bench share`` on small loaders: real processes, a real feed. No test asserts a speed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.scripts import run_python

from penstock.basics.results import Spread
from penstock.basics.terminal import console
from penstock.bench.loop import LoopJob, batches_of
from penstock.bench.share import ShareCase, cases, described, split
from penstock.bench.share_report import (
    Gain,
    Kind,
    ShareFigures,
    SharePlan,
    ShareReport,
    UsersLoader,
    compared,
    named,
    sentence,
    shown,
)
from penstock.errors import BadSetting
from penstock.runs.machine import describe
from penstock.tree import first_rows

_PATIENCE_S = 300
"""Each run starts many processes, and other tests run at the same time."""

pytestmark = [pytest.mark.whole, pytest.mark.timeout(_PATIENCE_S)]

LOADERS = """
import os, signal, sys, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

class Numbers(Dataset):
    def __init__(self, at=lambda index: index):
        self.at = at
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.full((100,), self.at(index)), {"label": index}

def small():
    print("a library says something, and ends no line", end="")
    return DataLoader(Numbers(), batch_size=8, num_workers=2, shuffle=True, persistent_workers=True)

def broken():
    return DataLoader(Numbers(lambda index: [][index]), batch_size=8)

class Nothing(IterableDataset):
    def __iter__(self):
        return iter(())

def nothing():
    return DataLoader(Nothing(), batch_size=4)

def samples():
    return Numbers()

def deadly():
    def at(index):
        os.kill(os.getpid(), signal.SIGKILL)
    return DataLoader(Numbers(at), batch_size=8)

def second():
    if os.path.exists(f"{__file__}.first"):
        raise OSError("locked by another")
    Path(f"{__file__}.first").touch()
    return [torch.zeros(8, 4)] * 100

def slow():
    def at(index):
        Path(os.environ["TMPDIR"], f"worker-{os.getpid()}").touch()
        time.sleep(0.01)
        return index
    return DataLoader(Numbers(at), batch_size=2, num_workers=2)

class Stream(IterableDataset):
    def __iter__(self):
        for i in range(8):
            yield torch.tensor([get_worker_info().num_workers, get_worker_info().id])

def stream():
    return DataLoader(Stream(), batch_size=4, num_workers=2)

"""
PLAIN = """
import numpy

SIZE = 3

def raises():
    raise KeyError("images")

def empty():
    return []

def arrays():
    return {"x": numpy.zeros((100, 3))}
"""
"""These need no torch, which takes two seconds to import."""


@pytest.fixture(scope="module")
def loaders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("loaders") / "loaders.py"
    path.write_text(LOADERS)
    path.with_name("plain.py").write_text(PLAIN)
    return path


def working(folder: Path) -> list[psutil.Process]:
    """Processes that a benchmark with this directory of feeds has started."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get("PENSTOCK_DIR") == str(folder):
                found.append(process)
    return found


@pytest.fixture(scope="module")
def measured(loaders: Path) -> tuple[dict[str, Any], str]:
    """(the report, what was printed) of one whole run."""
    json_path, picture = loaders.with_name("share.json"), loaders.with_name("share.png")
    feeds = loaders.with_name("feeds")
    feeds.mkdir(mode=0o700)
    words = ("-k", "2", "--repeats", "1", "--seconds", "1", "--step-ms", "1", "--window", "16MiB")
    environment = {**os.environ, "PENSTOCK_DIR": str(feeds)}
    words = (f"{loaders}:small", *words, "--json", json_path, "--plot", picture)
    done = run_python("-m", "penstock", "bench", "share", *words, timeout=_PATIENCE_S - 10, env=environment)
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert not working(feeds)
    assert not list(feeds.iterdir())
    return json.loads(json_path.read_text()), done.stdout


def test_every_case_is_measured_with_the_loader_s_workers_in_all_and_its_figures_fit_together(measured):
    found = [each["figures"] for each in measured[0]["results"]]
    measured = [(each["kind"], each["trainers"], each["workers"]) for each in found]
    assert measured == [("alone", 1, 2), ("separate", 2, 2), ("shared", 2, 2)]
    for result in found:
        assert len(result["samples_per_s"]) == len(result["batches_per_s"]) == result["trainers"]
        for samples, batches in zip(result["samples_per_s"], result["batches_per_s"], strict=True):
            assert samples == pytest.approx(8 * batches)
        assert result["cpu_s_per_1000_samples"] > 0
        assert result["pss_bytes"] > 10_000_000 * result["trainers"]


def test_the_report_says_what_was_measured_where_and_the_table_ends_in_its_sentence(measured):
    report, printed = measured
    assert report["function"] == "small"
    loader = {"description": "", "workers": 2, "batch_size": 8, "samples": 64}
    assert report["loader"] | {"description": ""} == loader
    assert {"cpu", "cores", "date", "libraries", "penstock"} <= set(report["machine"])
    assert [comparison["trainers"] for comparison in report["comparisons"]] == [2]
    assert all(0 < comparison["steps_kept"] <= 1 for comparison in report["comparisons"])
    assert not any(private in json.dumps(report) for private in (str(Path.home()), "/tmp"))
    assert max(map(len, printed.replace("saved: ", "").splitlines()[:-2])) <= 80 and "…" not in printed
    assert report["sentence"] in " ".join(printed.split())
    for words in ("1 trainer", "2 trainers", "the loader alone", "a loader each", "one feed"):
        assert re.search(rf"^ *{words}", printed, re.MULTILINE), printed


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["nowhere.py:small"], 2, "there is no file nowhere.py"),
        (["plain.py:large"], 2, "has no function 'large'; it has: "),
        (["plain.py:SIZE"], 2, "'SIZE' in plain.py is not a function, but a value of type int"),
        (["plain:arrays"], 2, "there is no file plain; did you mean plain.py?"),
        (["plain.py:raises"], 1, "raises() in plain.py raised KeyError: 'images'"),
        (["{}:samples"], 2, "a Numbers gives samples, not batches"),
        (["plain.py:empty"], 2, "the source gave no sample in cycle 0: it is empty"),
        (["{}:nothing"], 2, "what {}:nothing returned gave no batch in pass 1"),
        (["{}:broken"], 2, "what {}:broken returned raised IndexError: list index out of range"),
        (["{}:deadly"], 2, "the loader alone: killed: died of SIGKILL"),
        (["plain.py:arrays", "-k", "none"], 2, "--trainers none: give whole numbers with commas between"),
        (["plain.py:arrays", "--plot", "picture.txt"], 2, "--plot picture.txt: its name ends in one of"),
        (["plain.py:arrays", "--json", "nowhere/x.json"], 2, "its directory does not exist"),
    ],
)
def test_what_cannot_be_measured_is_one_clear_error(loaders, feeds_directory, command, words, status, says):
    words = ("-k", "1", *(word.format(loaders.name) for word in words))
    failed = command("bench", "share", *words, cwd=loaders.parent)
    assert (failed.returncode, failed.stdout) == (status, "")
    assert says.format(loaders.name) in failed.stderr.replace("\n", " ")
    frames = [line for line in failed.stderr.splitlines() if line.startswith("  File ")]
    assert not [frame for frame in frames if "penstock" in frame]
    assert not working(feeds_directory)


def test_a_function_that_raises_in_a_trainer_only_is_the_users_error(loaders: Path, command):
    failed = command("bench", "share", "-k", "1", f"{loaders.name}:second", cwd=loaders.parent)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert 'raise OSError("locked by another")' in failed.stderr
    assert "penstock: second() in loaders.py raised OSError: locked by another" in failed.stderr.replace("\n", " ")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_whatever_ends_it_leaves_nothing(loaders: Path, feeds_directory: Path, tmp_path: Path, number, status):
    command = [sys.executable, "-m", "penstock", "bench", "share", f"{loaders}:slow", "-k", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)
    while not list(tmp_path.rglob("worker-*")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    send = os.killpg if number == signal.SIGINT else os.kill  # as a terminal does, and as `kill` does
    send(process.pid, number)
    assert process.communicate(timeout=200) == ("", "")
    assert process.returncode == status
    assert not list(tmp_path.iterdir())
    assert not working(feeds_directory)
    assert not list(feeds_directory.iterdir())


@pytest.mark.parametrize(
    "setting",
    [
        *({"trainers": each} for each in ((), (0,), (65,))),
        *({"seconds": float("nan")}, {"repeats": 0}, {"step_ms": -1}, {"window": "much"}),
    ],
)
def test_a_setting_out_of_range_is_refused(setting):
    with pytest.raises(BadSetting):
        SharePlan(**setting).check()


@pytest.mark.parametrize(
    ("workers", "trainers", "each"),
    [(8, 4, (2, 2, 2, 2)), (3, 2, (1, 2)), (2, 4, (1, 1, 1, 1)), (0, 3, (0, 0, 0))],
)
def test_workers_are_dealt_to_separate_loaders_one_each_at_least(workers, trainers, each):
    assert split(workers, trainers) == each


def test_what_is_compared_runs_one_after_the_other():
    wanted = [("alone", 1, (4,)), ("shared", 1, (4,)), ("separate", 4, (1, 1, 1, 1)), ("shared", 4, (4,))]
    assert list(cases((1, 4), 4)) == [ShareCase(*each) for each in wanted]
    assert [case.workers for case in cases((2,), None)] == [(), (), ()]


def test_a_separate_loader_runs_with_its_part_of_the_workers(loaders: Path):
    batch = next(batches_of(LoopJob(f"{loaders}:stream", workers=1)))
    assert batch.tolist() == [[1, 0]] * 4


def test_a_pass_follows_a_pass_also_of_what_is_no_loader(loaders: Path):
    plain = loaders.with_name("plain.py")
    assert described(f"{plain}:arrays").workers is None
    batches = batches_of(LoopJob(f"{plain}:arrays"))
    assert sum(first_rows(next(batches)) for _ in range(5)) > 100


FOUR = (
    "4 trainers, one feed gives {} times the samples/s of separate loaders, with {} times the CPU time per sample."
)


def compare(*speed: float, cpu: float, trainers: int = 4, kept: float | None = None) -> str:
    return sentence(Gain(trainers, Spread.of(speed), Spread.of([cpu]), Spread.of([1.0]), kept), 20)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (compare(2.9, 3.1, 3.3, cpu=0.3), f"With {FOUR.format('3.1 (2.9–3.3)', 0.3)}"),
        (
            compare(0.99, 1.01, cpu=0.4, kept=0.97),
            f"Sharing saves CPU time here, and brings no speed: with {FOUR.format('1 (0.99–1.01)', 0.4)} "
            "Loading is not what limits training here: with steps of 20 ms, separate loaders keep up.",
        ),
        (
            compare(0.98, 1.02, 1.3, cpu=0.99, kept=0.5),
            f"Sharing brings nothing here: with {FOUR.format('1.02 (0.98–1.3)', 0.99)}",
        ),
        (compare(0.8, cpu=1.1), f"Sharing slows this down: with {FOUR.format(0.8, 1.1)}"),
        (
            compare(1.1, cpu=0.9, trainers=1),
            "With 1 trainer, a feed gives 1.1 times the samples/s of the loader alone, with 0.9 times the "
            "CPU time per sample. Run with -k 2 or more to see what sharing brings.",
        ),
    ],
)
def test_the_sentence_says_what_sharing_brings_and_when_it_brings_nothing(said, words):
    assert said == words


def report_of(settings: SharePlan, loader: UsersLoader) -> ShareReport:
    return ShareReport(benchmark="", machine=describe(), settings=settings, function="make_loader", loader=loader)


def add(report: ShareReport, kind: Kind, trainers: int, repeat: int, rate: float, cpu_s: float) -> None:
    samples, batches = (rate,) * trainers, (rate / 8,) * trainers
    figures = ShareFigures(kind, trainers, report.loader.workers, samples, batches, cpu_s, 99 << 30)
    report.add(named(kind, trainers), repeat, figures)


def test_a_feed_is_compared_with_separate_loaders_and_these_with_the_steps():
    report = report_of(SharePlan(step_ms=8), UsersLoader("", 2, 8, None))
    add(report, "separate", 2, 0, 100.0, 2.0)
    add(report, "shared", 2, 0, 300.0, 1.0)
    gain = compared(report, 2)
    assert (gain.together.median, gain.cpu.median, gain.steps_kept) == (3.0, 0.5, pytest.approx(100 / 8 * 8e-3))


@pytest.mark.parametrize(
    ("workers", "says"),
    [
        (2, "The loader has 2 workers: with more trainers than that, a loader each has one"),
        (None, "It is no DataLoader: each trainer with a source of its own runs the whole source"),
    ],
)
def test_what_to_know_about_the_figures_stands_below_them(workers, says, capsys):
    settings = SharePlan(trainers=(64,), repeats=2)
    report = report_of(settings, UsersLoader("DataLoader(" + "A" * 90, workers, 8, None))
    report.sentence = "So it is."
    for kind, k in (("alone", 1), ("separate", 64), ("shared", 64)):
        for repeat in range(2):
            add(report, kind, k, repeat, 123456.7 + repeat, 12.3)
    console(width=80).print(shown(report), soft_wrap=True)
    printed = capsys.readouterr().out
    assert says in " ".join(printed.split())
    assert all(len(line.rstrip()) <= 80 for line in printed.splitlines())
    assert "123,457 (123,457–123,458)" in printed and "7,901,261" in printed and "101,376" in printed
