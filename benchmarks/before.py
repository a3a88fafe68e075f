"""What moves samples now, against another revision of this repository: both by turns, in one environment.

python -m benchmarks before ae6edcbc^ --data ../shared/data --json benchmarks/results/before.json

Both sides run the same script, which knows no more than the public API: four trainers of one feed, one trainer of
each kind of source, the time from publishing to receipt while all cores compute, a loop whose waits are recorded,
the page of 1,000 runs, and ``import penstock``. Ratios are of a turn's two figures, now over before. The page
needs what `make test-page` installs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from benchmarks.children import ENVIRONMENT, ROOT
from benchmarks.claim import ResultsFile, claim, report
from rich.console import Console

LEAST = 0.97
BATCHES = 100_000
SOURCES = """
import numpy as np, penstock

def arrays():
    return penstock.ArraySource({"x": np.zeros((20_000, 3072), "u1"), "y": np.arange(20_000)}, batch_size=64)
def numbers():
    return penstock.ArraySource({"y": np.arange(1_000_000)}, batch_size=64)
def jpegs():
    return penstock.ImageSource("images", size=224, batch_size=64)
def tar():
    return penstock.ImageSource("images.tar", size=224, batch_size=64)
def cached():
    cache = penstock.Cache("cache", "1MB", memory="3GB", keep="pixels")
    return penstock.ImageSource("images", size=224, batch_size=64, cache=cache)
def table():
    return penstock.RecordSource("table.parquet", batch_size=1024)
"""
READERS = """
import multiprocessing, os, sys, time
import numpy as np, penstock, sources
TOLD = sys.argv[5]
WARM, SECONDS = 40, 12.0 if TOLD == "p99" else 4.0

def trainer(kind, name, step, barrier, answers):
    step_s = 0.0 if step == "compute" else float(step)
    matrix = np.ones((256, 256), "f4")
    loader = penstock.share(getattr(sources, kind), name, linger=0)
    batches = (batch for _ in iter(int, 1) for batch in loader)
    for _ in range(WARM):
        next(batches)
    barrier.wait()
    began, rows, latencies = time.perf_counter(), 0, []
    while (took := time.perf_counter() - began) < SECONDS:
        batch = next(batches)
        rows += len(batch["y"] if isinstance(batch, dict) and "y" in batch else batch[0])
        latencies.append(loader.statistics().latency_s if TOLD == "p99" else 0.0)
        if step == "compute":
            for _ in range(100):
                matrix @ matrix
        elif step_s:
            time.sleep(step_s)
    answers.put((rows / took, float(np.percentile(np.unique(latencies), 99))))

def compute():
    while True:
        pass

if __name__ == "__main__":
    kind, trainers, step, busy = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    name = f"before-{os.getpid()}"
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(trainers), context.Queue()
    others = [context.Process(target=compute, daemon=True) for _ in range(busy)]
    given = kind, name, step, barrier, answers
    readers = [context.Process(target=trainer, args=given) for _ in range(trainers)]
    for each in (*others, *readers):
        each.start()
    rates, latencies = zip(*(answers.get(timeout=120) for _ in readers))
    for each in readers:
        each.join()
    print(max(latencies) if TOLD == "p99" else min(rates))
"""
LOOP = f"""
import time, torch
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.zeros({BATCHES})), batch_size=None)
for _ in loader:
    break
began = time.perf_counter()
for _ in loader:
    pass
print({BATCHES} / (time.perf_counter() - began))
"""
PAGE = """
import shutil, statistics, tempfile
from pathlib import Path
from benchmarks.page import ended, first_page, served
from penstock.runs.store import Store
from playwright.sync_api import sync_playwright
folder = tempfile.TemporaryDirectory()
with Store.open(Path(folder.name, "store")) as store, sync_playwright() as playwright:
    ended(store, "many", 1000, points=100, series=10, seconds=100)
    browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
    with served(store) as (url, _):
        print(1000 / statistics.median(first_page(browser, url)[1] for _ in range(3)))
    browser.close()
"""
IMPORT = """
import subprocess, sys, time
took = []
for _ in range(20):
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import penstock"], check=True)
    took.append(time.perf_counter() - began)
