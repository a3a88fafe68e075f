"""What an MPS control daemon is asked by way of ``nvidia-cuda-mps-control``."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection

PROGRAM = "nvidia-cuda-mps-control"


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
    servers = ask(pipes, "get_server_list")
    if servers is None:
        return None
    return {client: server for server in _pids(servers) for client in _pids(_listed(pipes, server))}


def end_clients(pipes: str, pids: Collection[int]) -> None:
    """Have the daemon end the contexts of those of these processes that are its clients.

    A client that dies with work under way may leave its server, and so the other clients, in any state.
    """
    for client, server in (clients(pipes) or {}).items():
        if client in pids:
            ask(pipes, f"terminate_client {server} {client}")


def _listed(pipes: str, server: int) -> list[str]:
    return ask(pipes, f"get_client_list {server}") or []


def _pids(lines: list[str]) -> list[int]:
    return [int(line) for line in lines if line.strip().isdecimal()]
