"""Processes that are forked from one that has imported what they need."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

HANG_S = 60.0
SERVER = Path(__file__).parent / "fork_server.py"


def eventually(what: Callable[[], Any], why: str = "it never came to pass") -> Any:
    """Wait until ``what()`` is true; only a hang makes this fail."""
    deadline = time.monotonic() + HANG_S
    while not (found := what()):
        assert time.monotonic() < deadline, why
        time.sleep(0.005)
    return found


class ForkServer:
    """A process that imports ``modules``, from ``path`` too, and forks; it is started when it is needed."""

    def __init__(self, answers: Path, modules: list[str], path: Path = Path(__file__).parent) -> None:
        self.answers = answers
        self._command = [sys.executable, "-W", "error", SERVER, answers, path, *modules]
        self._ours, self._theirs = socket.socketpair()  # now, or a test would be blamed for its descriptor
        self._process: subprocess.Popen[bytes] | None = None
        self._one_at_a_time = threading.Lock()

    def fork(self, **order: Any) -> int:
        """The pid of a process that carries it out; a file of that name will hold its exit status."""
        with self._one_at_a_time:
            if self._process is None:
                self._process = self._start()
            self._ours.sendall(json.dumps(order).encode() + b"\n")
            return int(self._ours.recv(100))

    def _start(self) -> subprocess.Popen[bytes]:
        # It is no process of this test's; and has one thread, or not all that it forks were whole.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        del environment["PENSTOCK_DIR"]
        with self._theirs as theirs:
            return subprocess.Popen(self._command, stdin=theirs, stdout=theirs, env=environment)

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()
        if self._process is not None:
            self._process.wait()


class Forked:
    """A process that runs a script, or a module, on its own."""

    def __init__(
        self,
        server: ForkServer,
        run: str,
        arguments: Sequence[str],
        output: Path,
        *,
        errors: Path | None = None,
        directory: Path | None = None,
        environment: dict[str, str] | None = None,
        process_group: int | None = None,
    ) -> None:
        self._output = output
        for file in (output, errors or output):
            file.touch()
        self.pid = server.fork(
            run=run,
            arguments=list(arguments),
            output=str(output),
            errors=str(errors or output),
            directory=str(directory or Path.cwd()),
            environment=dict(os.environ) if environment is None else environment,
            process_group=process_group,
        )
        self._status = server.answers / str(self.pid)

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    @property
    def ended(self) -> bool:
        return self._status.exists()

    def signal(self, name: str) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.Signals[name])

    def kill(self) -> None:
        self.signal("SIGKILL")
        self.wait()

    def wait(self) -> int:
        """The exit status; negative for a signal."""
        eventually(lambda: self.ended, f"process {self.pid} hangs: {self.output}")
        return int(self._status.read_text())
