"""Forks processes, which need not import then what all of them do: that takes longer than most tests.

Its arguments are a directory for answers, a socket, a directory to import from, and modules to import. It reads
orders, a line of JSON each: a script or a module to run, with its arguments, directory, environment and process
group, and files for its output. It answers with the new process's pid. How that one ended, as ``Popen.returncode``
would say it, is then in a file of the directory for answers, named for the pid. For whoever asks at the socket, as
forking_python.py and ``ForkServer.spawn`` do, it forks feeders and workers.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import fcntl
import gc
import importlib
import json
import os
import platform
import runpy
import select
import signal
import socket
import sys
import threading
import types
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

ANSWERS = Path(sys.argv[1])
CLONE_PARENT = 0x8000
CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
running: dict[int, int] = {}
"""The number of each process that has not ended, by the descriptor that tells when it does."""


def forked() -> Callable[[], None]:
    """Fork for every order, and for every feeder; what is to be done then is returned in the child."""
    events = select.poll()
    events.register(0, select.POLLIN)
    with socket.socket(fileno=int(sys.argv[2])) as listener:
        events.register(listener, select.POLLIN)
        while True:
            for fd, _ in events.poll():
                if fd in running:
                    events.unregister(fd)
                    os.close(fd)
                    tell(running.pop(fd))
                    continue
                if fd == listener.fileno():
                    with listener.accept()[0] as starter:
                        request, fds, _, _ = socket.recv_fds(starter, 1 << 20, 64)
                        order = json.loads(request)
                        if (pid := sibling() if order["is_child"] else os.fork()) == 0:
                            return partial(become_python, order, fds)
                        with suppress(OSError):  # it was ended while it asked
                            starter.sendall(str(pid).encode())
                    for passed in fds:
                        os.close(passed)
                    if order["is_child"]:
                        continue
                elif line := sys.stdin.readline():  # one at a time: nothing waits in the buffer
                    order = json.loads(line)
                    if (pid := os.fork()) == 0:
                        return partial(become, order)
                    (ANSWERS / str(pid)).unlink(missing_ok=True)  # of one that had this number before
                    if order["process_group"] is not None:
                        os.setpgid(pid, order["process_group"])
                    os.write(1, f"{pid}\n".encode())
                else:  # the tests have ended, or were killed
                    for pid in running.values():
                        os.kill(pid, signal.SIGKILL)
                    sys.exit()
                ended = os.pidfd_open(pid)
                running[ended] = pid
                events.register(ended, select.POLLIN)


def tell(pid: int) -> None:
    """Tell how a process ended."""
    part = ANSWERS / f"{pid}.part"
    part.write_text(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
    part.rename(ANSWERS / str(pid))


def sibling() -> int:
    """Fork a child of this process's parent: whoever started this server waits for it, and may kill it."""
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = ctypes.PyDLL(None).syscall(CLONE, CLONE_PARENT, 0, 0, 0, 0)
    if pid:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    return pid


def become_python(request: dict[str, Any], fds: list[int]) -> None:
    """Be a Python with these arguments, which are a program's, descriptors, environment and directory."""
    alone()
    os.setsid()
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 1000) for fd in fds]
    os.closerange(3, 1000)
    for fd, number in zip(high, request["fds"], strict=True):
        os.dup2(fd, number)
    os.closerange(1000, 1100)
    settle(request["environment"], request["directory"])
    program = request["arguments"][2]  # after -P -c
    sys.argv = ["-c", *request["arguments"][3:]]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(program, main.__dict__)


def become(order: dict[str, Any]) -> Any:
    """Be what was ordered; return what its script holds at its end."""
    alone()
    with open(os.devnull) as nothing, open(order["output"], "ab") as output, open(order["errors"], "ab") as errors:
        for file, fd in ((nothing, 0), (output, 1), (errors, 2)):
            os.dup2(file.fileno(), fd)
    faulthandler.enable(2)  # one that hangs is asked by SIGABRT where it stands
    settle(order["environment"], order["directory"])
    if order["forks_feeders"]:
        sys.executable = str(ANSWERS / "python")
    new = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in sys.path]
    sys.path[1:1] = new
    for path in new:
        if os.path.exists(site := os.path.join(path, "sitecustomize.py")):
            runpy.run_path(site)
            break  # as Python, which finds the first
    sys.argv[1:] = order["arguments"]
    return run(order["run"])


def alone() -> None:
    """Let nothing of the server be heard."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for ended in running:
        os.close(ended)


def settle(environment: dict[str, str], directory: str) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)


def run(what: str) -> Any:
    if what.endswith(".py"):
        sys.argv[0], sys.path[0] = what, str(Path(what).parent)
        return runpy.run_path(what, run_name="__main__")
    sys.path[0] = os.getcwd()
    return runpy.run_module(what, run_name="__main__", alter_sys=True)


def end_with(what: Callable[[], Any]) -> None:
    """Do it, and end as Python does, but leave alone what was here before: it takes torch 0.2 s to fall apart."""
    held, code = None, 0
    try:
        held = what()
    except SystemExit as error:
        if not isinstance(error.code, int | None):
            raise
        held, code = error, error.code or 0
    threading._shutdown()  # pyright: ignore
    atexit._run_exitfuncs()
    del held
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the other end has gone; the script has closed it
            stream.flush()
    os._exit(code & 255)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with its standard input
    sys.path[0] = sys.argv[3]
    for module in sys.argv[4:]:
        importlib.import_module(module)
    gc.freeze()  # or each process would copy all of this when it looks for garbage
    end_with(forked())
