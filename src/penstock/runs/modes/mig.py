"""Mode mig:PROFILE: each run of a group has an instance of a GPU in MIG mode to itself.

``python -m penstock.runs.modes.mig LEASE_FD GPU_UUID=PROFILE…`` makes such instances, prints their UUIDs, and
takes all back once the lease has ended: when ``penstock run`` and all keepers have, however they ended.
"""

# pynvml has no annotations.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from penstock.errors import BadSetting, DeviceUnavailable
from penstock.measure.gpus import Gpu, gpu_processes, instances, nvml, told, visible_gpus
from penstock.runs.modes.mode import Leased
from penstock.runs.plan import GroupPlan, RunPlan
from penstock.runs.record import RunRecord

_TRIES, _PAUSE_S = 10, 0.5
"""Memory of a process that was killed is still in use for a moment."""


def check(what: str, group: GroupPlan, gpus: Sequence[Gpu]) -> None:
    """Check that each run of a group can have an instance; as ``modes.mode.check``."""
    _given(what, [(run, _profile(group.mode, place)) for place, run in enumerate(group.runs)], gpus)


class Mig(Leased):
    """Runs with an instance each: one that exists, or one that is made for as long as they run.

    Raises:
        BadSetting: there are fewer instances than runs, and no more may be made.
        DeviceUnavailable: NVML refuses to make them; what was made is taken back.
    """

    def __init__(self, records: Sequence[RunRecord]) -> None:
        wanted = [(record.plan, _profile(record.mode, record.index)) for record in records]
        given = _given(f"mode {records[0].mode}", wanted, visible_gpus(os.environ))
        super().__init__()
        made = self._make(
            [f"{gpu.uuid}={profile}" for gpu, (_, profile) in zip(given, wanted, strict=True) if not gpu.parent]
        )
        uuids = (gpu.uuid if gpu.parent else made.pop(0) for gpu in given)
        self._uuids = {record.id: uuid for record, uuid in zip(records, uuids, strict=True)}

    def variables(self, record: RunRecord) -> Mapping[str, str]:
        """Return what shows a run its instance alone."""
        return {"CUDA_VISIBLE_DEVICES": self._uuids[record.id]}

    def _make(self, wanted: Sequence[str]) -> list[str]:
        if not wanted:
            return []
        line = self.start([sys.executable, "-m", __name__], *wanted)
        said = json.loads(line or '"the process that makes them was killed"')
        if isinstance(said, str):
            self.close()
            raise DeviceUnavailable(f"MIG instances cannot be made: {said}")
        return said


def _profile(mode: str, place: int) -> str:
    """Return the profile of a group's run: the mode names one for all, or one for each."""
    profiles = mode.removeprefix("mig:").split(",")
    return profiles[place if len(profiles) > 1 else 0]


