"""A machine's GPUs for tests: a file in a folder, so that many processes see one machine.

``FakeGpus`` is the tests' side; ``pynvml`` beside this file shows the same GPUs through NVML's own Python binding.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = "PENSTOCK_FAKE_GPUS"

H100_PROFILES = {
    # profile constant: (profile id, name, memory in MiB, slices, how many fit)
    0: (19, "1g.10gb", 9856, 1, 7),
    1: (14, "2g.20gb", 19968, 2, 3),
    2: (9, "3g.40gb", 40192, 3, 2),
    4: (0, "7g.80gb", 80896, 7, 1),
}
"""MIG profiles as NVML tells them of an H100 with 80 GB, by NVML_GPU_INSTANCE_PROFILE_…"""

_NEW = {
    "memory_bytes": 80 << 30,
    "used_bytes": 1 << 30,
    "utilisation": 50,
    "memory_utilisation": 20,
    "power_mw": 300_000,
    "sm_mhz": 1700,
    "memory_mhz": 2600,
    "temperature_c": 60,
    "reasons": 0,
    "energy_mj": 1_000_000,
    "counting_since": None,
    "processes": [],
    "mps_processes": [],
    "compute_mode": 0,
    "gpm": {},
    "mig": [0, 0],
    "instances": [],
    "errors": {},
}


class FakeGpus:
    """The tests' side of the machine."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder  # where the machine's state lies
        # The real driver gives each mode, and each GPU that it lost, to every process alike.
        (folder / "gpus.json").write_text(json.dumps({"gpus": [], "errors": {}}))
        path = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
        self.environment = {"PYTHONPATH": path, FOLDER: str(folder)}
        """Variables with which a Python process sees this machine as its own."""

    def add(self, **values: Any) -> str:
        """Add a GPU; return its UUID. ``values`` are those of ``set``, and ``uuid`` and ``name``."""
        with edited(self.folder) as state:
            index = len(state["gpus"])
            named = {"uuid": f"GPU-{index:08x}-0000-4000-8000-000000000000", "name": "NVIDIA H100 80GB HBM3"}
            state["gpus"].append(json.loads(json.dumps(_NEW | named | values)))
            return state["gpus"][index]["uuid"]

    def set(self, index: int, **values: Any) -> None:
        """Set readings of a GPU: the keys of ``_NEW``.

        ``processes``, and ``mps_processes`` of MPS's clients: [[pid, used bytes or None for not available, GPU
        instance or None], …]. ``reasons``: mask of nvmlClocksEventReason…. ``gpm``: None where GPM is not
        supported, else {metric id: value}. ``mig``: [current, pending] mode, or None where there is none.
        """
        with edited(self.folder) as state:
            assert values.keys() <= _NEW.keys(), values
            state["gpus"][index] |= json.loads(json.dumps(values))

    def count_energy(self, index: int) -> None:
        """From now on the GPU's energy counter goes up by its power."""
        self.set(index, counting_since=time.monotonic())

    def refuse(self, function: str, code: int | None, index: int | None = None) -> None:
        """Make a function fail with one of NVML_ERROR_…, of one GPU or altogether; None: it works again.

        ``function`` is its name in C without version ("nvmlDeviceGetPowerUsage"); "*" is all those of a GPU,
        as when it is lost.
        """
        with edited(self.folder) as state:
            errors = state["errors"] if index is None else state["gpus"][index]["errors"]
            errors.pop(function, None)
            if code is not None:
                errors[function] = code

    def add_mig(self, index: int, profile: str) -> str:
        """Turn MIG mode on, and make a GPU instance of this profile with one compute instance; return its UUID."""
        with edited(self.folder) as state:
            state["gpus"][index]["mig"] = [1, 1]
            (found,) = (each[0] for each in H100_PROFILES.values() if each[1] == profile)
            instance = new_instance(state["gpus"][index], found)
            return new_compute_instance(state["gpus"][index], instance)["uuid"]

    def migs(self, index: int) -> list[str]:
        """List the UUIDs of a GPU's MIG devices."""
        instances = read(self.folder)["gpus"][index]["instances"]
        return [compute["uuid"] for instance in instances for compute in instance["compute"]]


def new_instance(gpu: dict[str, Any], profile: int) -> dict[str, Any]:
    """Make a GPU instance."""
    id = min(set(range(1, 16)) - {each["id"] for each in gpu["instances"]})
    gpu["instances"].append({"id": id, "profile": profile, "compute": []})
    return gpu["instances"][-1]


def new_compute_instance(gpu: dict[str, Any], instance: dict[str, Any]) -> dict[str, Any]:
    """Make the compute instance that is as large as its GPU instance."""
    gpu["made"] = gpu.get("made", 0) + 1
    uuid = f"MIG-{gpu['made']:08x}-{gpu['uuid'][8:12]}-5000-8000-000000000000"
    instance["compute"].append({"id": 0, "uuid": uuid})
    return instance["compute"][-1]


def read(folder: Path) -> dict[str, Any]:
    """Return the machine's state."""
    with edited(folder, write=False) as state:
        return state


@contextmanager
def edited(folder: Path, *, write: bool = True) -> Iterator[Any]:
    """Lend the machine's state; what was changed is there for all afterwards."""
    with open(folder / "gpus.json", "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        state = json.load(file)
        yield state
        if write:
            file.seek(0)
            file.truncate()
            json.dump(state, file)
