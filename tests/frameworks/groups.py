"""Scripts in an environment of their own: groups of those of ``scripts``, those of pages, and what they saw."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from penstock.feed.launch import feeds

PYTHON = Path(os.environ.get("PENSTOCK_FRAMEWORKS") or Path(sys.prefix) / "frameworks/bin/python")
ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).with_name("scripts")
WATCHED = FOLDER / "watched.py"
ROWS, EPOCHS = 48, 5


@dataclass(frozen=True)
class Script:
    """A script as its user would start it."""

    command: str
    """Words: a module of the environment's Python and its options, or none, and the script and its own."""
    batch_sizes: tuple[int, int] = (8, 12)  # of two runs. What stays whole batches is one feed for one size only.
    drop_last: bool = False  # whether the script leaves out the rows that fill no batch
    ordered: bool = True  # whether it validates in the data set's order
    ranks: int = 1  # processes that train one model; they report into files of their own
    options: tuple[str, ...] = ()  # what ``share`` needs beside itself

    @property
    def usual(self) -> list[list[str]]:
        """Two runs that differ in learning rate and batch size."""
        return [
            ["--lr", str(lr), "--batch-size", str(size)]
            for lr, size in zip((0.1, 0.08), self.batch_sizes, strict=True)
        ]

    def words(self, out: Path) -> list[str]:
        words = [str(FOLDER / word) if word.endswith(".py") else word for word in self.command.split()]
        return [str(PYTHON), *words, "--out", str(out)]


SCRIPTS = {
    "timm": Script("train_timm.py", (8, 10), drop_last=True),
    "timm, prefetcher": Script("train_timm.py --prefetcher --multi-epochs", (8, 10), drop_last=True),
    "Accelerate": Script("train_accelerate.py"),
    "Accelerate, 2 ranks": Script(
        "-m torch.distributed.run --standalone --nproc-per-node 2 train_accelerate.py", ranks=2
    ),
    "accelerate launch, 2 ranks": Script(  # on CPUs, --multi_gpu is what starts several processes
        "-m accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no "
        "--dynamo_backend no --main_process_port 0 train_accelerate.py",
        ranks=2,
    ),
    "Trainer, padded": Script("train_trainer.py --collation padded"),
    "Trainer, dynamic padding": Script("train_trainer.py --collation dynamic", (8, 8)),
    "Trainer, grouped by length": Script("train_trainer.py --collation grouped", (8, 8), ordered=False),
    "Lightning": Script("train_lightning.py"),
    "Lightning, 2 ranks": Script("train_lightning.py --ranks 2", ranks=2),
    "Fabric": Script("train_fabric.py"),
    "torchdata": Script("train_torchdata.py"),
    "datasets": Script("train_datasets.py"),
    "webdataset": Script("train_webdataset.py", options=("iterable",)),
}


@dataclass
class Report:
    """What a process of a script saw, step by step."""

    pid: int = 0
    len: int | None = None
    epochs: dict[int, list[list[int]]] = field(default_factory=dict[int, list[list[int]]])
    values: dict[int, list[float]] = field(default_factory=dict[int, list[float]])
    kinds: set[str] = field(default_factory=set[str])
    validated: list[list[int]] = field(default_factory=list[list[int]])
    metrics: list[float] = field(default_factory=list[float])
    steps: int | None = None

    @property
    def batches(self) -> int:
        return sum(map(len, self.epochs.values()))


def read(path: Path) -> Report:
    """Read a report that may still be written."""
    report = Report()
    for line in path.read_text().splitlines(keepends=True) if path.exists() else []:
        what, value = json.loads(line) if line.endswith("\n") else (None, None)
        match what:
            case "batch":
                report.epochs.setdefault(value["epoch"], []).append(value["ids"])
                report.kinds.add(json.dumps(value["kind"]))
                for id, content in zip(value["ids"], value["values"], strict=True):
                    report.values.setdefault(id, []).append(content)
            case "validated":
                report.validated.append(value)
            case "metric":
                report.metrics.append(value)
            case "end":
                report.steps = value
            case "pid" | "len":
                setattr(report, what, value)
            case _:
                pass
    return report


