"""Scripts of frameworks that need an environment each: what works with ``--share``, into JSON.

make test-frameworks-more makes the environments, and runs

python -m benchmarks frameworks_more --environments FOLDER --json benchmarks/results/frameworks-more.json
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import psutil
import typer
from benchmarks.claim import ResultsFile

from penstock.feed.launch import feeds
from penstock.runs.machine import describe

SCRIPTS = Path(__file__).with_name("scripts")
IMAGES, EPOCHS, WITHOUT_MOSAIC, STEPS = 12, 8, 2, 24


@dataclass
class Ran:
    """What runs that were started together did."""

    notes: list[list[tuple[str, Any]]] = field(default_factory=list[list[tuple[str, Any]]])
    """What each run's script noted, in order."""
    said: str = ""  # what all of them printed
    exit_code: int = 0  # of ``penstock run``
    made: Counter[int] = field(default_factory=Counter[int])  # how often each image was made, in whatever process
    feeds: list[str] = field(default_factory=list[str])  # names of the feeds that were left when they had ended

    def of(self, what: str) -> list[list[Any]]:
        """Return, of each run, all that it noted of a kind."""
        return [[value for noted, value in notes if noted == what] for notes in self.notes]


class Bench:
    """Runs scripts in the environment of a framework."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.python, self.folder = python, folder
        self._environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "PENSTOCK_DIR": os.environ["PENSTOCK_DIR"],
            "PENSTOCK_STORE": str(folder / "store"),
            "YOLO_CONFIG_DIR": str(folder),
            "YOLO_OFFLINE": "true",
        }
        self._groups = 0

    def runs(self, *commands: str, share: bool = True, options: tuple[str, ...] = ()) -> Ran:
        """Run commands at once, as one group; ``OUT`` in them is where a run notes what it sees."""
        self._groups += 1
        folder = self.folder / str(self._groups)
        folder.mkdir()
        words = [
            [str(self.python), *command.replace("OUT", str(folder / f"{i}.notes")).split()]
            for i, command in enumerate(commands)
        ]
        shared = dict.fromkeys(("explain", *options), True) if share else False
        spec = folder / "group.yaml"
        spec.write_text(json.dumps({"groups": [{"runs": [{"command": each, "share": shared} for each in words]}]}))
        (folder / "made").touch()
        ended = subprocess.run(
            [self.python, "-m", "penstock", "run", spec],
            cwd=self.folder,
            env=self._environment | {"MADE": str(folder / "made")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        left = [feed.name for feed in feeds.feeds()]
        for name in left:
            feeds.stop(name)
        notes = [folder / f"{i}.notes" for i in range(len(commands))]
        return Ran(
            [[*map(json.loads, each.read_text().splitlines())] if each.exists() else [] for each in notes],
            ended.stdout,
            ended.returncode,
            Counter(map(int, (folder / "made").read_text().split())),
            left,
        )


def whole_epochs(batches: list[Any]) -> bool:
    """Tell whether each epoch of a run has every image once."""
    return all(
        sorted(id for batch in batches if batch["epoch"] == epoch for id in batch["ids"]) == [*range(IMAGES)]
        for epoch in range(EPOCHS)
    )


def ultralytics(bench: Bench) -> dict[str, bool]:
    subprocess.run([bench.python, SCRIPTS / "draw_squares.py", bench.folder / "data"], check=True)
    script = f"{SCRIPTS / 'train_ultralytics.py'} --out OUT --data {bench.folder / 'data' / 'data.yaml'}"
    alone = bench.runs(f"{script} --lr 0.001", f"{script} --lr 0.002", share=False)
    together = bench.runs(f"{script} --lr 0.001", f"{script} --lr 0.002")
    batches, by_itself = together.of("batch"), alone.of("batch")
    killed = bench.runs(f"{script} --kill-at 4", f"{script} --lr 0.002")
    apart = bench.runs(script, f"{script} --imgsz 96")
    yolo = (
        f"{bench.python.with_name('yolo')} detect train model=yolo11n.yaml data={bench.folder}/data/data.yaml "
        "imgsz=64 epochs=2 batch=4 workers=1 device=cpu plots=False pretrained=False amp=False close_mosaic=1 "
        f"optimizer=SGD project={bench.folder}"
    )
    commands = bench.runs(f"{yolo} name=one lr0=0.01", f"{yolo} name=two lr0=0.02")
    losses = [abs(a[0] / b[0] - 1) for a, b in zip(together.of("loss"), alone.of("loss"), strict=True)]
    return {
        "both end, with as many steps as without": [len(run) for run in batches] == [STEPS] * 2
        and [len(run) for run in by_itself] == [STEPS] * 2
        and together.exit_code == 0,
        "each sees every image once an epoch": all(map(whole_epochs, batches)),
        "both read one feed, and one of another name once mosaic is closed": together.said.count("reads feed") == 4
        and len(together.feeds) <= 2,
        "no mosaic comes once it is closed, and nothing else before": all(
            set(batch["mosaics"]) == {batch["epoch"] < EPOCHS - WITHOUT_MOSAIC} for run in batches for batch in run
        ),
        # Each of two feeds may be an epoch ahead when its runs leave it, and its workers more than another.
        "images are made for one run, not for two": max(together.made.values()) <= EPOCHS + 5,
        "validation is in the same order": together.of("validated") == alone.of("validated"),
        "len, types and dtypes are those without": together.of("len") == alone.of("len")
        and all(batch["kinds"] == by_itself[0][0]["kinds"] for run in batches for batch in run),
        "the last loss is within a third of that without": max(losses) < 1 / 3,
        "a run goes on when the other is killed": killed.exit_code != 0 and whole_epochs(killed.of("batch")[1]),
        "image sizes never meet": len({batch["size"] for batch in apart.of("batch")[0]}) == 1
        and [run[0]["size"] for run in apart.of("batch")] == [64, 96]
        and apart.exit_code == 0,
        "two yolo commands read one feed": commands.exit_code == 0 and commands.said.count("reads feed") == 4,
    }


def declines(script: str, reason: str, *options: str) -> Callable[[Bench], dict[str, bool]]:
    """Return what checks that a script is declined, once and in one line, and trains as ever."""

    def check(bench: Bench) -> dict[str, bool]:
        ran = bench.runs(str(SCRIPTS / script), options=options)
        lines = [line for line in ran.said.splitlines() if reason in line]
        return {
            f"declined in one line: {reason}": len(lines) == 1 and "penstock:" in lines[0],
            "trains as ever": ran.exit_code == 0 and "steps: 12" in ran.said,
            "reads no feed": "reads feed" not in ran.said,
        }

    return check


CHECKS = {
    "Ultralytics 8.4.190": ("ultralytics", ultralytics),
    "fastai 2.8.12": (
        "fastai",
        declines("train_fastai.py", "loaders of fastai.data.load are neither watched nor shared"),
    ),
    "mmengine 0.10.7": ("mmengine", declines("train_mmengine.py", "BaseDataElement cannot travel")),
    "like detectron2": (
        "mmengine",
        declines("train_like_detectron2.py", "nothing tells whether an IterableDataset is for training"),
    ),
    "like detectron2, --iterable": (
        "mmengine",
        declines("train_like_detectron2.py", "Instances cannot travel", "iterable"),
    ),
}


def main(
    environments: Annotated[Path, typer.Option(help="Folder with an environment for each.")],
    file: ResultsFile = None,
    only: Annotated[str, typer.Option(help="Frameworks whose name begins so.")] = "",
) -> None:
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PENSTOCK_DIR"] = folder + "/feeds"
        for name, (environment, check) in CHECKS.items():
            if not name.startswith(only):
                continue
            made = Path(folder) / name.replace(" ", "-")
            made.mkdir()
            try:
                results[name] = check(Bench((environments / environment / "bin/python").absolute(), made))
            except Exception:
                traceback.print_exc()
                results[name] = {"could be checked": False}
            results[name]["nothing is left"] = not [*feeds.feeds()] and not alive(folder)
            print(json.dumps({name: results[name]}, indent=2), flush=True)
    if file:
        machine = msgspec.to_builtins(describe())
        file.write_text(json.dumps({"frameworks": results, "machine": machine}, indent=2) + "\n")
    sys.exit(not all(all(checks.values()) for checks in results.values()))


def alive(folder: str) -> list[psutil.Process]:
    """Return the processes that were started with something in this folder, after a while to end."""
    mine = [process for process in psutil.process_iter() if folder in " ".join(_words(process))]
    return psutil.wait_procs(mine, timeout=15)[1]


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