def _given(what: str, wanted: Sequence[tuple[RunPlan, str]], gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return, for each run and its profile, its instance; or the GPU on which one is to be made.

    Raises:
        BadSetting: that is not possible; the message begins with ``what``.
    """
    whole = {gpu.parent or gpu.uuid: Gpu(gpu.index, gpu.parent or gpu.uuid, "", 0) for gpu in gpus}
    there = {gpu.profile for gpu in gpus if gpu.parent}.union(*map(_profiles, whole))
    for _, profile in wanted:
        if profile not in there:
            listed = f"there are {', '.join(sorted(there))}" if there else "they have no MIG"
            raise BadSetting(f"{what}: the GPUs in sight have no MIG profile {profile!r}; {listed}")
    free = list(gpus)
    given: dict[int, Gpu] = {}
    for place in sorted(range(len(wanted)), key=lambda place: not wanted[place][0].devices):  # the choosy first
        run, profile = wanted[place]
        if gpu := next((gpu for gpu in free if gpu.profile == profile and _may_use(run, gpu)), None):
            given[place] = gpu
            free.remove(gpu)
    lacking = [place for place in range(len(wanted)) if place not in given]
    if lacking:
        listed = ", ".join(f"{gpu.profile} {gpu.uuid}" for gpu in gpus if gpu.parent) or "none"
        needed = (
            f"{what}: {len(wanted)} runs need a MIG instance each, {len(lacking)} more than there are for them; "
            f"in sight: {listed}"
        )
        if not wanted[0][0].mig_changes:
            command = f"sudo nvidia-smi mig -i {gpus[0].index} -cgi {wanted[lacking[0]][1]} -C"
            raise BadSetting(f"{needed}. Make some ({command}), or let --allow-mig-changes do it")
        if os.geteuid():
            raise BadSetting(f"{needed}. Only root may make others: --allow-mig-changes needs root")
        made: Counter[tuple[str, str]] = Counter()
        for place in lacking:
            run, profile = wanted[place]
            rooms = {gpu.uuid: _room(gpu, profile) for gpu in whole.values() if _may_use(run, gpu)}
            uuid = next((uuid for uuid, (room, _) in rooms.items() if room > made[uuid, profile]), None)
            if uuid is None:
                raise BadSetting(f"{needed}. {'; '.join(words for _, words in rooms.values())}")
            made[uuid, profile] += 1
            given[place] = whole[uuid]
    return [given[place] for place in range(len(wanted))]


def _may_use(run: RunPlan, gpu: Gpu) -> bool:
    return not run.devices or gpu.uuid in run.devices or gpu.parent in run.devices


def _profiles(uuid: str) -> dict[str, Any]:
    """Return the MIG profiles that a GPU has, as NVML describes them, by name."""
    known = nvml()
    handle = known.nvmlDeviceGetHandleByUUID(uuid)
    all_numbers = range(known.NVML_GPU_INSTANCE_PROFILE_COUNT)
    found = [told(known.nvmlDeviceGetGpuInstanceProfileInfo, handle, number) for number in all_numbers]
    return {info.name.removeprefix("MIG ").strip(): info for info in found if info}


def _room(gpu: Gpu, profile: str) -> tuple[int, str]:
    """Return how many more instances of a profile fit on a GPU, and words for that."""
    known = nvml()
    handle = known.nvmlDeviceGetHandleByUUID(gpu.uuid)
    info = _profiles(gpu.uuid).get(profile)
    if info is None:
        return 0, f"GPU {gpu.index} has no profile {profile}"
    if known.nvmlDeviceGetMigMode(handle)[0]:
        room = known.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, info.id)
    elif pids := sorted(gpu_processes(handle)):
        return 0, f"GPU {gpu.index} is not in MIG mode, and is used by processes {', '.join(map(str, pids))}"
    else:
        room = info.instanceCount
    return room, f"GPU {gpu.index} has room for {room} of {profile}"


Undo = tuple[Callable[..., Any], tuple[Any, ...], str]
"""A call that takes back what was made, its arguments, and the command that root would type instead."""


def _make(wanted: str, undo: list[Undo]) -> str:
    """Make an instance, wanted as GPU_UUID=PROFILE, on a GPU that is brought into MIG mode; return its UUID.

    Raises:
        DeviceUnavailable, NVMLError: that is not possible; ``undo`` has what takes back what was made.
    """
    known = nvml()
    uuid, profile = wanted.split("=")
    handle = known.nvmlDeviceGetHandleByUUID(uuid)
    index = known.nvmlDeviceGetIndex(handle)
    if not known.nvmlDeviceGetMigMode(handle)[0]:
        known.nvmlDeviceSetMigMode(handle, 1)
        undo.append((known.nvmlDeviceSetMigMode, (handle, 0), f"nvidia-smi -i {index} -mig 0"))
        if not known.nvmlDeviceGetMigMode(handle)[0]:
            raise DeviceUnavailable(f"GPU {index} enters MIG mode only when it is reset")
    info = _profiles(uuid)[profile]
    instance = known.nvmlDeviceCreateGpuInstance(handle, info.id)
    number = known.nvmlGpuInstanceGetInfo(instance).id
    command = f"nvidia-smi mig -i {index} -gi {number}"
    undo.append((known.nvmlGpuInstanceDestroy, (instance,), f"{command} -dgi"))
    shared = known.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
    describe = known.nvmlGpuInstanceGetComputeInstanceProfileInfo
    all_numbers = range(known.NVML_COMPUTE_INSTANCE_PROFILE_COUNT)
    sizes = (told(describe, instance, number, shared) for number in all_numbers)
    whole = next(size for size in sizes if size and size.sliceCount == info.sliceCount)
    compute = known.nvmlGpuInstanceCreateComputeInstance(instance, whole.id)
    undo.append((known.nvmlComputeInstanceDestroy, (compute,), f"{command} -dci"))
    return next(mig.uuid for mig in instances(handle) if mig.number == number)


def _take_back(undo: Sequence[Undo]) -> None:
    """Take back what was made, last things first; say what cannot be."""
    is_stuck = False
    for call, args, command in reversed(undo):
        for attempt in range(1, _TRIES + 1):
            try:
                call(*args)
                break
            except nvml().NVMLError as error:
                if attempt == _TRIES or is_stuck:  # what holds a part holds the whole
                    is_stuck = True
                    print(
                        f"penstock: MIG is not as it was: {error}. As root: {command}", file=sys.stderr, flush=True
                    )
                    break
                time.sleep(_PAUSE_S)


def main(lease: int, wanted: Sequence[str]) -> None:
    """Make instances, print their UUIDs, or why not, and take them back when the lease has ended."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    undo: list[Undo] = []
    try:
        said: Any = [_make(each, undo) for each in wanted]
    except (DeviceUnavailable, nvml().NVMLError) as error:
        said = str(error)
    with suppress(BrokenPipeError):
        print(json.dumps(said), flush=True)
    if not isinstance(said, str):
        os.read(lease, 1)
    _take_back(undo)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
