"""Mode mig:PROFILE: each run of a set has an instance of a GPU in MIG mode to itself.

``python -m penstock.runs.modes.mig LEASE_FD GPU_UUID=PROFILE…`` makes such instances, prints their UUIDs, and
takes all back at the lease's end: when ``penstock run`` and all keepers have ended, however that happened.
"""

# pynvml has no annotations.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from penstock.basics.terminal import say
from penstock.errors import BadSetting, DeviceUnavailable, PenstockError
from penstock.gpus.nvml import NvmlGpu, answer, answer_of, gpu_processes, instances, nvml, visible_gpus
from penstock.linux.process import ignore_sent
from penstock.runs.modes.mode import Mode, start_guard
from penstock.runs.record import RunPlan, RunRecord

_TRIES, _PAUSE_S = 10, 0.5
"""Memory of a process that was killed is still in use for a moment."""


def check(what: str, mode: str, runs: Sequence[RunPlan], gpus: Sequence[NvmlGpu]) -> None:
    """Check, before anything starts, that each of some runs can have an instance.

    Args:
        what: Where the mode was asked for; the error's first words.
        mode: "mig:" with a profile for all, or one for each.
        runs: The runs; their devices are UUIDs.
        gpus: GPUs that ``penstock run`` sees.
    """
    profiles = mode.count(",") + 1
    if profiles not in (1, len(runs)):
        raise BadSetting(
            f"{what}: {profiles} MIG profiles for {len(runs)} runs; name one for all, or one for each"
        )
    _given(what, _with_profiles(mode, runs), gpus)


class Mig(Mode):
    """Runs with an instance each: one that exists, or one that is made for as long as they run.

    Attributes:
        lease: At its end, the process that made instances takes them back; None if none were made.
    """

    def __init__(self, mode: str, records: Sequence[RunRecord]) -> None:
        wanted = _with_profiles(mode, [record.plan for record in records])
        given = _given(f"mode {mode}", wanted, visible_gpus(os.environ))
        self._maker: subprocess.Popen[str] | None = None
        made = self._make(
            [f"{gpu.uuid}={profile}" for gpu, (_, profile) in zip(given, wanted, strict=True) if not gpu.parent]
        )
        uuids = (gpu.uuid if gpu.parent else made.pop(0) for gpu in given)
        self._uuids = {record.id: uuid for record, uuid in zip(records, uuids, strict=True)}

    def variables(self, record: RunRecord) -> Mapping[str, str]:
        """Return what shows a run its instance alone."""
        return {"CUDA_VISIBLE_DEVICES": self._uuids[record.id]}

    def close(self) -> None:
        """Have all taken back that was made."""
        if self._maker is not None and self.lease is not None:
            os.close(self.lease)
            with self._maker:  # waits for its end
                self.lease = self._maker = None

    def _make(self, wanted: Sequence[str]) -> list[str]:
        if not wanted:
            return []
        ended, self.lease = os.pipe()
        self._maker = start_guard(ended, "-m", __name__, str(ended), *wanted)
        os.close(ended)
        assert self._maker.stdout
        answer = json.loads(self._maker.stdout.readline() or '"the process that makes them was killed"')
        if isinstance(answer, str):
            self.close()
            raise DeviceUnavailable(f"MIG instances cannot be made: {answer}")
        return answer


def _with_profiles(mode: str, runs: Sequence[RunPlan]) -> list[tuple[RunPlan, str]]:
    """Return each run with the profile that the mode names for all, or for each."""
    profiles = mode.removeprefix("mig:").split(",")
    return list(zip(runs, profiles if len(profiles) > 1 else profiles * len(runs), strict=True))


def _given(what: str, wanted: Sequence[tuple[RunPlan, str]], gpus: Sequence[NvmlGpu]) -> list[NvmlGpu]:
    """Return, for each run and its profile, its instance; or the GPU on which one is to be made."""
    whole = {gpu.parent or gpu.uuid: NvmlGpu(gpu.index, gpu.parent or gpu.uuid, "", 0) for gpu in gpus}
    there = {gpu.profile for gpu in gpus if gpu.parent}.union(*map(_profiles, whole))
    for _, profile in wanted:
        if profile not in there:
            listed = f"there are {', '.join(sorted(there))}" if there else "they have no MIG"
            raise BadSetting(f"{what}: the GPUs in sight have no MIG profile {profile!r}; {listed}")
    free = list(gpus)
    given: dict[int, NvmlGpu] = {}
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
            run, profile = wanted[lacking[0]]
            gpu = min(gpus, key=lambda gpu: not _may_use(run, gpu))  # the first that it may use
            command = f"sudo nvidia-smi mig -i {gpu.index} -cgi {profile} -C"
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


