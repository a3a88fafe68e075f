"""What ``penstock doctor ray`` finds: whether there is a cluster, and what each of its nodes can do for a feed."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.basics.sizes import size_text
from penstock.doctor.devices import Finding
from penstock.errors import BadSetting
from penstock.sources.remote.connecting import connected, on_node
from penstock.sources.remote.engine import in_words
from penstock.sources.remote.maker import other_versions, versions

_BLOCK_BYTES = 16 << 20
_ANSWER_S = 30.0


def examine_ray() -> list[Finding]:
    """Connect to the cluster, and have each of its nodes send a block."""
    return list(_findings())


def _findings() -> Iterator[Finding]:
    if importlib.util.find_spec("ray") is None:
        yield Finding("Ray", "fails", "not installed", 'pip install "penstock[ray]"')
        return
    address = os.environ.get("RAY_ADDRESS")
    try:
        ray = connected()
    except BadSetting as error:
        yield Finding("cluster", "fails", str(error))
        return
    except Exception as error:  # whatever Ray raises where there is no cluster
        where = f"at RAY_ADDRESS={address}" if address else "on this machine"
        remedy = "ray start --head --port 6379, and on other machines ray start --address HEAD:6379"
        yield Finding("cluster", "fails", f"there is none {where}: {in_words(error)}", remedy)
        return
    try:
        yield Finding("cluster", "works", f"{ray.get_runtime_context().gcs_address}, Ray {ray.__version__}")
        token = os.environ.get("RAY_AUTH_MODE") == "token"
        found = "with a token" if token else "without a token"
        yield Finding(
            "who may enter", "works" if token else "limited", found, "" if token else "RAY_AUTH_MODE=token"
        )
        for node in ray.nodes():
            yield _node(ray, node)
    finally:
        ray.shutdown()


def _node(ray: Any, node: dict[str, Any]) -> Finding:
    name, resources = f"node {node['NodeName']}", node["Resources"]
    if not node["Alive"]:
        return Finding(name, "limited", "Ray takes it for dead", "ray start --address on it again")
    if not resources.get("CPU"):
        return Finding(name, "limited", "it has no cores for blocks", "ray start --num-cpus N")
    asked: Any = ray.remote(_probe).options(num_cpus=0, max_retries=0, **on_node(node["NodeID"]))
    try:
        theirs, _ = ray.get(asked.remote(), timeout=_ANSWER_S)
        began = time.perf_counter()
        ray.get(asked.remote(), timeout=_ANSWER_S)
        took_s = time.perf_counter() - began
    except Exception as error:  # whatever Ray raises
        remedy = "look whether Penstock is installed there, and reaches this machine"
        return Finding(name, "fails", f"it makes no block: {in_words(error)}", remedy)
    if differ := other_versions(theirs, versions(), "this machine"):
        return Finding(name, "fails", differ, "install the same versions on all machines")
    store = size_text(int(resources.get("object_store_memory", 0)))
    speed = f"a block of {size_text(_BLOCK_BYTES)} takes {took_s * 1000:.0f} ms"
    return Finding(name, "works", f"{int(resources['CPU'])} cores, store of {store}, {speed}")


def _probe() -> tuple[tuple[str, ...], Any]:
    return versions(), np.zeros(_BLOCK_BYTES, np.uint8)
