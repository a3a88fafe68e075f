"""Scripts of each framework: how they are started, groups of them on one feed, and what they saw."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.frameworks.processes import FOLDER, PYTHON, environment_in, stopped_feeds

ROWS, EPOCHS = 48, 5


@dataclass(frozen=True)
class Script:
    """A script as its user would start it."""

    command: str
    """A script and words of its own."""
    batch_sizes: tuple[int, int] = (8, 12)  # of two runs. What stays whole batches is one feed for one size only.
    drop_last: bool = False  # whether the script leaves out the rows that fill no batch
    ordered: bool = True  # whether it validates in the data set's order
    ranks: int = 1  # processes that train one model; they report into files of their own
    pads: bool = False  # whether its ranks see some rows twice, for batches that are full
    launcher: str = ""  # words that stand before: a module of the environment's Python and its options
    options: tuple[str, ...] = ()  # what ``share`` needs beside itself
    other: str = ""  # a word and its value that let a run make its samples differently

    @property
    def usual(self) -> list[list[str]]:
        """Two runs that differ in learning rate and batch size."""
        return [
            ["--lr", str(lr), "--batch-size", str(size)]
            for lr, size in zip((0.1, 0.08), self.batch_sizes, strict=True)
        ]

    def words(self, out: Path) -> list[str]:
        return [str(PYTHON), *self.launcher.split(), *self.of_itself(out)]

    def of_itself(self, out: Path) -> list[str]:
        script, *words = self.command.split()
        return [str(FOLDER / script), *words, "--out", str(out)]


TORCHRUN = "-m torch.distributed.run --standalone --nproc-per-node 2"
LAUNCH = (  # on CPUs, --multi_gpu is what starts several processes
    "-m accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no "
    "--dynamo_backend no --main_process_port 0"
)
SCRIPTS = {
    "timm": Script("train_timm.py", (8, 10), drop_last=True, other="--size 48"),
    "timm, prefetcher": Script("train_timm.py --prefetcher --multi-epochs", (8, 10), drop_last=True),
    "Accelerate": Script("train_line.py Accelerate"),
    # Its even_batches: of 48 rows 2 ranks get 3 batches of 16, the third both, or 4 of 10 and one of 8.
    "Accelerate, 2 ranks": Script("train_line.py Accelerate", (16, 10), ranks=2, pads=True, launcher=TORCHRUN),
    "accelerate launch, 2 ranks": Script("train_line.py Accelerate", ranks=2, launcher=LAUNCH),
    "Trainer, padded": Script("train_trainer.py --collation padded", other="--scale 2"),
    "Trainer, dynamic padding": Script("train_trainer.py --collation dynamic", (8, 8)),
    "Trainer, grouped by length": Script("train_trainer.py --collation grouped", (8, 8), ordered=False),
    "Lightning": Script("train_lightning.py"),
    "Lightning, 2 ranks": Script("train_lightning.py --ranks 2", ranks=2),
    "Fabric": Script("train_line.py Fabric"),
    "torchdata": Script("train_line.py torchdata"),
    "datasets": Script("train_line.py datasets"),
    "webdataset": Script("train_line.py webdataset", options=("iterable",)),
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

    @property
    def sizes(self) -> list[list[int]]:
        return [[len(batch) for batch in batches] for batches in self.epochs.values()]


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


def reports_in(folder: Path, runs: int, ranks: int) -> list[Report]:
    """What each process has said up to now: all ranks of the first run, then all of the second."""
    files = ["", *(f".{rank}" for rank in range(1, ranks))]
    return [read(folder / f"{i}.report{file}") for i in range(runs) for file in files]


class Group:
    """Runs of a script that start together on one feed, and may each wait for ``release`` at some steps."""

    def __init__(
        self, folder: Path, data: Path, script: Script, runs: list[list[str]], hold_at: tuple[int, ...]
    ) -> None:
        self._folder, self._script, self._count, self._hold_at = folder, script, len(runs), [*hold_at]
        spec, self._said = folder / "group.yaml", folder / "said"
        shared = dict.fromkeys(script.options, True) or True
        commands = [[*script.words(folder / f"{i}.report"), *run] for i, run in enumerate(runs)]
        spec.write_text(
            json.dumps({"groups": [{"runs": [{"command": each, "share": shared} for each in commands]}]})
        )
        command = [PYTHON, "-m", "penstock", "run", "--store", folder / "store", spec]
        environment = environment_in(folder, data) | {"FRAMEWORKS_HOLD": " ".join(map(str, hold_at))}
        with self._said.open("wb") as said:
            pipes = {"stdin": subprocess.DEVNULL, "stdout": said, "stderr": said}
            self._process = subprocess.Popen(command, cwd=folder, env=environment, **pipes)

    @property
    def said(self) -> str:
        return self._said.read_text(errors="replace")

    @property
    def decoded(self) -> Counter[int]:
        """How often each row of the training set was made, by whatever process."""
        return Counter(map(int, (self._folder / "decoded").read_text().split()))

    def held(self) -> list[Report]:
        """Wait until every process holds at its next step."""

        def held() -> list[Report] | None:
            assert self._process.poll() is None, self.said
            found = reports_in(self._folder, self._count, self._script.ranks)
            return found if all(report.batches == self._hold_at[0] for report in found) else None

        while not (reports := held()):
            time.sleep(0.05)
        return reports

    def release(self) -> None:
        (self._folder / f"released-{self._hold_at.pop(0)}").touch()

    def ended(self, *, exit_code: int = 0) -> list[Report]:
        """Wait for the end of all; then end their feed, which would go on."""
        code = self._process.wait()
        stopped_feeds()
        assert code == exit_code, self.said
        return reports_in(self._folder, self._count, self._script.ranks)


def each_row_once_an_epoch(script: Script, reports: list[Report], epochs: int = EPOCHS) -> None:
    """Check that the ranks of each run together saw all rows, or what fills whole batches of them."""
    for run in range(len(reports) // script.ranks):
        ranks = reports[run * script.ranks : (run + 1) * script.ranks]
        for epoch in range(epochs):
            batches = [batch for report in ranks for batch in report.epochs[epoch]]
            rows = sorted(id for batch in batches for id in batch)
            if script.pads:
                assert {*rows} == {*range(ROWS)}
            elif script.drop_last:
                (size,) = {len(batch) for batch in batches}
                assert len(rows) == ROWS // size * size == len(set(rows))
            else:
                assert rows == [*range(ROWS)]