class Group:
    """Runs of a script that start together, on one feed or alone, and may wait for ``release`` at a step."""

    def __init__(
        self, folder: Path, data: Path, script: Script, runs: list[list[str]], *, share: bool, hold_at: int = 0
    ) -> None:
        self._folder, self._script, self._count, self._hold_at = folder, script, len(runs), hold_at
        self._decoded = folder / "decoded"
        self._decoded.touch()
        environment = environment_in(folder) | {
            "FRAMEWORKS_DATA": str(data),
            "FRAMEWORKS_DECODED": str(self._decoded),
            "FRAMEWORKS_HOLD": f"{folder / 'released'}:{hold_at}" if hold_at else "",
        }
        commands = [[*script.words(folder / f"{i}.report"), *run] for i, run in enumerate(runs)]
        if share:
            spec = folder / "group.yaml"
            shared = dict.fromkeys(script.options, True) or True
            planned = [{"command": command, "share": shared} for command in commands]
            spec.write_text(json.dumps({"groups": [{"runs": planned}]}))
            commands = [[str(PYTHON), "-m", "penstock", "run", "--store", str(folder / "store"), str(spec)]]
        self._said = [folder / f"{i}.said" for i in range(len(commands))]
        self._processes: list[subprocess.Popen[bytes]] = []
        for command, path in zip(commands, self._said, strict=True):
            with path.open("wb") as said:
                pipes = {"stdin": subprocess.DEVNULL, "stdout": said, "stderr": said}
                self._processes.append(subprocess.Popen(command, cwd=folder, env=environment, **pipes))

    @property
    def said(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in self._said)

    @property
    def decoded(self) -> Counter[int]:
        """How often each row of the training set was made, by whatever process."""
        return Counter(map(int, self._decoded.read_text().split()))

    def reports(self) -> list[Report]:
        """What each process has said up to now: all ranks of the first run, then all of the second."""
        ranks = ["", *(f".{rank}" for rank in range(1, self._script.ranks))]
        return [read(self._folder / f"{i}.report{rank}") for i in range(self._count) for rank in ranks]

    def held(self) -> list[Report]:
        """Wait until every process holds at its step."""
        while not (reports := self._held()):
            time.sleep(0.05)
        return reports

    def release(self) -> None:
        (self._folder / "released").touch()

    def ended(self, *, exit_codes: tuple[int, ...] = (0,)) -> list[Report]:
        """Wait for the end of all, each with one of these exit codes; then end their feed, which would go on."""
        codes = [process.wait() for process in self._processes]
        stopped_feeds()
        assert all(code in exit_codes for code in codes), self.said
        return self.reports()

    def _held(self) -> list[Report]:
        assert all(process.poll() is None for process in self._processes), self.said
        reports = self.reports()
        return reports if all(report.batches == self._hold_at for report in reports) else []


def each_row_once_an_epoch(script: Script, reports: list[Report], epochs: int = EPOCHS) -> None:
    """Check that the ranks of each run together saw all rows, or what fills whole batches of them."""
    for run in range(len(reports) // script.ranks):
        ranks = reports[run * script.ranks : (run + 1) * script.ranks]
        for epoch in range(epochs):
            batches = [batch for report in ranks for batch in report.epochs[epoch]]
            rows = sorted(id for batch in batches for id in batch)
            if script.drop_last:
                (size,) = {len(batch) for batch in batches}
                assert len(rows) == ROWS // size * size == len(set(rows))
            else:
                assert rows == [*range(ROWS)]


def prepare(folder: Path) -> None:
    """Make the scripts' data."""
    ran(folder, FOLDER / "make_data.py", folder, FRAMEWORKS_DECODED="/dev/null")


def ran(folder: Path, *words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the environment's Python in a folder, to its end."""
    assert PYTHON.exists(), "make test-frameworks makes the environment"
    env = environment_in(folder) | environment
    done = subprocess.run([PYTHON, *words], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def environment_in(folder: Path) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONWARNINGS"}},
        "COLUMNS": "200",
        "HF_HOME": str(folder / "huggingface"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }


def code_of(page: str) -> list[str]:
    """Return the Python of a page, block by block."""
    blocks = (ROOT / "docs" / page).read_text().split("\n```python\n")[1:]
    return [block.partition("\n```")[0] + "\n" for block in blocks]


class Run:
    """A process, or some ranks, of a script of a page's; it may be killed at a step."""

    def __init__(self, folder: Path, code: str, words: Sequence[str], ranks: int = 1, killed_at: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        script = folder.parent / "page.py"
        script.write_text(code)
        self._noted = folder / "noted"
        distributed = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        launcher = distributed if ranks > 1 else []
        self._said = folder / "said"
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [PYTHON, *launcher, WATCHED, self._noted, script, *words],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd=folder.parent,
                env=environment_in(folder) | {"FRAMEWORKS_KILLED_AT": str(killed_at)},
            )

    def steps(self, *, exit_code: int = 0) -> list[list[list[int]]]:
        """Wait for its end; return the rows of each step, of each rank."""
        assert self._process.wait() == exit_code, self._said.read_text()
        files = sorted(self._noted.parent.glob("noted.*"))
        return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def stopped_feeds() -> list[str]:
    """End the feeds that linger; return their names."""
    names = [feed.name for feed in feeds.feeds()]
    for name in names:
        feeds.stop(name)
    return names


def rows_of(steps: list[list[int]]) -> list[int]:
    return [*chain(*steps)]
