"""What saves at a signal below `accelerate launch` has its time, and gets the signal once."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from tests.forked import eventually
from tests.frameworks.processes import PYTHON

SCRIPT = """
import signal, sys, time
from accelerate import Accelerator
def save(number, _):
    print("told", signal.Signals(number).name, flush=True)
    time.sleep(2.5)
    print("saved", flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, save), signal.signal(signal.SIGUSR1, save)
Accelerator()
print("ready", flush=True)
while True: time.sleep(0.05)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_handler_below_accelerate_has_its_time(tmp_path: Path, name: str):
    (tmp_path / "train.py").write_text(SCRIPT)
    command = (PYTHON, "-m", "accelerate.commands.launch", "--cpu", "train.py")
    options = ("--store", "store", "--listeners", "none")
    with (tmp_path / "out").open("wb") as out:
        run = subprocess.Popen(
            (PYTHON, "-m", "penstock", "run", *options, "--", *command), cwd=tmp_path, stdout=out, stderr=out
        )
    try:
        eventually(lambda: "ready" in (tmp_path / "out").read_text())
        run.send_signal(signal.Signals[name])
        assert run.wait(60) != 0
    finally:
        run.terminate()  # which ends all of the run
        run.wait()
    printed = (tmp_path / "out").read_text().split("ready")[1].split()
    assert printed[:3] == ["told", name, "saved"] and "told" not in printed[3:], printed
