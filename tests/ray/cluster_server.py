"""A Ray cluster on this machine, in a process of its own: tests import no Ray, which may end the process it is in.

Orders are lines of JSON, and each is answered with one: ``{"add": {…}}`` starts a node with these environment
variables, ``{"remove": 3}`` ends one, ``{"end": true}`` ends all. The first argument is JSON, too: ``port`` (0 for
any), ``address`` of its machine, ``store`` in bytes, the folder for its files, and the ``nodes`` to begin with.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import psutil
from ray.cluster_utils import Cluster

order = json.loads(sys.argv[1])
nodes: dict[int, Any] = {}


def options_of(environment: dict[str, str]) -> dict[str, Any]:
    return {
        "node_ip_address": order["address"],
        "object_store_memory": order["store"],
        "env_vars": environment,
        "include_log_monitor": False,
    }


def add(cluster: Cluster, environment: dict[str, str]) -> dict[str, Any]:
    node = cluster.add_node(num_cpus=1, **options_of(environment))
    pid = node.all_processes["raylet"][0].process.pid
    nodes[pid] = node
    return {"raylet": pid, "id": node.node_id}


def main() -> None:
    head = {"num_cpus": 0, "include_dashboard": False, "temp_dir": order["folder"], **options_of({})}
    if order["port"]:
        head["gcs_server_port"] = order["port"]
    cluster = Cluster(initialize_head=True, head_node_args=head)
    processes = cluster.head_node.all_processes
    answer: dict[str, Any] = {
        "address": cluster.address,
        "gcs": processes["gcs_server"][0].process.pid,
        "raylet": processes["raylet"][0].process.pid,
        "nodes": [add(cluster, environment) for environment in order["nodes"]],
    }
    try:
        print(json.dumps(answer), flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            if "add" in asked:
                answer = add(cluster, asked["add"])
            elif "remove" in asked:
                cluster.remove_node(nodes.pop(asked["remove"]), allow_graceful=False)
                answer = {}
            else:
                break
            print(json.dumps(answer), flush=True)
    finally:
        started = psutil.Process().children(recursive=True)
        for node in nodes.values():
            node.kill_all_processes(check_alive=False, allow_graceful=False)
        cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
        for process in started:
            if process.is_running():
                process.kill()
        psutil.wait_procs(started)


if __name__ == "__main__":
    main()
