"""Mode mig:PROFILE: each run of a group has an instance of a GPU in MIG mode to itself.

``python -m penstock.runs.modes.mig LEASE_FD PROFILE GPU_UUID…`` makes an instance on each of these GPUs, prints their
UUIDs, and takes all back once the lease has ended: when ``penstock run`` and all keepers have, however they ended.
"""

# pynvml has no annotations.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from penstock.errors import BadSetting, DeviceUnavailable
from penstock.measure.gpus import Gpu, gpu_processes, instances, nvml, told, visible_gpus
from penstock.runs.plan import GroupPlan, RunPlan
from penstock.runs.record import RunRecord

PREFIX = "mig:"
_TRIES, _PAUSE_S = 10, 0.5
"""Memory of a process that was killed is still in use for a moment."""


def check(what: str, group: GroupPlan, gpus: Sequence[Gpu]) -> None:
    """Check that each run of a group can have an instance; as ``modes.mode.check``."""
    _given(what, group.runs, group.mode.removeprefix(PREFIX), gpus)


class Mig:
    """Runs with an instance each: one that exists, or one that is made for as long as they run.

    Attributes:
        lease: What the process that made instances waits for the end of; None if none were made.

    Raises:
        BadSetting: there are fewer instances than runs, and no more may be made.
        DeviceUnavailable: NVML refuses to make them; what was made is taken back.
    """

    def __init__(self, records: Sequence[RunRecord]) -> None:
        profile = records[0].mode.removeprefix(PREFIX)
        given = _given(records[0].mode, [record.plan for record in records], profile, visible_gpus(os.environ))
        self.lease: int | None = None
        self._maker: subprocess.Popen[str] | None = None
        made = self._make(profile, [gpu.uuid for gpu in given if not gpu.profile])
        self._uuids = {
            record.id: gpu.uuid if gpu.profile else made.pop(0) for record, gpu in zip(records, given, strict=True)
        }

    def variables(self, record: RunRecord) -> Mapping[str, str]:
        """Return what shows a run its instance alone."""
        return {"CUDA_VISIBLE_DEVICES": self._uuids[record.id]}

    def began(self, record: RunRecord, pid: int, note: Callable[[str], None]) -> None:
        """Do nothing: a run sees no other GPU."""

    def close(self) -> None:
        """Have all taken back that was made."""
        if self._maker is not None and self.lease is not None:
            os.close(self.lease)
            with self._maker:  # waits for its end
                self.lease = self._maker = None

    def _make(self, profile: str, uuids: Sequence[str]) -> list[str]:
        if not uuids:
            return []
        ended, self.lease = os.pipe()
        self._maker = subprocess.Popen(
            [sys.executable, "-m", __name__, str(ended), profile, *uuids],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            pass_fds=(ended,),
            start_new_session=True,  # a Ctrl-C is not for it
            text=True,
        )
        os.close(ended)
        assert self._maker.stdout
        said = json.loads(self._maker.stdout.readline() or '"the process that makes them was killed"')
        if isinstance(said, str):
            self.close()
            raise DeviceUnavailable(f"mode {PREFIX}{profile}: {said}")
        return said


