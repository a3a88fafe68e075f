"""Clusters of the tests' own, and what a feed's cluster consists of."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from tests.forked import eventually

SERVER = Path(__file__).with_name("cluster_server.py")
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""With this, Ray takes 127.0.0.1 for an address at which nodes listen; else only for a name of another one."""


class Node(NamedTuple):
    """A node that makes blocks: its raylet's pid, its name in Ray, and what its environment has besides."""

    raylet: int
    id: str
    environment: dict[str, str]

    def worker(self) -> int | None:
        """The pid of its worker that makes blocks, if there is one."""
        return started_by(self.raylet, "ray::NodeMaker")


class RayCluster:
    """A head without cores, and nodes of one core each.

    Args:
        nodes: Environment of each node.
        port: Port of its head; 0 for any.
        address: Address at which its head and nodes listen.
        store_bytes: Size of each node's object store.
        environment: What all of its processes have besides in their environment.
    """

    def __init__(
        self,
        nodes: Sequence[dict[str, str]] = ({}, {}),
        *,
        port: int = 0,
        address: str = "127.0.0.1",
        store_bytes: int = 100 << 20,
        **environment: str,
    ) -> None:
        self.folder = tempfile.mkdtemp(prefix="ray")  # of short name: it holds sockets
        os.mkdir(f"{self.folder}/ray")  # Ray writes the address of the newest cluster there
        order = {
            "nodes": list(nodes),
            "port": port,
            "address": address,
            "store": store_bytes,
            "folder": self.folder,
        }
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        with open(f"{self.folder}/output", "w") as output:
            self._process = subprocess.Popen(
                [sys.executable, SERVER, json.dumps(order)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                env={
                    **inherited,
                    "RAY_USAGE_STATS_ENABLED": "0",
                    "RAY_TMPDIR": self.folder,
                    **LOOPBACK,
                    "RAY_worker_niceness": "0",  # at 15, as usual, trainers leave them no time to import torch
                    **environment,
                },
            )
        answer = self._answer()
        self.address: str = answer["address"]
        self.gcs: int = answer["gcs"]
        self.raylet: int = answer["raylet"]
        self.nodes = [Node(**each, environment=has) for each, has in zip(answer["nodes"], nodes, strict=True)]

    def add(self, **environment: str) -> Node:
        """Start another node."""
        self.nodes.append(Node(**self._ask({"add": environment}), environment=environment))
        return self.nodes[-1]

    def remove(self, node: Node) -> None:
        """Kill a node, if it is not dead, and forget it."""
        self.nodes.remove(node)
        self._ask({"remove": node.raylet})

    def close(self) -> None:
        """Kill all of it, if that was not done."""
        if self._process.returncode is None:
            self._process.communicate(json.dumps({"end": True}))
            shutil.rmtree(self.folder)

    def makers(self) -> list[int]:
        """The pids of workers that make blocks, or wait to."""
        return [pid for node in self.nodes if (pid := node.worker()) is not None]

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, Path(self.folder, "output").read_text()
        return json.loads(line)


def started_by(pid: int, words: str) -> int | None:
    """The pid of a process that this one, or what it started, has started with such words, if there is one."""
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if words in " ".join(process.cmdline()):
                    return process.pid
    return None


def bridge_of(feeder: int) -> int | None:
    """The pid of a feeder's bridge, if there is one."""
    return started_by(feeder, "penstock.sources.remote.bridge")


def is_gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until_gone(*pids: int) -> None:
    """Wait for the end of processes."""
    eventually(lambda: all(map(is_gone, pids)), f"of {pids} some live on")


@contextmanager
def stopped(processes: list[psutil.Process]) -> Iterator[None]:
    """Let processes stand still."""
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.resume()
