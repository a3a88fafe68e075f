"""The parent's side of measured processes: starts them, gives orders, waits for answers, ends them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

import psutil

from penstock.errors import PenstockError
from penstock.linux.process import in_words, unlink_shared_memory

START_S = 90.0
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Environment of processes that are to take one core each for arithmetic."""


class MemberFailed(PenstockError):
    """Raised when a measured process died, failed, or did not answer in time."""

    def __init__(self, text: str, kind: str = "", message: str = "", traceback_text: str = "") -> None:
        super().__init__(text)
        self.kind = kind  # type of the error that the process reports; empty if it reports none
        self.message = message  # message of that error
        self.traceback_text = traceback_text  # traceback of that error


class MeasuredProcess:
    """One measured process that answers orders with lines of JSON."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], log: IO[bytes]) -> None:
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, **environment},
        )
        self._heard: deque[dict[str, Any]] = deque()
        self._unread = b""
        self.pid = self._process.pid

    def send(self, message: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it died, as the next hear() reports

    def fileno(self) -> int:
        """Return the descriptor of its answers, to wait for several processes at once."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def hear(self, deadline: float) -> dict[str, Any]:
        """Wait for its next answer."""
        while not self._heard:
            ready, _, _ = select.select([self], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise MemberFailed(f"process {self.pid} gave no answer in time")
            packet = os.read(self.fileno(), 1 << 16)
            *lines, self._unread = (self._unread + packet).split(b"\n")
            for line in lines:
                with suppress(ValueError):  # a library printed something
                    answer = json.loads(line)
                    if isinstance(answer, dict):
                        self._heard.append(answer)  # pyright: ignore[reportUnknownArgumentType]
            if not packet and not self._heard:
                raise MemberFailed(f"process {self.pid} {in_words(self._process.wait())}")
        answer = self._heard.popleft()
        if "error" in answer:
            message, kind = answer["error"], answer.get("kind", "")
            raise MemberFailed(f"{kind}: {message}", kind, message, answer.get("traceback_text", ""))
        return answer

    def hear_of(self, key: str, deadline: float) -> dict[str, Any]:
        """Wait for its next answer with this key; others are late answers to an earlier order."""
        while key not in (answer := self.hear(deadline)):
            pass
        return answer

    def end_input(self) -> None:
        """Ask it to end."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def close(self, *, kill: bool = False) -> None:
        """Wait until it has ended; kill it if it does not, or at once with ``kill``."""
        assert self._process.stdout is not None
        self.end_input()
        try:
            self._process.wait(0 if kill else 10)
        except subprocess.TimeoutExpired:
            _kill(self._process)
        self._process.stdout.close()


class ProcessPool:
    """Measured processes that are started once and take part in many measurements.

    Use it as a context manager: at its end all have ended. Their standard error
    goes to a file in ``folder``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._members: list[MeasuredProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.dismiss(list(self._members), kill=kind is not None)

    def start(
        self, command: Sequence[str], count: int = 1, environment: dict[str, str] | None = None
    ) -> list[MeasuredProcess]:
        """Start ``count`` more processes of one command."""
        members: list[MeasuredProcess] = []
        with open(self._folder / "errors.log", "ab") as log:
            for _ in range(count):
                members.append(MeasuredProcess(command, environment or {}, log))
                self._members.append(members[-1])
        return members

    def dismiss(self, members: Iterable[MeasuredProcess], *, kill: bool = False) -> None:
        """End some of the processes; ``kill`` ends them at once."""
        ending = list(members)
        for member in ending:
            member.end_input()
        for member in ending:
            member.close(kill=kill)
            self._members.remove(member)

    def errors(self) -> str:
        """Return the end of what they wrote to standard error."""
        path = self._folder / "errors.log"
        return path.read_text(errors="replace")[-3000:] if path.exists() else ""


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children, such as a loader's workers."""
    found = [process.pid]
    with suppress(psutil.NoSuchProcess):
        found += [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    unlink_shared_memory(found)
