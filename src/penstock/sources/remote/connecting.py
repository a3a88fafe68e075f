"""Connects to a Ray cluster, unless anybody who reaches it may run programs there."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.errors import BadSetting

OPEN = "PENSTOCK_RAY_OPEN"
NAMESPACE = "penstock"
_ANSWER_S = 3.0
_STRANGER_S = 10.0
_ASKS_AS_A_STRANGER = """
import sys
from ray._raylet import GcsClient  # ray.init() tries a wrong token for 20 s
from ray.exceptions import AuthenticationError
try:
    GcsClient(address=sys.argv[1]).check_alive([], 3.0)
    print("let in")
except AuthenticationError:
    print("refused")
"""
_LOOPBACK = {"127.0.0.1", "::1"}
"""Addresses that Ray binds to alone; for any other, 127.0.0.2 too, it listens everywhere."""


def connected() -> Any:
    """Connect to the cluster that ``RAY_ADDRESS`` names, or to that of this machine; return Ray."""
    _check_answers()
    ray: Any = import_module("ray")
    address = os.environ.get("RAY_ADDRESS") or "auto"
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    except ConnectionError as error:
        raise ConnectionError(
            f"{error}: if the cluster has a token, set RAY_AUTH_MODE=token and that RAY_AUTH_TOKEN here"
        ) from error
    hosts: set[str] = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    reached = hosts - _LOOPBACK if os.environ.get(OPEN) != "1" else None
    if reached and not _refuses_strangers(ray.get_runtime_context().gcs_address):
        raise BadSetting(
            f"the Ray cluster at {min(reached)} lets everybody who reaches it run programs as you. Start it with "
            "RAY_AUTH_MODE=token on each machine, or, for this machine alone, with "
            f"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0, which is to be set here too; {OPEN}=1 uses it as it is"
        )
    return ray


def _refuses_strangers(address: str) -> bool:
    """Whether the cluster refuses a wrong token: with the right one, or none, it would answer here in any case."""
    if os.environ.get("RAY_AUTH_MODE") != "token":
        return False  # and was let in
    wrong = os.environ | {"RAY_AUTH_TOKEN": secrets.token_hex(32)}
    ask = [sys.executable, "-c", _ASKS_AS_A_STRANGER, address]
    try:
        asked = subprocess.run(ask, env=wrong, capture_output=True, text=True, timeout=_STRANGER_S, check=False)
        answer, why = asked.stdout.strip(), asked.stderr.strip().rpartition("\n")[2]
    except subprocess.TimeoutExpired:
        answer, why = "", f"no answer in {_STRANGER_S:.0f} s"
    if answer not in {"refused", "let in"}:
        raise ConnectionError(f"whether the cluster at {address} refuses a wrong token cannot be found out: {why}")
    return answer == "refused"


def _check_answers() -> None:
    """Raise ConnectionError if no head listens: Ray itself would try for minutes."""
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        with suppress(OSError):  # Ray says that there is no cluster
            folder = os.environ.get("RAY_TMPDIR", os.environ.get("TMPDIR", "/tmp"))
            address = Path(folder, "ray", "ray_current_cluster").read_text().strip()
    host, _, port = (address or "").rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
        except OSError as error:
            raise ConnectionError(f"no Ray head answers at {address}: {error.strerror or error}") from None


def on_node(node: str) -> dict[str, Any]:
    """Return the options of a Ray task or actor that runs on a node, and nowhere else."""
    strategies = import_module("ray.util.scheduling_strategies")
    return {"scheduling_strategy": strategies.NodeAffinitySchedulingStrategy(node, soft=False)}
