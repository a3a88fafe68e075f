"""Forks trainers and feeders, which need not import then what all of them do: that takes longer than most tests.

Its arguments are a directory and more modules to import. It reads orders, a line of JSON each: a script to run,
with its arguments, environment and process group, and the file for its output. It answers with the new process's
pid. How that one ended, as ``Popen.returncode`` would say it, is then in a file of the directory, its pid's.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

DIRECTORY = Path(sys.argv[1])
running: set[int] = set()


def reap(*_: object) -> None:
    """Tell how those that have ended did."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        running.remove(pid)
        part = DIRECTORY / f"{pid}.part"
        part.write_text(str(os.waitstatus_to_exitcode(status)))
        part.rename(DIRECTORY / str(pid))


def forked() -> dict[str, Any]:
    """Fork for every order; it is returned in the child."""
    for line in sys.stdin:
        order = json.loads(line)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        if (pid := os.fork()) == 0:
            return order
        running.add(pid)
        (DIRECTORY / str(pid)).unlink(missing_ok=True)  # of one that had this number before
        if order["process_group"] is not None:
            os.setpgid(pid, order["process_group"])
        os.write(1, f"{pid}\n".encode())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    for pid in running:  # the tests have ended, or were killed
        os.kill(pid, signal.SIGKILL)
    sys.exit()


def become(order: dict[str, Any]) -> None:
    """Let nothing of the server be seen."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    with open(os.devnull) as nothing, open(order["output"], "wb") as output:
        for file, fd in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(file.fileno(), fd)
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = [order["script"], *order["arguments"]]


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, reap)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with its standard input
    for module in ("penstock.feed.feeder.feeder", "penstock.feed.launch.share", "sources", *sys.argv[2:]):
        importlib.import_module(module)
    become(order := forked())
    runpy.run_path(order["script"], run_name="__main__")
