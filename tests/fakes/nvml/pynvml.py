"""NVML of the GPUs that ``fake_gpus.FakeGpus`` describes.

All of nvidia-ml-py is here as it is: functions, structures, constants, exceptions. Only the shared library that it
calls is replaced, by functions that take what the C functions of those names take. So a call with arguments or
fields that NVML does not have fails here too.
"""

# ruff: noqa: A001, A002, F821, N802, N805
# pyright: basic

from __future__ import annotations

import ctypes
import inspect
import os
import re
import sysconfig
import time
from ctypes import c_void_p, cast
from importlib.machinery import SourceFileLoader
from pathlib import Path

import fake_gpus

_real = SourceFileLoader("pynvml", str(Path(sysconfig.get_path("purelib"), "pynvml.py")))
exec(_real.get_code("pynvml"), globals())  # pyright: ignore

calls: list[str] = []
"""Names of the functions that this process has called."""
samples: set[int] = set()
"""GPM samples that this process has not freed."""
_MIGS = 7


class _Refused(Exception):
    def __init__(self, code):
        self.code = code


class _Library:
    """Stands for libnvidia-ml.so.1: a function for each of ``_Functions``, or none, as in an older driver.

    The first parameter of one tells what it works on: the machine's ``state``, what was ``found`` for a handle, or
    the ``gpu`` of one that is no MIG instance, of which NVML refuses it.
    """

    def __getattr__(self, name):
        function = getattr(_Functions, re.sub(r"_v\d$", "", name))

        def called(*args):
            calls.append(name)
            state = fake_gpus.read(Path(os.environ[fake_gpus.FOLDER]))
            try:
                _refuse(state["errors"], function.__name__)
                return function(*_given(function, state, args)) or NVML_SUCCESS
            except _Refused as refused:
                return refused.code

        return called


def _LoadNvmlLibrary():
    global nvmlLib  # noqa: PLW0603
    nvmlLib = _Library()


def _given(function, state, args):
    first = next(iter(inspect.signature(function).parameters))
    if first == "state":
        return state, *args
    found = _Handle(state, args[0], function.__name__)
    if first == "found":
        return found, *args[1:]
    if found.instance:
        raise _Refused(NVML_ERROR_NOT_SUPPORTED)
    return found.gpu, *args[1:]


def _refuse(errors, function):
    if (code := errors.get(function)) is not None:
        raise _Refused(code)


class _Handle:
    """A handle names a GPU, and perhaps a GPU instance and a compute instance of it."""

    def __init__(self, state, handle, function):
        value = cast(handle, c_void_p).value
        if not value:
            raise _Refused(NVML_ERROR_INVALID_ARGUMENT)
        index, instance, compute = (value >> 16) - 1, (value >> 8 & 255) - 1, (value & 255) - 1
        self.index = index
        self.gpu = state["gpus"][index]
        _refuse(self.gpu["errors"], "*")
        _refuse(self.gpu["errors"], function)
        self.instance = self.compute = None
        if instance >= 0:
            self.instance = _one(self.gpu["instances"], "id", instance)
        if compute >= 0:
            self.compute = _one(self.instance["compute"], "id", compute)

    @property
    def profile(self):
        return _one(_profiles(), "id", self.instance["profile"])


def _one(all, key, value):
    for each in all:
        if each[key] == value:
            return each
    raise _Refused(NVML_ERROR_NOT_FOUND)


def _profiles():
    keys = ("id", "name", "memory_mib", "slices", "fit")
    return [dict(zip(keys, each, strict=True)) for each in fake_gpus.H100_PROFILES.values()]


def _set(reference, value):
    reference._obj.value = value


def _set_handle(reference, index, instance=-1, compute=-1):
    value = (index + 1) << 16 | (instance + 1) << 8 | compute + 1
    ctypes.memmove(reference, ctypes.byref(c_void_p(value)), 8)


