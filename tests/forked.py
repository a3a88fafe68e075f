"""Processes that are forked from one that has imported what they need."""

from __future__ import annotations

import json
import os
import platform
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

HANG_S = 90.0
posix_spawn = os.posix_spawn
SERVER = Path(__file__).parent / "fork_server.py"
FORKING_PYTHON = Path(__file__).parent / "forking_python.py"


def eventually(what: Callable[[], Any], why: str | Callable[[], str] = "it never came to pass") -> Any:
    """Wait until ``what()`` is true; only a hang makes this fail, and says why, or what ``why()`` is then."""
    deadline, pause_s = time.monotonic() + HANG_S, 0.005
    while not (found := what()):
        assert time.monotonic() < deadline, why if isinstance(why, str) else why()
        time.sleep(pause_s)
        pause_s = min(1.1 * pause_s, 0.03)  # each look may open a store
    return found


class ForkServer:
    """A process that imports ``modules``, from ``path`` too, and forks; it is started when it is needed."""

    def __init__(
        self,
        answers: Path,
        modules: list[str],
        path: Path = Path(__file__).parent,
        python: Sequence[str] = (sys.executable, "-W", "error"),
        environment: dict[str, str] | None = None,
    ) -> None:
        self.answers = answers
        self._ours, self._theirs = socket.socketpair()  # now, or a test would be blamed for its descriptor
        self._feeders = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._feeders.bind(str(answers / "feeders"))
        self._feeders.listen(64)
        self._python = answers / "python"
        self._python.write_text(f"#!{python[0]} -IS\n{FORKING_PYTHON.read_text()}")
        self._python.chmod(0o700)
        self._command = [*python, SERVER, answers, self._feeders.fileno(), path, *modules]
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = os.getpid()
        self._one_at_a_time = threading.Lock()

    def fork(self, **order: Any) -> int:
        """The pid of a process that carries it out; a file of that name will hold its exit status."""
        with self._one_at_a_time:
            if self._process is None:
                self._process = self._start()
            self._ours.sendall(json.dumps(order).encode() + b"\n")
            return int(self._ours.recv(100))

    @property
    def python(self) -> str:
        """An executable with which ``share`` starts a feeder that is forked, and has imported the modules."""
        with self._one_at_a_time:
            if self._process is None:
                self._process = self._start()
        return str(self._python)

    def spawn(self, path: str, arguments: Sequence[str], environment: Any, **options: Any) -> int:
        """In place of ``os.posix_spawn`` for a Python that runs a program: a child that has the modules."""
        known = platform.machine() in {"x86_64", "aarch64"}  # else the server knows no way
        if path != sys.executable or not known or os.getpid() != self._pid:  # a forked child wants its own child
            return posix_spawn(path, arguments, environment, **options)
        file_actions = options["file_actions"]
        fds = {fd: fd for fd in range(3)} | {number: fd for _, fd, number in file_actions}
        order = {"arguments": arguments[1:], "environment": dict(environment), "directory": os.getcwd()}
        with self._one_at_a_time:
            if self._process is None:
                self._process = self._start()
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
                asked.connect(str(self.answers / "feeders"))
                socket.send_fds(
                    asked, [json.dumps({**order, "fds": [*fds], "is_child": True}).encode()], [*fds.values()]
                )
                return int(asked.recv(100))

    def _start(self) -> subprocess.Popen[bytes]:
        # It is no process of this test's; and has one thread, or not all that it forks were whole.
        environment = {**(self._environment or os.environ), "OPENBLAS_NUM_THREADS": "1"}
        environment.pop("PENSTOCK_DIR", None)
        with self._theirs as theirs, self._feeders as feeders:
            command = list(map(str, self._command))
            return subprocess.Popen(
                command, stdin=theirs, stdout=theirs, env=environment, pass_fds=[feeders.fileno()]
            )

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()
        self._feeders.close()
        if self._process is not None:
            self._process.wait()


def command_line(
    server: ForkServer,
    folder: Path,
    words: Sequence[str],
    environment: dict[str, str],
    directory: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``penstock`` to its end; what it prints lies in a folder of the call's own meanwhile."""
    out, errors = folder / "out", folder / "errors"
    ran = Forked(server, "penstock", words, out, errors=errors, directory=directory, environment=environment)
    return subprocess.CompletedProcess(words, ran.wait(), out.read_text(), errors.read_text())


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
        forks_feeders: bool = False,
    ) -> None:
        self._output, self._errors = output, errors or output
        for file in (self._output, self._errors):
            file.touch()
        self.pid = server.fork(
            run=run,
            arguments=list(arguments),
            output=str(output),
            errors=str(self._errors),
            directory=str(directory or Path.cwd()),
            environment=dict(os.environ) if environment is None else environment,
            process_group=process_group,
            forks_feeders=forks_feeders,
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
        eventually(lambda: self.ended, self._hangs)
        return int(self._status.read_text())

    def _hangs(self) -> str:
        self.signal("SIGABRT")  # it writes where its threads stand
        deadline = time.monotonic() + 5
        while not self.ended and time.monotonic() < deadline:
            time.sleep(0.05)
        written = [file.read_text(errors="replace") for file in {self._output, self._errors}]
        return f"process {self.pid} hangs: {chr(10).join(written)}"
