"""An MPS control daemon: commands to it, and ``python daemon.py LEASE_FD FOLDER UUID...``, which guards one.

The guard has the daemon as its child for as long as anybody holds the lease: it reports "ready" or what
went wrong, waits for the end of the pipe LEASE_FD, and leaves nothing behind,
not even the folder. If it is killed itself, the kernel kills the daemon.
"""

from __future__ import annotations

import os
import sys

if not __package__:  # started by its file: it needs little, and nothing of the run's own Python settings
    sys.path.insert(0, os.path.abspath(f"{__file__}/../../../.."))

import shutil
import subprocess
import time
from collections.abc import Collection
from pathlib import Path

from penstock.linux.process import adopt_orphans, descendants, die_with_parent, ignore_sent, kill_descendants, reap

PROGRAM = "nvidia-cuda-mps-control"
_START_S = 20.0
_QUIT_S = 5


def main(lease: int, pipes: str, uuids: str) -> None:
    """Start the daemon of a pipe directory on these GPUs, wait for the end of the lease, and end it."""
    adopt_orphans()
    ignore_sent()
    os.chdir("/")
    try:
        try:
            print(_start(pipes, uuids) or "ready", flush=True)
        except (OSError, subprocess.SubprocessError) as error:
            print(error, flush=True)
        os.read(lease, 1)
        ask(pipes, f"quit -t {_QUIT_S}", 2 * _QUIT_S)
        deadline = time.monotonic() + _QUIT_S
        while _lives() and time.monotonic() < deadline:
            time.sleep(0.02)
        kill_descendants()
    finally:
        shutil.rmtree(pipes, ignore_errors=True)


def _start(pipes: str, uuids: str) -> str:
    """Start the daemon; return what went wrong."""
    logs = Path(pipes, "log")
    logs.mkdir(mode=0o700)
    given = {"CUDA_VISIBLE_DEVICES": uuids, "CUDA_MPS_PIPE_DIRECTORY": pipes, "CUDA_MPS_LOG_DIRECTORY": str(logs)}
    guard = os.getpid()
    with open(logs / "start", "w+b") as output:  # a file, for the daemon does not close its descriptors
        daemon = subprocess.Popen(
            [PROGRAM, "-f"],  # in the foreground: it stays a child
            env={**os.environ, **given},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=lambda: die_with_parent(guard),  # noqa: PLW1509  # there are no threads here
        )
    deadline = time.monotonic() + _START_S
    while daemon.poll() is None and time.monotonic() < deadline:
        if ask(pipes, "get_server_list") is not None:
            return ""
        time.sleep(0.05)
    texts = [path.read_text(errors="replace") for path in (logs / "start", logs / "control.log") if path.exists()]
    lines = " ".join(texts).split()
    return " ".join(lines[-60:]) or f"it does not answer, and {PROGRAM} -f ended with {daemon.returncode}"


def _lives() -> bool:
    """Return whether anything lives below this process, once what has ended is reaped."""
    reap()
    return bool(descendants(os.getpid()))


def ask(pipes: str, command: str, timeout_s: float = 5.0) -> list[str] | None:
    """Send a command to the daemon of a pipe directory; return the lines of its answer, None if there is none."""
    try:
        done = subprocess.run(
            [PROGRAM],
            check=False,
            input=f"{command}\n",
            env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": pipes},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.splitlines() if done.returncode == 0 else None


def clients(pipes: str) -> dict[int, int] | None:
    """Return the daemon's clients, each with the server that serves it; None if the daemon does not answer."""
    if (servers := ask(pipes, "get_server_list")) is None:
        return None
    return {
        client: server for server in _pids(servers) for client in _pids(ask(pipes, f"get_client_list {server}"))
    }


def end_clients(pipes: str, pids: Collection[int]) -> None:
    """Have the daemon end the contexts of those of these processes that are its clients.

    A client that dies with work under way may leave its server, and so the other clients, in any state.
    """
    for client, server in (clients(pipes) or {}).items():
        if client in pids:
            ask(pipes, f"terminate_client {server} {client}")


def _pids(lines: list[str] | None) -> list[int]:
    return [int(line) for line in lines or () if line.strip().isdecimal()]


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