class _Functions:
    def nvmlInitWithFlags(state, flags):
        pass

    def nvmlErrorString(state, code):
        return b"Error %d" % code

    def nvmlSystemGetDriverVersion(state, text, length):
        text.value = b"580.95.05"

    def nvmlDeviceGetCount(state, count):
        _set(count, len(state["gpus"]))

    def nvmlDeviceGetHandleByIndex(state, index, device):
        if index.value >= len(state["gpus"]):
            raise _Refused(NVML_ERROR_INVALID_ARGUMENT)
        _set_handle(device, index.value)
        _Handle(state, device._obj, "nvmlDeviceGetHandleByIndex")

    def nvmlDeviceGetHandleByUUID(state, uuid, device):
        for index, gpu in enumerate(state["gpus"]):
            if gpu["uuid"].encode() == uuid.value:
                _set_handle(device, index)
                _Handle(state, device._obj, "nvmlDeviceGetHandleByUUID")
                return
            for instance in gpu["instances"]:
                for compute in instance["compute"]:
                    if compute["uuid"].encode() == uuid.value:
                        _set_handle(device, index, instance["id"], compute["id"])
                        return
        raise _Refused(NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetUUID(found, text, length):
        text.value = (found.compute or found.gpu)["uuid"].encode()

    def nvmlDeviceGetName(found, text, length):
        text.value = (found.gpu["name"] + (f" MIG {found.profile['name']}" if found.compute else "")).encode()

    def nvmlDeviceGetMemoryInfo(found, memory):
        memory._obj.total = found.profile["memory_mib"] << 20 if found.instance else found.gpu["memory_bytes"]
        memory._obj.used = found.gpu["used_bytes"]
        memory._obj.free = memory._obj.total - memory._obj.used

    def nvmlDeviceGetUtilizationRates(gpu, rates):
        if gpu["mig"] and gpu["mig"][0]:  # as of a real one in MIG mode
            raise _Refused(NVML_ERROR_NOT_SUPPORTED)
        rates._obj.gpu, rates._obj.memory = gpu["utilisation"], gpu["memory_utilisation"]

    def nvmlDeviceGetPowerUsage(gpu, power):
        _set(power, gpu["power_mw"])

    def nvmlDeviceGetTotalEnergyConsumption(gpu, energy):
        since = gpu["counting_since"]
        grown = 0 if since is None else (time.monotonic() - since) * gpu["power_mw"]
        _set(energy, gpu["energy_mj"] + round(grown))

    def nvmlDeviceGetClockInfo(gpu, type, clock):
        clocks = {NVML_CLOCK_SM: "sm_mhz", NVML_CLOCK_GRAPHICS: "sm_mhz", NVML_CLOCK_MEM: "memory_mhz"}
        _set(clock, gpu[clocks[type.value]])

    def nvmlDeviceGetTemperature(gpu, sensor, temperature):
        assert sensor.value == NVML_TEMPERATURE_GPU
        _set(temperature, gpu["temperature_c"])

    def nvmlDeviceGetCurrentClocksEventReasons(gpu, reasons):
        _set(reasons, gpu["reasons"])

    def nvmlDeviceGetComputeMode(gpu, mode):
        _set(mode, gpu["compute_mode"])

    def nvmlDeviceGetComputeRunningProcesses(found, count, processes):
        _list(found, "processes", count, processes)

    def nvmlDeviceGetMPSComputeRunningProcesses(found, count, processes):
        _list(found, "mps_processes", count, processes)

    # GPM

    def nvmlGpmQueryDeviceSupport(gpu, support):
        assert support._obj.version == NVML_GPM_SUPPORT_VERSION
        support._obj.isSupportedDevice = gpu["gpm"] is not None

    def nvmlGpmSampleAlloc(state, sample):
        value = max(samples, default=0) + 1
        samples.add(value)
        _taken[value] = None
        ctypes.memmove(sample, ctypes.byref(c_void_p(value)), 8)

    def nvmlGpmSampleFree(state, sample):
        samples.remove(cast(sample, c_void_p).value)

    def nvmlGpmSampleGet(found, sample):
        if found.gpu["gpm"] is None or found.instance:
            raise _Refused(NVML_ERROR_NOT_SUPPORTED)
        _take(sample, found.index, None)

    def nvmlGpmMigSampleGet(found, gpuInstanceId, sample):
        if found.gpu["gpm"] is None or found.instance:
            raise _Refused(NVML_ERROR_NOT_SUPPORTED)
        _one(found.gpu["instances"], "id", gpuInstanceId)
        _take(sample, found.index, gpuInstanceId)

    def nvmlGpmMetricsGet(state, reference):
        asked = reference._obj
        assert asked.version == NVML_GPM_METRICS_GET_VERSION
        first, second = (_taken[cast(each, c_void_p).value] for each in (asked.sample1, asked.sample2))
        if first is None or second is None or first[:2] != second[:2] or first[2] >= second[2]:
            raise _Refused(NVML_ERROR_INVALID_ARGUMENT)
        gpu = state["gpus"][first[0]]
        _refuse(gpu["errors"], "*")
        for metric in asked.metrics[: asked.numMetrics]:
            value = gpu["gpm"].get(str(metric.metricId))
            metric.nvmlReturn = NVML_ERROR_NOT_SUPPORTED if value is None else NVML_SUCCESS
            metric.value = 0.0 if value is None else value

    # MIG

    def nvmlDeviceGetMigMode(gpu, current, pending):
        if gpu["mig"] is None:
            raise _Refused(NVML_ERROR_NOT_SUPPORTED)
        current._obj.value, pending._obj.value = gpu["mig"]

    def nvmlDeviceGetMaxMigDeviceCount(gpu, count):
        _set(count, _MIGS if gpu["mig"] else 0)

    def nvmlDeviceGetMigDeviceHandleByIndex(found, index, mig):
        all = [(each["id"], compute["id"]) for each in found.gpu["instances"] for compute in each["compute"]]
        if index.value >= len(all):
            raise _Refused(NVML_ERROR_NOT_FOUND)
        _set_handle(mig, found.index, *all[index.value])

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(found, device):
        _set_handle(device, found.index)

    def nvmlDeviceGetGpuInstanceId(found, id):
        _set(id, found.instance["id"])

    def nvmlDeviceGetGpuInstanceProfileInfoV(gpu, profile, info):
        assert info._obj.version == nvmlGpuInstanceProfileInfo_v2
        if gpu["mig"] is None or profile not in fake_gpus.H100_PROFILES:
            raise _Refused(NVML_ERROR_NOT_SUPPORTED)
        id, name, memory_mib, slices, fit = fake_gpus.H100_PROFILES[profile]
        info._obj.id, info._obj.memorySizeMB = id, memory_mib
        info._obj.sliceCount, info._obj.instanceCount = slices, fit
        info._obj.name = f"MIG {name}".encode()


_taken = {}


def _take(sample, index, instance):
    _taken[cast(sample, c_void_p).value] = (index, instance, time.monotonic_ns())


def _list(found, key, count, processes):
    nothing = NVML_VALUE_NOT_AVAILABLE_uint.value
    seen = [
        each
        for each in ([*each, None][:3] for each in found.gpu[key])
        if not found.instance or each[2] == found.instance["id"]
    ]
    room, count._obj.value = count._obj.value, len(seen)
    if not seen:
        return
    if processes is None or room < len(seen):
        raise _Refused(NVML_ERROR_INSUFFICIENT_SIZE)
    for place, (pid, used, instance) in enumerate(seen):
        processes[place].pid = pid
        processes[place].usedGpuMemory = NVML_VALUE_NOT_AVAILABLE_ulonglong.value if used is None else used
        processes[place].gpuInstanceId = nothing if instance is None else instance
        processes[place].computeInstanceId = nothing if instance is None else 0