print(1 / sorted(took)[10])
"""
RECORDED = ("-m", "penstock", "run", "--store", "store", "--listeners", "none", "loop.py")
ARMS = {
    "four trainers, one feed: arrays": ("readers.py", "arrays", "4", "0", "0", "rate"),
    "four trainers, one feed: JPEGs": ("readers.py", "jpegs", "4", "0", "0", "rate"),
    "one trainer: arrays": ("readers.py", "arrays", "1", "0", "0", "rate"),
    "one trainer: hand-over of batches of 64 numbers": ("readers.py", "numbers", "1", "0", "0", "rate"),
    "one trainer: JPEGs": ("readers.py", "jpegs", "1", "0", "0", "rate"),
    "one trainer: JPEGs in a tar": ("readers.py", "tar", "1", "0", "0", "rate"),
    "one trainer: images from the cache": ("readers.py", "cached", "1", "0", "0", "rate"),
    "one trainer: table": ("readers.py", "table", "1", "0", "0", "rate"),
    "a loop with recorded waits": RECORDED,
    "page of 1,000 runs": ("page.py",),
    "import penstock": ("import.py",),
}
LATENCY = "publishing to receipt, p99, all cores busy"
DECODING = "publishing to receipt, p99, all cores decoding"
MOST = {LATENCY: 1.05, DECODING: 1.05}
ALL = {
    **ARMS,
    "four trainers that compute, one feed: JPEGs": ("readers.py", "jpegs", "4", "compute", "0", "rate"),
    LATENCY: ("readers.py", "arrays", "2", "0.002", "2", "p99"),
    DECODING: ("readers.py", "jpegs", "2", "0", "0", "p99"),
}


def measured(tree: Path, data: Path, words: tuple[str, ...]) -> float:
    """Run a script with a revision's package, in a folder of its own; return the figure that it prints last."""
    variables = {**os.environ, **ENVIRONMENT, "PYTHONPATH": f"{tree / 'src'}:{tree}"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for each in data.iterdir():
            (folder / each.name).symlink_to(each)
        done = subprocess.run(
            (sys.executable, *words), cwd=folder, env=variables, stdout=subprocess.PIPE, text=True, check=True
        )
    return float(done.stdout.split()[-1])


def write_data(folder: Path, images: Path) -> None:
    """Write the scripts and the table, and unpack the images."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    scripts = {"sources": SOURCES, "readers": READERS, "loop": LOOP, "page": PAGE, "import": IMPORT}
    for name, text in scripts.items():
        (folder / f"{name}.py").write_text(text)
    shutil.unpack_archive(images, folder, filter="data")
    (folder / "imagenet-sample").rename(folder / "images")
    shutil.copy(images, folder / "images.tar")
    rng = np.random.default_rng(0)
    columns = {f"x{number}": rng.standard_normal(2_000_000, "f4") for number in range(8)}
    pq.write_table(pa.table({**columns, "y": rng.integers(0, 10, 2_000_000)}), folder / "table.parquet")


def main(
    revision: Annotated[str, typer.Argument(help="What is measured against.")],
    data: Annotated[Path, typer.Option(help="Folder with imagenet-sample.tar.")],
    turns: int = 5,
    only: Annotated[str, typer.Option(help="Arms whose names hold one of these, with | between them.")] = "",
    file: ResultsFile = None,
) -> None:
    arms = {name: words for name, words in ALL.items() if any(each in name for each in only.split("|"))}
    figures = {arm: {"before": list[float](), "now": list[float]()} for arm in arms}
    console = Console()
    with tempfile.TemporaryDirectory() as temporary:
        made, tree = Path(temporary, "data"), Path(temporary, "tree")
        made.mkdir()
        write_data(made, data / "imagenet-sample.tar")
        archive = ["git", "archive", f"--output={temporary}/tree.tar", revision]
        subprocess.run(archive, cwd=ROOT, check=True)
        shutil.unpack_archive(f"{temporary}/tree.tar", tree, filter="data")
        sides = {"before": tree, "now": ROOT}
        for turn in range(turns):
            for arm, words in arms.items():
                for side in list(sides) if turn % 2 == 0 else list(sides)[::-1]:
                    figures[arm][side].append(measured(sides[side], made, words))
                said = ", ".join(f"{side} {found[-1]:,.4g}" for side, found in figures[arm].items())
                console.print(f"{turn + 1} of {turns}: {arm}: {said}", highlight=False)
    ratios = {arm: [a / b for a, b in zip(of["now"], of["before"], strict=True)] for arm, of in figures.items()}
    claims = [
        claim(f"{arm}: now over before", "×", ratio, least=LEAST, most=MOST.get(arm))
        for arm, ratio in ratios.items()
    ]
    now = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    groups = Path("/proc/sys/kernel/sched_autogroup_enabled")
    autogroup = groups.read_text().strip() if groups.exists() else ""
    report(claims, file, before=revision, now=now.stdout.strip(), autogroup=autogroup, figures=figures)
