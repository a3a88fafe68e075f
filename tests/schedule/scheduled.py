"""`penstock schedule run` as a process, and trainings of numbers that write down what happens to them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.forked import ForkServer, eventually
from tests.runs.running import Launch

TRAIN = """
import os, sys, time
from pathlib import Path
import numpy as np
import penstock

name, epochs, step_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
folder, more = Path(__file__).parent, sys.argv[4:]

def note(*what):
    with open(folder / "events", "a") as file:
        file.write(" ".join(map(str, (name, *what))) + "\\n")

def make():
    width = 1024 if "wide" in more else 1  # of 400 rows the window has less than one cycle
    rows = np.arange(400 * width).reshape(400, width) // width + int(os.environ.get("SHIFT", 0))
    return penstock.ArraySource(rows, batch_size=40)

def others():
    words = [line.split() for line in (folder / "events").read_text().splitlines()]
    going = {each[0] for each in words if each[1] == "began"} - {each[0] for each in words if each[1] == "ended"}
    return going - {name}

if __name__ == "__main__":
    note("began", os.environ.get("CUDA_VISIBLE_DEVICES", "-"))
    if "fails" in more:
        sys.exit("it cannot be")
    if "full" in more and not (folder / f"{name}.was-full").exists():
        while "began" not in (folder / "events").read_text().replace(f"{name} began", ""):
            time.sleep(0.02)
        while "later" in more and not (folder / "burst").exists():
            time.sleep(0.02)
        (folder / f"{name}.was-full").touch()
        sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    sys.executable = os.environ.get("STARTS_FEEDERS", sys.executable)
    loader = penstock.share(make, "numbers", linger=0.5, **({"window": "2MiB"} if "wide" in more else {}))
    for epoch in range(epochs):
        seen = []
        for batch in loader:
            seen += batch[:, 0].tolist()
            time.sleep(step_s * (5 if "fights" in more and others() else 1))
            while "holds" in more and not (folder / "go").exists():
                time.sleep(0.02)
        assert len(seen) == 400 and len(set(seen)) == 400, len(seen)
        note("epoch", epoch, loader.name)
    note("ended")
    loader.close()
"""


class Scheduled(Launch):
    """A `penstock schedule run`, with a store of its own."""

    def __init__(self, server: ForkServer, folder: Path, *words: str, **environment: str) -> None:
        more = {"COLUMNS": "200", **environment}
        self._run(server, folder, "penstock", ["schedule", "run", *words], more)

    def wait_until_failed(self, text: str) -> None:
        """Wait until it has said this on its standard error."""
        eventually(lambda: text in self.errors or self.ended, f"never said {text!r}: {self.errors}")
        assert text in self.errors, self.errors

    @property
    def events(self) -> list[list[str]]:
        """What the trainings wrote down, in words."""
        return events(self.folder)


def events(folder: Path) -> list[list[str]]:
    path = folder / "events"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def counted(folder: Path, what: str) -> Counter[str]:
    """How often each training did something."""
    return Counter(words[0] for words in events(folder) if words[1] == what)


def spec(folder: Path, *runs: str | dict[str, Any], gpus: int = 2, **group: Any) -> str:
    """Write a file of trainings: each by the words of its command, or its keys."""
    (folder / "train.py").write_text(TRAIN)
    found = [
        {"command": f"train.py {run}", "name": run.split()[0]} if isinstance(run, str) else run for run in runs
    ]
    machine = {"gpus": gpus, "simulated": True, "memory": "16GiB"}
    (folder / "spec.yaml").write_text(json.dumps({"machine": machine, "groups": [{"runs": found, **group}]}))
    return str(folder / "spec.yaml")
