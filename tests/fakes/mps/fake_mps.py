"""MPS on the machine of ``tests.fakes.nvml.fake_gpus``: the tests' side."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.fakes.nvml.fake_gpus import FakeGpus

PROGRAM = Path(__file__).with_name("nvidia-cuda-mps-control")
CLIENT = Path(__file__).with_name("client.py")


class FakeMps:
    """What daemons there were, and what they were asked."""

    def __init__(self, folder: Path, runtime: str, gpus: FakeGpus) -> None:
        folder.mkdir()
        self.folder = folder  # where the fakes' state lies
        self.runtime = runtime  # the user's folder for what lives as long as he is logged in; its path is short
        programs = folder / "programs"
        programs.mkdir()
        # Which python3 the PATH has, and what that imports by itself, takes longer than what it does here.
        program = programs / PROGRAM.name
        program.write_text(f"#!{sys.executable} -IS\n{PROGRAM.read_text()}")
        program.chmod(0o700)
        repository = str(Path(__file__).parents[3])
        self.environment = {
            **gpus.environment,
            "FAKE_MPS": str(folder),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "XDG_RUNTIME_DIR": runtime,
            "PYTHONPATH": f"{repository}{os.pathsep}{gpus.environment['PYTHONPATH']}",
        }
        """Variables with which a process finds the program, and its default pipe directory here."""

    def asked(self) -> list[dict[str, Any]]:
        """List what happened, in order: daemons started, clients connected, commands given."""
        file = self.folder / "asked"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def daemons(self) -> list[dict[str, Any]]:
        return [each for each in self.asked() if "started" in each]

    def commands(self, pipes: str) -> list[str]:
        return [each["command"] for each in self.asked() if each["pipes"] == pipes and "command" in each]

    def start(self) -> None:
        """Start a daemon at the default pipe directory, as a stranger would."""
        command = [sys.executable, str(PROGRAM), "-d"]
        subprocess.run(command, env={**os.environ, **self.environment}, stdin=subprocess.DEVNULL, check=True)

    def ask(self, command: str, **environment: str) -> str:
        """Ask a daemon, as a stranger would: that at the default pipe directory, unless told otherwise."""
        return subprocess.run(
            [sys.executable, str(PROGRAM)],
            input=command,
            env={**os.environ, **self.environment, **environment},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
