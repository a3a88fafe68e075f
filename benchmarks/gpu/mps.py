"""A feed whose trainers are clients of an MPS daemon: one is killed, one joins, and every batch is checked.

``python -m benchmarks.gpu.mps OUT DEVICE`` does it with the feeder among the clients, then outside.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.children import ENVIRONMENT, command
from benchmarks.measure.loop import heard_lines, reply, reserve_output
from benchmarks.measure.pool import MeasuredProcess, MemberFailed, ProcessPool
from benchmarks.share.feeding import Feeding, first_bytes
from benchmarks.share.trainers import start_feeder

from penstock.runs.modes.daemon import PROGRAM, ask, clients

SAMPLES, ROW_BYTES, BATCH = 8192, 16_384, 64
_EPOCHS = 3
_STEP_S = 15.0
_QUIT_S = 5


@contextmanager
def mps_daemon() -> Iterator[dict[str, str]]:
    """Start a daemon with folders of its own; yield the environment of its clients, and end it."""
    with tempfile.TemporaryDirectory(prefix="mps") as folder:  # its path is short, as a socket's must be
        pipes = f"{folder}/pipe"
        given = {"CUDA_MPS_PIPE_DIRECTORY": pipes, "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for path in given.values():
            Path(path).mkdir()
        nothing = subprocess.DEVNULL  # it keeps what it is given
        environment = {**os.environ, **given}
        subprocess.run(
            [PROGRAM, "-d"], env=environment, stdin=nothing, stdout=nothing, stderr=nothing, check=True, timeout=20
        )
        try:
            yield given
        finally:
            ask(pipes, f"quit -t {_QUIT_S}", 2 * _QUIT_S)
            until = time.monotonic() + _QUIT_S
            while ask(pipes, "get_server_list") is not None and time.monotonic() < until:
                time.sleep(0.05)


def train(device: str, feed: str) -> None:
    """Attach once told to, and tell of each epoch what was wrong in it, until killed."""
    import torch
    from benchmarks.gpu.crossing import counting_gpu

    import penstock

    reserve_output()
    reply({"imported": True})
    next(heard_lines())
    gpu = counting_gpu(device)
    on = torch.device(device)
    loader = penstock.attach(feed, BATCH, device=gpu, wait_s=_STEP_S)
    steps = torch.arange(ROW_BYTES, device=on).to(torch.uint8)
    first = torch.as_tensor(first_bytes(torch.arange(SAMPLES).numpy())).to(on)
    for epoch in range(1 << 30):
        wrong = torch.zeros((), dtype=torch.int64, device=on)
        seen = torch.zeros(SAMPLES, dtype=torch.int64, device=on)
        for batch in loader:
            ids = batch["id"]
            wrong += (batch["x"] != first[ids][:, None] + steps).sum()
            seen += torch.bincount(ids, minlength=SAMPLES)
        amiss = int((seen != 1).sum())
        reply({"epoch": epoch, "wrong bytes": int(wrong), "ids amiss": amiss, "from the host": gpu.copied_bytes})


class Session:
    """One feed and its three trainers; its feeder may be a client too (``inside``)."""

    def __init__(
        self, pool: ProcessPool, device: str, given: dict[str, str], inside: bool, keep: Callable[[], None]
    ):
        self.told: dict[str, Any] = {}
        self._pool, self._keep = pool, keep
        self._pipes = given["CUDA_MPS_PIPE_DIRECTORY"]
        self._trainers: dict[str, MeasuredProcess] = {}
        self._feeder: list[MeasuredProcess] = []
        self._feed = f"mps-{'inside' if inside else 'outside'}"
        self._device = device
        self._environment = {**ENVIRONMENT, **given}
        self._feeders = self._environment if inside else ENVIRONMENT

    def run(self) -> None:
        """Go through all; what fails is told, and what rests on it is not tried."""
        try:
            for name in "ABC":
                trainer = command("benchmarks.gpu.mps", "train", self._device, self._feed)
                (self._trainers[name],) = self._pool.start(trainer, 1, self._environment)
            feeding = Feeding(self._feed, "64MiB", numbered=SAMPLES, numbered_bytes=ROW_BYTES, memory=self._device)
            self._step("feeder", lambda: self._fed(feeding))
            for name in "AB":
                self._trainers[name].send({})
            for name in "AB":
                self._step(f"{name} at first", lambda name=name: self._epochs(name))
            self._step("clients", self._clients)
            os.kill(self._trainers["A"].pid, 9)
            self._step("B after A was killed", lambda: self._epochs("B"))
            self._trainers["C"].send({})
            self._step("C, which joined then", lambda: self._epochs("C"))
            self._step("B beside C", lambda: self._epochs("B"))
            self._step("clients at the end", self._clients)
        except MemberFailed:
            self.told["printed"] = self._pool.errors()
        finally:
            self._pool.dismiss([*self._trainers.values(), *self._feeder], kill=True)
            self._keep()

    def _fed(self, feeding: Feeding) -> dict[str, int]:
        self._feeder.append(start_feeder(self._pool, feeding, self._feeders))
        return {"pid": self._feeder[0].pid}

    def _step(self, name: str, step: Callable[[], Any]) -> None:
        began = time.monotonic()
        try:
            self.told[name] = step()
        except MemberFailed as error:
            self.told[name] = {"failed": str(error)}
            raise
        finally:
            self.told[f"{name}, s"] = round(time.monotonic() - began, 2)
            self._keep()

    def _epochs(self, name: str) -> dict[str, Any]:
        """Hear of some epochs that ended from now on."""
        trainer, deadline = self._trainers[name], time.monotonic() + _STEP_S
        while True:  # those that it has told of meanwhile
            try:
                trainer.hear_of("epoch", time.monotonic())
            except MemberFailed as error:
                if "no answer in time" in str(error):
                    break
                raise
        heard = [trainer.hear_of("epoch", deadline) for _ in range(_EPOCHS)]
        way = "host" if heard[-1]["from the host"] else "GPU ring"
        return {"right": not any(e["wrong bytes"] or e["ids amiss"] for e in heard), "way": way, "epochs": heard}

    def _clients(self) -> dict[str, bool]:
        known = clients(self._pipes) or {}
        processes = {"feeder": self.told["feeder"]["pid"]} | {n: each.pid for n, each in self._trainers.items()}
        return {name: pid in known for name, pid in processes.items()}


def main(out: Path, device: str) -> None:
    told: dict[str, Any] = {}

    def keep() -> None:
        out.write_text(json.dumps(told, indent=1) + "\n")

    for inside in (True, False):
        where = "feeder among the clients" if inside else "feeder outside"
        with tempfile.TemporaryDirectory() as folder:
            try:
                with mps_daemon() as given, ProcessPool(Path(folder)) as pool:
                    session = Session(pool, device, given, inside, keep)
                    told[where] = session.told
                    session.run()
            except (OSError, subprocess.SubprocessError) as error:
                told[where] = {"failed": str(error)}
                keep()


if __name__ == "__main__":
    if sys.argv[1] == "train":
        train(*sys.argv[2:])
    else:
        main(Path(sys.argv[1]), sys.argv[2])