def _may_use(run: RunPlan, gpu: NvmlGpu) -> bool:
    return not run.devices or gpu.uuid in run.devices or gpu.parent in run.devices


def _profiles(uuid: str) -> dict[str, Any]:
    """Return the MIG profiles that a GPU has, as NVML describes them, by name."""
    known = nvml()
    handle = answer(known.nvmlDeviceGetHandleByUUID, uuid)
    all_numbers = range(known.NVML_GPU_INSTANCE_PROFILE_COUNT)
    found = [answer_of(known.nvmlDeviceGetGpuInstanceProfileInfo, handle, number) for number in all_numbers]
    return {info.name.removeprefix("MIG ").strip(): info for info in found if info}


def _room(gpu: NvmlGpu, profile: str) -> tuple[int, str]:
    """Return how many more instances of a profile fit on a GPU, and words for that."""
    known = nvml()
    handle = answer(known.nvmlDeviceGetHandleByUUID, gpu.uuid)
    info = _profiles(gpu.uuid).get(profile)
    if info is None:
        return 0, f"GPU {gpu.index} has no profile {profile}"
    if answer(known.nvmlDeviceGetMigMode, handle)[0]:
        room = answer(known.nvmlDeviceGetGpuInstanceRemainingCapacity, handle, info.id)
    elif pids := sorted(gpu_processes(handle)):
        return 0, f"GPU {gpu.index} is not in MIG mode, and is used by processes {', '.join(map(str, pids))}"
    else:
        room = info.instanceCount
    return room, f"GPU {gpu.index} has room for {room} of {profile}"


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
        info = _profiles(uuid).get(profile)
        if info is None:
            raise DeviceUnavailable(f"GPU {index} has no profile {profile} any more")
        instance = known.nvmlDeviceCreateGpuInstance(handle, info.id)
        made = answer_of(known.nvmlGpuInstanceGetInfo, instance)
        command = f"nvidia-smi mig -i {index} -gi {made.id if made else 'N'}"
        self._undo.append((known.nvmlGpuInstanceDestroy, (instance,), f"{command} -dgi"))
        if made is None:
            raise DeviceUnavailable(f"NVML does not number the instance of {profile} that it made on GPU {index}")
        shared = known.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        describe = known.nvmlGpuInstanceGetComputeInstanceProfileInfo
        all_numbers = range(known.NVML_COMPUTE_INSTANCE_PROFILE_COUNT)
        sizes = (answer_of(describe, instance, number, shared) for number in all_numbers)
        whole = next((size for size in sizes if size and size.sliceCount == info.sliceCount), None)
        if whole is None:
            raise DeviceUnavailable(f"NVML has no compute instance as large as {profile} on GPU {index}")
        compute = known.nvmlGpuInstanceCreateComputeInstance(instance, whole.id)
        self._undo.append((known.nvmlComputeInstanceDestroy, (compute,), f"{command} -dci"))
        for mig in instances(handle):
            if mig.number == made.id:
                return mig.uuid
        raise DeviceUnavailable(f"NVML does not show the instance of {profile} that it made on GPU {index}")

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


def main(lease: int, wanted: Sequence[str]) -> None:
    """Make instances, print their UUIDs or the error, and take them back when the lease has ended."""
    ignore_sent()
    known, maker = nvml(), _Maker()
    try:
        try:
            answer: Any = [maker.instance(*each.split("=")) for each in wanted]
        except (PenstockError, known.NVMLError) as error:
            answer = str(error)
        with suppress(BrokenPipeError):
            print(json.dumps(answer), flush=True)
        if not isinstance(answer, str):
            os.read(lease, 1)
    finally:
        for sentence in maker.take_back():
            say(sentence)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
