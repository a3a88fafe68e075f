"""``python -m penstock.runs.elsewhere.on_ray CPUS GPUS [check]``: what srun is for Slurm, for a Ray cluster.

It starts a job's process on a node that has these free, and passes its pipes on; with ``check``, it only looks
whether a node is that large. It is the main module, so that Ray brings ``_RayProcess`` to nodes without Penstock.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread
from typing import Any

from penstock.errors import BadSetting
from penstock.runs.elsewhere import NODE, PART_BYTES
from penstock.sources.remote.connecting import connected


class _RayProcess:
    """A job's process on a node, which ends with the process that started it.

    One actor has all of its CPUs and GPUs: no placement group could pack them closer.
    """

    def __init__(self, module: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def write(self, data: bytes) -> None:
        """Write to its standard input; no bytes close it."""
        stdin: Any = self._process.stdin
        with suppress(BrokenPipeError):
            stdin.write(data)
            stdin.flush()
            if not data:
                stdin.close()

    def read(self, most_bytes: int) -> Iterator[tuple[int, bytes]]:
        """Yield what it prints, with the number of the descriptor; in the end -1, and its exit code."""
        pipes: list[Any] = [self._process.stdout, self._process.stderr]
        with selectors.DefaultSelector() as selector:
            for descriptor, pipe in enumerate(pipes, start=1):
                selector.register(pipe, selectors.EVENT_READ, descriptor)
            while selector.get_map():
                for key, _ in selector.select():
                    if data := os.read(key.fd, most_bytes):
                        yield key.data, data
                    else:
                        selector.unregister(key.fileobj)
        yield -1, b"%d" % self._process.wait()


def main(cpus: int, gpus: int, *, only_check: bool) -> None:
    """Be the connection between standard input and output and a node."""
    output = os.dup(1)
    os.dup2(2, 1)  # what Ray prints is no output of the job
    try:
        ray = connected()
    except BadSetting as error:
        sys.exit(str(error))
    except Exception as error:  # whatever Ray raises where there is no cluster
        where = os.environ.get("RAY_ADDRESS") or "this machine"
        why = str(error).strip().partition("\n")[0]
        sys.exit(f"no Ray cluster answers at {where}; start one (ray start --head), or set RAY_ADDRESS: {why}")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Ray's handler prints stacks
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
        there = ", ".join(sorted({f"{node.get('CPU', 0):g} and {node.get('GPU', 0):g}" for node in nodes}))
        sys.exit(
            f"no node of the Ray cluster is large enough for a job with --cpus {cpus} --gpus {gpus}: "
            f"they have, in CPUs and GPUs, {there}"
        )
    if not only_check:
        made = ray.remote(_RayProcess).options(num_cpus=cpus, num_gpus=gpus, max_concurrency=2)
        sys.exit(_connect(ray, made, output))


def _connect(ray: Any, actor: Any, output: int) -> int:
    process = actor.remote(NODE)

    def pass_input() -> None:
        while True:
            data = os.read(0, PART_BYTES)
            ray.get(process.write.remote(data))
            if not data:
                return

    Thread(target=pass_input, daemon=True).start()
    try:
        for part in process.read.options(num_returns="streaming").remote(PART_BYTES):
            descriptor, data = ray.get(part)
            if descriptor < 0:
                return int(data)
            left = memoryview(data)
            while left:
                left = left[os.write(output if descriptor == 1 else descriptor, left) :]
    except Exception as error:  # Ray's, of an actor or a node that died
        print(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), only_check=sys.argv[3:] == ["check"])