def _given(what: str, runs: Sequence[RunPlan], profile: str, gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return, for each run, its instance; or the GPU on which one is to be made.

    Raises:
        BadSetting: that is not possible; the message begins with ``what``.
    """
    whole = {gpu.parent or gpu.uuid: gpu.index for gpu in gpus}
    there = {gpu.profile for gpu in gpus if gpu.profile}.union(*map(_profiles, whole))
    if profile not in there:
        raise BadSetting(
            f"{what}: the GPUs in sight have no MIG profile {profile!r}; "
            + (f"there are {', '.join(sorted(there))}" if there else "they have no MIG")
        )
    free = [gpu for gpu in gpus if gpu.profile == profile]
    given: dict[int, Gpu] = {}
    for place in sorted(range(len(runs)), key=lambda place: not runs[place].devices):  # the choosy ones first
        if fitting := [gpu for gpu in free if _may_use(runs[place], gpu)]:
            given[place] = fitting[0]
            free.remove(fitting[0])
    lacking = [place for place in range(len(runs)) if place not in given]
    if not lacking:
        return [given[place] for place in range(len(runs))]
    listed = ", ".join(f"{gpu.profile} {gpu.uuid}" for gpu in gpus if gpu.profile) or "none"
    needed = (
        f"{what}: {len(runs)} runs need a MIG instance {profile} each, {len(lacking)} more than they have; "
        f"instances in sight: {listed}"
    )
    if not runs[0].mig_changes:
        index = next(iter(whole.values()))
        command = f"sudo nvidia-smi mig -i {index} -cgi {profile} -C"
        raise BadSetting(f"{needed}. Make some ({command}), or let --allow-mig-changes do it")
    if os.geteuid():
        raise BadSetting(f"{needed}. Only root may make others: --allow-mig-changes needs root")
    rooms = {uuid: _room(uuid, index, profile) for uuid, index in whole.items()}
    made: Counter[str] = Counter()
    for place in lacking:
        for gpu in (Gpu(index, uuid, "", 0) for uuid, index in whole.items()):
            if made[gpu.uuid] < rooms[gpu.uuid][0] and _may_use(runs[place], gpu):
                made[gpu.uuid] += 1
                given[place] = gpu
                break
        else:
            raise BadSetting(f"{needed}. {'; '.join(words for _, words in rooms.values())}")
    return [given[place] for place in range(len(runs))]


def _may_use(run: RunPlan, gpu: Gpu) -> bool:
    return not run.devices or gpu.uuid in run.devices or gpu.parent in run.devices


def _profiles(uuid: str) -> dict[str, Any]:
    """Return the MIG profiles that a GPU has, as NVML describes them, by name."""
    known = nvml()
    handle = known.nvmlDeviceGetHandleByUUID(uuid)
    all_numbers = range(known.NVML_GPU_INSTANCE_PROFILE_COUNT)
    found = [told(known.nvmlDeviceGetGpuInstanceProfileInfo, handle, number) for number in all_numbers]
    return {info.name.removeprefix("MIG ").strip(): info for info in found if info}


def _room(uuid: str, index: int, profile: str) -> tuple[int, str]:
    """Return how many more instances of a profile fit on a GPU, and words for that."""
    known = nvml()
    handle = known.nvmlDeviceGetHandleByUUID(uuid)
    info = _profiles(uuid).get(profile)
    if info is None:
        return 0, f"GPU {index} has no such profile"
    if known.nvmlDeviceGetMigMode(handle)[0]:
        room = known.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, info.id)
        return room, f"GPU {index} has room for {room}"
    if pids := sorted(gpu_processes(handle)):
        return 0, f"GPU {index} is not in MIG mode, and is used by processes {', '.join(map(str, pids))}"
    return info.instanceCount, f"GPU {index}, once in MIG mode, has room for {info.instanceCount}"


class _Maker:
    """Makes instances, and takes back all that it made, last things first."""

    def __init__(self) -> None:
        self._undo: list[tuple[Callable[..., Any], Any, str]] = []

    def instance(self, uuid: str, profile: str) -> str:
        """Make an instance on a GPU, which is brought into MIG mode; return the instance's UUID."""
        known = nvml()
        handle = known.nvmlDeviceGetHandleByUUID(uuid)
        index = known.nvmlDeviceGetIndex(handle)
        if not known.nvmlDeviceGetMigMode(handle)[0]:
            known.nvmlDeviceSetMigMode(handle, 1)
            self._undo.append((known.nvmlDeviceSetMigMode, (handle, 0), f"nvidia-smi -i {index} -mig 0"))
            if not known.nvmlDeviceGetMigMode(handle)[0]:
                raise DeviceUnavailable(f"GPU {index} enters MIG mode only when it is reset")
        info = _profiles(uuid)[profile]
        instance = known.nvmlDeviceCreateGpuInstance(handle, info.id)
        number = known.nvmlGpuInstanceGetInfo(instance).id
        command = f"nvidia-smi mig -i {index} -gi {number}"
        self._undo.append((known.nvmlGpuInstanceDestroy, (instance,), f"{command} -dgi"))
        sizes = [
            told(
                known.nvmlGpuInstanceGetComputeInstanceProfileInfo,
                instance,
                size,
                known.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
            )
            for size in range(known.NVML_COMPUTE_INSTANCE_PROFILE_COUNT)
        ]
        whole = next(size for size in sizes if size and size.sliceCount == info.sliceCount)
        compute = known.nvmlGpuInstanceCreateComputeInstance(instance, whole.id)
        self._undo.append((known.nvmlComputeInstanceDestroy, (compute,), f"{command} -dci"))
        return next(mig.uuid for mig in instances(handle) if mig.number == number)

    def take_back(self) -> list[str]:
        """Take back what was made; return sentences on what cannot be."""
        left: list[str] = []
        for call, args, command in reversed(self._undo):
            for attempt in range(_TRIES):
                try:
                    call(*args)
                    break
                except nvml().NVMLError as error:
                    if attempt + 1 == _TRIES or left:  # what holds a part holds the whole
                        left.append(f"MIG is not as it was: {error}. As root: {command}")
                        break
                    time.sleep(_PAUSE_S)
        return left


def main(lease: int, profile: str, uuids: Sequence[str]) -> None:
    """Make instances, print their UUIDs, or why not, and take them back when the lease has ended."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    known, maker = nvml(), _Maker()
    try:
        said: Any = [maker.instance(uuid, profile) for uuid in uuids]
    except (DeviceUnavailable, known.NVMLError) as error:
        said = str(error)
    with suppress(BrokenPipeError):
        print(json.dumps(said), flush=True)
    if not isinstance(said, str):
        os.read(lease, 1)
    for sentence in maker.take_back():
        print(f"penstock: {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
