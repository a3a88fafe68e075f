"""Forks processes, which need not import then what all of them do: that takes longer than most tests.

Its arguments are a directory for answers, one to import from, and the modules to import. It reads orders, a line
of JSON each: a script or a module to run, with its arguments, directory, environment and process group, and files
for its output. It answers with the new process's pid. How that one ended, as ``Popen.returncode`` would say it, is
then in a file of the directory for answers, named for the pid.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

ANSWERS = Path(sys.argv[1])
running: set[int] = set()


def reap(*_: object) -> None:
    """Tell how those that have ended did."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        running.remove(pid)
        part = ANSWERS / f"{pid}.part"
        part.write_text(str(os.waitstatus_to_exitcode(status)))
        part.rename(ANSWERS / str(pid))


def forked() -> dict[str, Any]:
    """Fork for every order; it is returned in the child."""
    for line in sys.stdin:
        order = json.loads(line)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        if (pid := os.fork()) == 0:
            return order
        running.add(pid)
        (ANSWERS / str(pid)).unlink(missing_ok=True)  # of one that had this number before
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
    with open(os.devnull) as nothing, open(order["output"], "ab") as output, open(order["errors"], "ab") as errors:
        for file, fd in ((nothing, 0), (output, 1), (errors, 2)):
            os.dup2(file.fileno(), fd)
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.path[1:1] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in sys.path]
    os.chdir(order["directory"])
    sys.argv[1:] = order["arguments"]


def run(what: str) -> None:
    if what.endswith(".py"):
        sys.argv[0], sys.path[0] = what, str(Path(what).parent)
        runpy.run_path(what, run_name="__main__")
    else:
        sys.path[0] = os.getcwd()
        runpy.run_module(what, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, reap)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with its standard input
    sys.path[0] = sys.argv[2]
    for module in sys.argv[3:]:
        importlib.import_module(module)
    gc.freeze()  # or each process would copy all of this when it looks for garbage
    become(order := forked())
    run(order["run"])
