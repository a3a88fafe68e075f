"""The Ray cluster that this process may use."""

from __future__ import annotations

import os
import socket
from importlib import import_module
from typing import Any

from penstock.errors import BadSetting

OPEN = "PENSTOCK_RAY_OPEN"
_NAMESPACE = "penstock"
_LOOPBACK = {"127.0.0.1", "::1"}
"""Addresses that Ray binds to alone; for any other, 127.0.0.2 too, it listens everywhere."""
_ANSWERS_S = 5.0


def connected() -> Any:
    """Connect to the cluster that ``RAY_ADDRESS`` names, or to that of this machine; return Ray.

    Raises:
        BadSetting: anybody who reaches it may run programs there.
    """
    address = os.environ.get("RAY_ADDRESS") or "auto"
    host, _, port = address.rpartition(":")
    if port.isdecimal() and "/" not in host:  # Ray would try for half a minute where nobody listens
        socket.create_connection((host.strip("[]"), int(port)), _ANSWERS_S).close()
    ray: Any = import_module("ray")
    try:
        ray.init(address=address, namespace=_NAMESPACE, log_to_driver=False, logging_level="ERROR")
    except ConnectionError as error:
        raise ConnectionError(f"{error}: is its RAY_AUTH_TOKEN another one, or not set here?") from error
    guarded = os.environ.get("RAY_AUTH_MODE") == "token" or os.environ.get(OPEN) == "1"
    hosts = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    if not guarded and (reached := hosts - _LOOPBACK):
        raise BadSetting(
            f"the Ray cluster at {min(reached)} lets everybody who reaches it run programs as you. Start it with "
            f"RAY_AUTH_MODE=token on each machine, or bind it to 127.0.0.1; {OPEN}=1 uses it as it is"
        )
    return ray
