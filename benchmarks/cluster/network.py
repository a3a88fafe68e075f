"""Machines as network namespaces of this one, each with a link of a given rate: only root can make them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psutil
from benchmarks.cluster.machines import STORE_BYTES

_BRIDGE, _HEAD = "penstock0", "10.99.0.1"
_PORT = 6399
_SESSIONS = Path("/tmp/ray")
_FILTERS = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
_RAY = str(Path(sys.executable).with_name("ray"))
_START_S = 60.0


class Network:
    """A head in this namespace, and a machine with a node of one core and a link of a rate in each of others."""

    def __init__(self, folder: Path, machines: int, mbit_per_s: int | None) -> None:
        self._folder = folder  # where their files of Ray lie
        _SESSIONS.mkdir(exist_ok=True)
        self._spaces = [f"penstock{i + 1}" for i in range(machines)]
        self._nodes: list[subprocess.Popen[bytes]] = []
        self._machines: list[subprocess.Popen[bytes]] = []
        os.environ.update(RAY_ADDRESS=f"{_HEAD}:{_PORT}", RAY_AUTH_MODE="disabled", PENSTOCK_RAY_OPEN="1")
        self._filters = _FILTERS.read_text() if _FILTERS.exists() else ""
        if self._filters:
            _FILTERS.write_text("0")  # else the machine's rules for forwarding hold between its namespaces
        _do(f"ip link add {_BRIDGE} type bridge")
        _do(f"ip addr add {_HEAD}/24 dev {_BRIDGE}")
        _do(f"ip link set {_BRIDGE} up")
        self._ray(f"--head --port {_PORT} --node-ip-address {_HEAD} --num-cpus 0 --include-dashboard false")
        for i, space in enumerate(self._spaces):
            (folder / space).mkdir()
            self._link(space, f"10.99.0.{i + 2}", mbit_per_s)
            self._machines.append(self._booted(space))
            where = f"--address {_HEAD}:{_PORT} --node-ip-address 10.99.0.{i + 2}"
            self._ray(f"{where} --num-cpus 1 --object-store-memory {STORE_BYTES}", self.enter(i))

    def enter(self, machine: int) -> list[str]:
        """Return the words before a command that runs on a machine."""
        (init,) = psutil.Process(self._machines[machine].pid).children()
        return ["nsenter", "--all", "--target", str(init.pid)]

    def cut(self, machine: int, *, off: bool = True) -> None:
        """Pull a machine's cable, or put it back."""
        _do(f"ip link set {self._spaces[machine]}o {'down' if off else 'up'}")

    def close(self) -> None:
        for process in [*self._machines, *self._nodes]:  # a machine's end is that of all its processes
            process.kill()
            process.wait()
        for space in self._spaces:
            subprocess.run(["ip", "link", "del", f"{space}o"], check=False)
            subprocess.run(["ip", "netns", "del", space], check=False)
        subprocess.run(["ip", "link", "del", _BRIDGE], check=False)
        if self._filters:
            _FILTERS.write_text(self._filters)

    def _booted(self, space: str) -> subprocess.Popen[bytes]:
        """Start the first process of a machine, which has processes, files of Ray and a name of its own."""
        own = shlex.quote(str(self._folder / space))
        begin = f"hostname {space} && mount --bind {own} {_SESSIONS} && exec sleep infinity"
        apart = shlex.split("unshare --pid --fork --kill-child --mount-proc --mount --uts sh -c")
        machine = subprocess.Popen(["ip", "netns", "exec", space, *apart, begin])
        while not any("sleep" in each.name() for each in psutil.Process(machine.pid).children()):
            time.sleep(0.01)
        return machine

    def _link(self, space: str, address: str, mbit_per_s: int | None) -> None:
        """Connect a new namespace with the bridge."""
        _do(f"ip netns add {space}")
        _do(f"ip link add {space}o type veth peer name {space}i")
        _do(f"ip link set {space}o master {_BRIDGE} up")
        _do(f"ip link set {space}i netns {space}")
        inside = f"ip netns exec {space}"
        for command in (
            "ip link set lo up",
            f"ip addr add {address}/24 dev {space}i",
            f"ip link set {space}i up",
            f"ip route add default via {_HEAD}",
        ):
            _do(f"{inside} {command}")
        if mbit_per_s:
            for at in (f"tc qdisc add dev {space}o", f"{inside} tc qdisc add dev {space}i"):
                _do(f"{at} root tbf rate {mbit_per_s}mbit burst 256kbit latency 200ms")

    def _ray(self, options: str, before: list[str] | None = None) -> None:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        words = [*(before or []), _RAY, "start", "--block", *shlex.split(options)]
        self._nodes.append(subprocess.Popen(words, **quiet))
        until = time.monotonic() + _START_S
        while subprocess.run(
            [_RAY, "health-check", "--address", f"{_HEAD}:{_PORT}"], check=False, **quiet
        ).returncode:
            if time.monotonic() > until:
                raise RuntimeError("the head of the cluster does not answer")


@contextmanager
def network(machines: int, mbit_per_s: int | None = None) -> Generator[Network]:
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
        found = Network(Path(folder), machines, mbit_per_s)
        try:
            yield found
        finally:
            found.close()


def _do(command: str) -> None:
    subprocess.run(shlex.split(command), check=True, capture_output=True)
