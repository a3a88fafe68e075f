"""Mode mps: the runs of a set are clients of an MPS daemon that is theirs alone."""

# pynvml has no annotations.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from penstock.errors import BadSetting, DeviceUnavailable
from penstock.gpus.nvml import NvmlGpu, answer_of, gpu_processes, nvml, users_hidden, visible_gpus
from penstock.inject import MODE
from penstock.linux.process import lineage, start_ticks
from penstock.runs.modes.daemon import PROGRAM, clients
from penstock.runs.modes.mode import Mode
from penstock.runs.record import RunPlan, RunRecord

_DAEMON = Path(__file__).with_name("daemon.py")
_LONGEST = 60
"""Longest folder in characters: paths of the daemon's sockets below it have 107 at most."""
_LOOK_S = 1.0


def unusable(gpus: Sequence[NvmlGpu]) -> str:
    """Return why no MPS daemon can serve these GPUs; empty if one can."""
    if not shutil.which(PROGRAM):
        return f"no {PROGRAM} on the PATH; it comes with NVIDIA's driver"
    known = nvml()
    for gpu in gpus:
        called = f"GPU {gpu.index} ({gpu.uuid})"
        handle = answer_of(known.nvmlDeviceGetHandleByUUID, gpu.parent or gpu.uuid)
        if handle is None:
            return f"{called} is lost"
        if answer_of(known.nvmlDeviceGetComputeMode, handle) == known.NVML_COMPUTEMODE_PROHIBITED:
            return f"{called} lets nobody compute: nvidia-smi -i {gpu.index} -c DEFAULT, as root"
        if not gpu.parent and (answer_of(known.nvmlDeviceGetMigMode, handle) or [0])[0]:
            return f"{called} is in MIG mode and has no instance: make one, or turn MIG off"
    return ""


