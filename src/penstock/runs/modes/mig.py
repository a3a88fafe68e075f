"""Mode mig:PROFILE: each run of a set has an instance of a GPU in MIG mode to itself.

The instances are there: nothing of Penstock's changes a setting of a GPU.
"""

# pynvml has no annotations.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from penstock.errors import BadSetting
from penstock.gpus.nvml import NvmlGpu, answer, answer_of, nvml, visible_gpus
from penstock.inject import MODE
from penstock.runs.modes.mode import Mode
from penstock.runs.record import RunPlan, RunRecord


class Mig(Mode):
    """Runs with an instance each."""

    def __init__(self, mode: str, records: Sequence[RunRecord]) -> None:
        wanted = _with_profiles(mode, [record.plan for record in records])
        given = _given(f"mode {mode}", wanted, visible_gpus(os.environ))
        self._uuids = {record.id: gpu.uuid for record, gpu in zip(records, given, strict=True)}

    @staticmethod
    def check(what: str, mode: str, runs: Sequence[RunPlan], gpus: Sequence[NvmlGpu]) -> None:
        profiles = mode.count(",") + 1
        if profiles not in (1, len(runs)):
            raise BadSetting(
                f"{what}: {profiles} MIG profiles for {len(runs)} runs; name one for all, or one for each"
            )
        _given(what, _with_profiles(mode, runs), gpus)

    def variables(self, record: RunRecord) -> Mapping[str, str]:
        """Return what shows a run its instance alone."""
        return {"CUDA_VISIBLE_DEVICES": self._uuids[record.id], MODE: "mig"}


def _with_profiles(mode: str, runs: Sequence[RunPlan]) -> list[tuple[RunPlan, str]]:
    """Return each run with the profile that the mode names for all, or for each."""
    profiles = mode.removeprefix("mig:").split(",")
    return list(zip(runs, profiles if len(profiles) > 1 else profiles * len(runs), strict=True))


def _given(what: str, wanted: Sequence[tuple[RunPlan, str]], gpus: Sequence[NvmlGpu]) -> list[NvmlGpu]:
    """Return its instance for each run and its profile."""
    there = {gpu.profile for gpu in gpus if gpu.parent}.union(*(_profiles(gpu.parent or gpu.uuid) for gpu in gpus))
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
    if lacking := [wanted[place] for place in range(len(wanted)) if place not in given]:
        listed = ", ".join(f"{gpu.profile} {gpu.uuid}" for gpu in gpus if gpu.parent) or "none"
        gpu = min(gpus, key=lambda gpu: not _may_use(lacking[0][0], gpu))  # the first that it may use
        mode = "" if gpu.parent else f"sudo nvidia-smi -i {gpu.index} -mig 1; "
        profiles = ",".join(profile for _, profile in lacking)
        raise BadSetting(
            f"{what}: {len(wanted)} runs need a MIG instance each, {len(lacking)} more than there are for them; "
            f"in sight: {listed}. Make some, where nobody uses the GPU: "
            f"{mode}sudo nvidia-smi mig -i {gpu.index} -cgi {profiles} -C"
        )
    return [given[place] for place in range(len(wanted))]


def _may_use(run: RunPlan, gpu: NvmlGpu) -> bool:
    return not run.devices or gpu.uuid in run.devices or gpu.parent in run.devices


def _profiles(uuid: str) -> set[str]:
    """Return the names of the MIG profiles that a GPU has."""
    known = nvml()
    handle = answer(known.nvmlDeviceGetHandleByUUID, uuid)
    all_numbers = range(known.NVML_GPU_INSTANCE_PROFILE_COUNT)
    found = [answer_of(known.nvmlDeviceGetGpuInstanceProfileInfo, handle, number) for number in all_numbers]
    return {info.name.removeprefix("MIG ").strip() for info in found if info}
