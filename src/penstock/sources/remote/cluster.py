"""The Ray cluster that this process may use."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from penstock.errors import BadSetting

OPEN = "PENSTOCK_RAY_OPEN"
_NAMESPACE = "penstock"


def connected() -> Any:
    """Connect to the cluster that ``RAY_ADDRESS`` names, or to that of this machine; return Ray.

    Raises:
        BadSetting: anybody who reaches it may run programs there.
    """
    ray: Any = import_module("ray")
    ray.init(
        address=os.environ.get("RAY_ADDRESS") or "auto",
        namespace=_NAMESPACE,
        log_to_driver=False,
        logging_level="ERROR",
    )
    host = ray.get_runtime_context().gcs_address.rpartition(":")[0]
    guarded = os.environ.get("RAY_AUTH_MODE") == "token" or os.environ.get(OPEN) == "1"
    if not guarded and not host.strip("[]").startswith(("127.", "::1", "localhost")):
        raise BadSetting(
            f"the Ray cluster at {host} lets everybody who reaches it run programs as you. Start it with "
            f"RAY_AUTH_MODE=token on each machine, or on 127.0.0.1; {OPEN}=1 uses it as it is"
        )
    return ray
