"""Counts the files of Penstock that one batch of JPEGs passes, from the file on disk to the training loop.

``python -m benchmarks.batch_path`` feeds some images, and lists the files in which a function is called once
for each batch: in the feeder, its workers and the trainer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

ROOT = Path(__file__).parents[1]
BATCHES = 400
COUNTING = """
import os, sys, threading
from collections import Counter

calls, ours = Counter(), os.path.join("src", "penstock") + os.sep
path = os.path.join(os.environ["BATCH_PATH"], f"{os.getpid()}.txt")

def count(frame, event, arg):
    if event == "call":
        file = frame.f_code.co_filename
        if ours in file:
            calls[file] += 1
            if not sum(calls.values()) % 500:
                with open(path + ".new", "w") as out:
                    out.writelines(f"{times} {file}\\n" for file, times in list(calls.items()))
                os.replace(path + ".new", path)

threading.setprofile(count)
sys.setprofile(count)
"""
READING = f"""
import sys, penstock
images = lambda: penstock.ImageSource(sys.argv[1], size=64, batch_size=4, workers=1)
loader = penstock.share(images, "batch-path", batch_size=4, linger=0.5)
batches = 0
while batches < {BATCHES}:
    for batch in loader:
        batches += 1
"""


def files_passed() -> list[str]:
    """Return the files in which something is called for each batch, from the folder of the package."""
    import simplejpeg

    with tempfile.TemporaryDirectory() as folder:
        images, site, counts = Path(folder, "images"), Path(folder, "site"), Path(folder, "counts")
        for each in (images, site, counts):
            each.mkdir()
        for number in range(80):
            (images / f"{number}.jpg").write_bytes(simplejpeg.encode_jpeg(np.full((90, 120, 3), number, np.uint8)))
        (site / "sitecustomize.py").write_text(COUNTING)
        script = Path(folder, "read.py")
        script.write_text(READING)
        environment = {**os.environ, "PYTHONPATH": f"{site}:{ROOT / 'src'}", "BATCH_PATH": str(counts)}
        subprocess.run([sys.executable, script, images], env=environment, check=True)
        passed: set[str] = set()
        for process in counts.glob("*.txt"):
            lines = (line.split(" ", 1) for line in process.read_text().splitlines())
            calls = Counter({file: int(times) for times, file in lines})
            passed |= {file for file, times in calls.items() if times >= BATCHES * 0.9}
    return sorted(file.partition("src/penstock/")[2] for file in passed)


def main(out: Annotated[Path | None, typer.Option("--json", help="File for the list.")] = None) -> None:
    """Count the files, and list them."""
    passed = files_passed()
    Console().print("\n".join([*passed, f"{len(passed)} files"]))
    if out is not None:
        out.write_text(json.dumps(passed, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