class Mps(Mode):
    """Runs that are clients of MPS daemons: one for each set of GPUs that they name.

    A daemon has folders that nobody else can enter, and ends when the last keeper has. A run that cannot connect
    runs without MPS, in silence: so once a second, the runs that use a GPU are compared with the clients.
    """

    def __init__(self, mode: str, records: Sequence[RunRecord]) -> None:
        self._all = tuple(gpu.uuid for gpu in visible_gpus(os.environ))
        self._folders: dict[tuple[str, ...], str] = {}
        self._guards: list[subprocess.Popen[str]] = []
        self._watched: dict[int, tuple[tuple[str, ...], Callable[[str], None]]] = {}
        self._ending = threading.Event()
        self._watching: threading.Thread | None = None
        self._ended, self.lease = os.pipe()
        try:
            for record in records:
                if (devices := record.plan.devices or self._all) not in self._folders:
                    self._start(devices)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def check(what: str, mode: str, runs: Sequence[RunPlan], gpus: Sequence[NvmlGpu]) -> None:
        sets = {run.devices or tuple(gpu.uuid for gpu in gpus) for run in runs}
        by_uuid = {gpu.uuid: gpu for gpu in gpus}
        for devices in sets:
            for other in sets - {devices}:
                if both := sorted({*devices} & {*other}):
                    raise BadSetting(
                        f"{what}: one run may use {' and '.join(devices)}, another {' and '.join(other)}; "
                        f"{both[0]} would have two MPS daemons: give runs that share a GPU the same devices"
                    )
            if len(devices) > 1 and any(by_uuid[uuid].parent for uuid in devices):
                raise BadSetting(
                    f"{what}: a process can use one MIG instance, not {len(devices)}; name one in devices"
                )
            if why := unusable([by_uuid[uuid] for uuid in devices]):
                raise BadSetting(f"{what}: MPS cannot run here: {why}")

    def variables(self, record: RunRecord) -> Mapping[str, str]:
        """Return what makes a run a client; its GPU goes by UUID, which holds inside a daemon and outside."""
        plan, devices = record.plan, record.plan.devices or self._all
        found = {"CUDA_VISIBLE_DEVICES": ",".join(devices), "CUDA_MPS_PIPE_DIRECTORY": self._folders[devices]}
        found[MODE] = "mps"
        if plan.mps_threads is not None:
            found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = f"{plan.mps_threads:g}"
        if plan.mps_memory_bytes is not None:
            limits = (f"{i}={plan.mps_memory_bytes >> 20}M" for i in range(len(devices)))
            found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(limits)
        return found

    def began(self, record: RunRecord, pid: int, note: Callable[[str], None]) -> None:
        """Watch a run until it has been seen as a client."""
        if why := users_hidden():
            note(f"whether it runs under MPS cannot be checked: {why}")
            return
        self._watched[pid] = record.plan.devices or self._all, note
        if self._watching is None:
            self._watching = threading.Thread(target=self._watch, name="penstock-mps")
            self._watching.start()

    def close(self) -> None:
        """End the daemons, and wait until nothing of them is left."""
        self._let_go()
        for guard in self._guards:
            guard.communicate()
        for folder in self._folders.values():  # of a guard that was killed
            shutil.rmtree(folder, ignore_errors=True)

    def leave(self) -> None:
        """Leave the daemons to the runs that go on."""
        self._let_go()
        for guard in self._guards:
            assert guard.stdout is not None
            guard.stdout.close()
            guard.returncode = 0  # subprocess would warn that it goes on

    def _let_go(self) -> None:
        self._ending.set()
        if self._watching:
            self._watching.join()
        assert self.lease is not None
        os.close(self.lease)
        os.close(self._ended)

    def _start(self, devices: tuple[str, ...]) -> None:
        folder = self._folders[devices] = tempfile.mkdtemp(prefix="penstock-mps-", dir=_base())
        guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_DAEMON), str(self._ended), folder, ",".join(devices)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            pass_fds=(self._ended,),
            start_new_session=True,  # a Ctrl-C is not for it
            text=True,
        )
        self._guards.append(guard)
        assert guard.stdout is not None
        answer = guard.stdout.readline().strip()
        if answer != "ready":
            why, on = answer or "it died", ", ".join(devices)
            raise DeviceUnavailable(f"no MPS daemon could be started on {on}: {why}")

    def _watch(self) -> None:
        suspected = set[int]()
        while not self._ending.wait(_LOOK_S):
            suspected = self._look(suspected)

    def _look(self, suspected: set[int]) -> set[int]:
        """Note runs with a process that uses a GPU outside MPS, now and at the last look; return such processes.

        ``suspected`` are those of the last look: one look can err, as processes and clients are read in turn.
        """
        outside = set[int]()
        watched = dict(self._watched)
        done = {pid for pid in watched if start_ticks(pid) is None}
        for devices in {run[0] for run in watched.values()}:
            its = {pid for pid, run in watched.items() if run[0] == devices} - done
            using = {pid: its.intersection(lineage(pid)) for pid in _computing(devices)} if its else {}
            if not any(using.values()) or (served := clients(self._folders[devices])) is None:
                continue
            for user, runs in sorted(using.items()):
                for pid in runs - done:
                    if user not in served and user not in suspected:
                        outside.add(user)
                        continue
                    if user not in served:
                        note = watched[pid][1]
                        note(f"process {user} uses a GPU and is no client of the MPS daemon: it ran without MPS")
                    done.add(pid)
        for pid in done:
            del self._watched[pid]
        return outside


def _base() -> str:
    """Return a folder in which a daemon's sockets have room for their paths."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    fits = 0 < len(base) <= _LONGEST and os.path.isdir(base) and os.access(base, os.W_OK | os.X_OK)
    return base if fits else "/tmp"


def _computing(devices: Sequence[str]) -> set[int]:
    """Return the processes that use a GPU, as NVML numbers them."""
    known = nvml()
    found = set[int]()
    for uuid in devices:
        with suppress(known.NVMLError):  # it is lost; its runs will fail
            found |= gpu_processes(known.nvmlDeviceGetHandleByUUID(uuid)).keys()
    return found
