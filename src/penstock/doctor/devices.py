"""What ``penstock doctor`` finds of GPUs (driver, MIG, GPM, MPS), and of the mechanisms that read files here."""

from __future__ import annotations

import importlib.util
import mmap
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from penstock.basics.sizes import size_text
from penstock.contracts import ByteArray, Extents
from penstock.errors import BadSetting, GpuMissing, PenstockError, ReaderUnavailable
from penstock.feed.statistics import FeederStatistics
from penstock.gpus.nvml import NvmlGpu, answer_of, gpus, nvml, visible_gpus
from penstock.io import gds
from penstock.io.files import devices, file_system
from penstock.io.nvme import module
from penstock.io.nvme.admin import CSTS, FATAL, OFF_THE_BUS, capabilities
from penstock.io.open import MECHANISMS, open_reader
from penstock.runs.modes.mps import unusable
from penstock.sources.remote.connecting import connected, on_node
from penstock.sources.remote.fetching import in_words
from penstock.sources.remote.maker import other_versions, versions


class Finding(msgspec.Struct, frozen=True):
    """One thing that was tried: whether it works, what was seen, and what to do if it does not."""

    what: str
    verdict: Literal["works", "limited", "fails"]
    found: str
    remedy: str = ""


_COMPUTE_MODES = {0: "shared", 2: "prohibited", 3: "exclusive to one process"}
_DEFAULT_PIPES = "/tmp/nvidia-mps"


def driver() -> Iterator[Finding]:
    """Report NVML's answers on each GPU, and whether this user may change MIG."""
    try:
        known = nvml()
        machine = gpus()
    except GpuMissing as missing:
        found = f"{missing.why}; nothing is known of the driver and of other processes' GPUs"
        yield Finding("NVML", "limited", found, missing.remedy)
        return
    yield Finding("NVML", "works", f"driver {answer_of(known.nvmlSystemGetDriverVersion)}")
    for gpu, migs in machine:
        yield _device(gpu, migs)
    handles = [answer_of(known.nvmlDeviceGetHandleByUUID, gpu.uuid) for gpu, _ in machine]
    if any(handle and answer_of(known.nvmlDeviceGetMigMode, handle) for handle in handles):
        found = "instances that are there are used (--mode mig:PROFILE); root makes them (nvidia-smi mig -cgi)"
        yield Finding("MIG", "works", found)


def _device(gpu: NvmlGpu, migs: list[NvmlGpu]) -> Finding:
    known = nvml()
    what, device = f"GPU {gpu.index} of the machine", answer_of(known.nvmlDeviceGetHandleByUUID, gpu.uuid)
    if device is None:
        return Finding(what, "fails", f"{gpu.uuid} is lost", "the kernel's log has the reason (dmesg, NVRM: Xid)")
    mode, mig = answer_of(known.nvmlDeviceGetComputeMode, device), answer_of(known.nvmlDeviceGetMigMode, device)
    on = f"on ({', '.join(f'{each.profile} {each.uuid}' for each in migs) or 'no instances'})"
    gpm = answer_of(known.nvmlGpmQueryDeviceSupport, device)
    found = (
        f"{gpu.uuid}, MIG {'none' if mig is None else on if mig[0] else 'off'}, "
        f"GPM {'works' if gpm and gpm.isSupportedDevice else 'none (it begins with Hopper)'}, "
        f"compute mode {_COMPUTE_MODES.get(mode, mode)}"
    )
    if mode in {0, None}:
        return Finding(what, "works", found)
    remedy = f"several processes cannot share it: nvidia-smi -i {gpu.index} -c DEFAULT, as root, or MPS"
    return Finding(what, "fails" if mode == 2 else "limited", found, remedy)


def seen_devices(environment: Mapping[str, str], uuids: list[str], count: int) -> Finding:
    """Report which devices this process sees (``uuids``), and which are named but do not exist.

    The machine has ``count`` GPUs; 0 if not known.
    """
    listed = ", ".join(f"cuda:{i} is {uuid}" for i, uuid in enumerate(uuids)) or "none"
    given = environment.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return Finding("devices", "works" if uuids else "limited", listed)
    named = [name.strip() for name in given.split(",") if name.strip()]
    found = f"CUDA_VISIBLE_DEVICES={given!r} shows {listed}"
    lost = [name for name in named if not _exists(name, uuids, count)]
    if not lost and len(named) <= len(uuids):
        return Finding("devices", "works" if uuids else "limited", found)
    # CUDA stops at the first unknown device, and shows those before it.
    found = f"{found}; no device is {', '.join(lost) or 'some of them'}"
    return Finding("devices", "limited", found, "unset it, or name what nvidia-smi -L lists")


def _exists(name: str, uuids: list[str], count: int) -> bool:
    if name.lstrip("-").isdecimal():
        return 0 <= int(name) and (not count or int(name) < count)
    return any(uuid.lower().startswith(name.lower()) for uuid in uuids)  # CUDA accepts prefixes of UUIDs


def mps(environment: Mapping[str, str], feeds: list[FeederStatistics]) -> Iterator[Finding]:
    """Report whether an MPS daemon serves this process, and each feeder with a ring on a GPU."""
    pipes = _pipes(environment)
    mine = _daemon(pipes)
    chosen = "CUDA_MPS_PIPE_DIRECTORY" in environment
    if mine is not None:
        # Writing to a read-only view of a ring is such a fault.
        shared = "a fault of one client on a GPU (an illegal address) may end the others too"
        yield Finding("MPS", "works", f"a daemon serves {pipes}; this process would be its client; {shared}")
    elif chosen:
        remedy = "start nvidia-cuda-mps-control -d, or unset CUDA_MPS_PIPE_DIRECTORY"
        yield Finding("MPS", "limited", f"CUDA_MPS_PIPE_DIRECTORY={pipes} has no control pipe", remedy)
    else:
        yield Finding("MPS", "works", f"no daemon at {pipes}; processes take turns on a GPU")
    for feed in feeds:
        if feed.sharing.startswith("ring on "):
            yield _feeder(feed, mine, pipes)


def mode_mps(environment: Mapping[str, str]) -> Finding:
    """Report whether ``penstock run --mode mps`` would work."""
    try:
        gpus = visible_gpus(environment)
        why = unusable(gpus) if gpus else "no GPU is visible"
    except GpuMissing as error:
        gpus, why = [], str(error)
    if why:
        return Finding("--mode mps", "limited", f"penstock run cannot start MPS daemons: {why}")
    found = f"penstock run can start MPS daemons on {', '.join(gpu.uuid for gpu in gpus)}"
    if _daemon(pipes := _pipes(environment)) is not None:
        found += f"; runs in other modes would be clients of the daemon at {pipes}, too"
    found += "; a feed that a run starts outlives its daemon: it is no client, and keeps its ring on the host"
    return Finding("--mode mps", "works", found)


def _feeder(feed: FeederStatistics, mine: tuple[int, int] | None, pipes: Path) -> Finding:
    what = f"feed {feed.name!r}"
    try:
        given = Path(f"/proc/{feed.pid}/environ").read_bytes().split(b"\0")
    except OSError as error:
        return Finding(what, "limited", f"process {feed.pid} does not show its environment: {error.strerror}")
    pairs = (os.fsdecode(pair).partition("=") for pair in given if pair)
    its_pipes = _pipes({name: value for name, _, value in pairs})
    its = _daemon(its_pipes)
    if its == mine:
        both = f"clients of the MPS daemon at {pipes}" if mine else "without MPS"
        return Finding(what, "works", f"its feeder (process {feed.pid}) and this process are {both}")
    if its is None:
        found = f"is without MPS, this process would be a client at {pipes}"
        remedy = f"end it and start it with CUDA_MPS_PIPE_DIRECTORY={pipes}: its trainers then share the GPU, too"
    else:
        found = f"is a client of the MPS daemon at {its_pipes}, this process is not"
        remedy = f"start trainers with CUDA_MPS_PIPE_DIRECTORY={its_pipes}"
    return Finding(what, "limited", f"its feeder (process {feed.pid}) {found}", remedy)


def _pipes(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("CUDA_MPS_PIPE_DIRECTORY") or _DEFAULT_PIPES)


def _daemon(pipes: Path) -> tuple[int, int] | None:
    """Identify the daemon whose control pipe lies there, by device and inode; None if this user can use none."""
    control = pipes / "control"
    try:
        seen = control.stat()
    except OSError:
        return None
    usable = (stat.S_ISFIFO(seen.st_mode) or stat.S_ISSOCK(seen.st_mode)) and os.access(control, os.R_OK | os.W_OK)
    return (seen.st_dev, seen.st_ino) if usable else None


_NBYTES = 65_536


def probe(folder: str | Path = ".") -> list[Finding]:
    """Try each mechanism, on a small file in this folder if it reads files; look at disks for ``"gpu"``."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".penstock-probe-") as file:
            content = np.random.default_rng(0).integers(0, 256, _NBYTES, np.uint8)
            file.write(content.tobytes())
            file.flush()
            os.fsync(file.fileno())
            found = [_try(mech, file.name, content) for mech in MECHANISMS]
    except OSError as error:
        failed = f"no file can be written to {folder}: {error.strerror}"
        found = [Finding("readers", "limited", failed, "try elsewhere")]
    return [*found, *map(_look_at, devices())]


def _try(mech: str, path: str, content: ByteArray) -> Finding:
    what = f"reader {mech}"
    try:
        if mech == "gds":
            return Finding(what, "works", f"{gds.version()} opens; no file was read")
        memory: ByteArray = np.frombuffer(mmap.mmap(-1, _NBYTES), np.uint8)
        with closing(open_reader(mech, memory, depth=4, threads=1)) as reader:
            if mech == "object":
                store = os.environ.get("AWS_ENDPOINT_URL", "AWS")
                return Finding(what, "works", f"{reader.path_taken}; no store was asked, s3:// is {store}")
            file, _ = reader.open(path)
            zero = np.zeros(1, np.int64)
            reader.submit(Extents(zero, zero + file, zero, zero + _NBYTES, zero))
            for failure in reader.completed().failures.values():
                raise failure
            found = f"{reader.path_taken}, on {file_system(path)}"
    except ReaderUnavailable as error:
        return Finding(what, "limited", error.why, error.remedy)
    except (PenstockError, OSError) as error:
        return Finding(what, "fails", str(error))
    if not np.array_equal(memory, content):
        found += ": other bytes came than the file holds"
        return Finding(what, "fails", found, f"do not read with {mech!r}")
    return Finding(what, "works", found)


def _look_at(path: str) -> Finding:
    """Look at a disk under BaM's kernel module without a reset, as another program may be reading it."""
    what = f"disk {path}"
    try:
        with closing(module.LibnvmModule(path)) as disk:
            registers = disk.registers(mmap.PAGESIZE)
            features, status = capabilities(registers), int(registers[CSTS])
    except ReaderUnavailable as error:
        return Finding(what, "limited", error.why, error.remedy)
    if status == OFF_THE_BUS:
        return Finding(what, "fails", "it does not answer on the bus", "see dmesg, or power it off and on")
    state = "it has failed, and would be reset" if status & FATAL else "no read was tried, which would reset it"
    found = f"NVMe {features.version}, queues of up to {features.entries} entries; mech='gpu' reads it; {state}"
    return Finding(what, "works", found)


_BLOCK_BYTES = 16 << 20
_ANSWER_S = 30.0


def examine_ray() -> list[Finding]:
    """Connect to the cluster, and have each of its nodes send a block."""
    return list(_findings())


def _findings() -> Iterator[Finding]:
    if importlib.util.find_spec("ray") is None:
        yield Finding("Ray", "fails", "not installed", 'pip install "penstock[ray]"')
        return
    address = os.environ.get("RAY_ADDRESS")
    try:
        ray = connected()
    except BadSetting as error:
        yield Finding("cluster", "fails", str(error))
        return
    except Exception as error:  # whatever Ray raises where there is no cluster
        where = f"at RAY_ADDRESS={address}" if address else "on this machine"
        remedy = "ray start --head --port 6379, and on other machines ray start --address HEAD:6379"
        yield Finding("cluster", "fails", f"there is none {where}: {in_words(error)}", remedy)
        return
    try:
        yield Finding("cluster", "works", f"{ray.get_runtime_context().gcs_address}, Ray {ray.__version__}")
        token = os.environ.get("RAY_AUTH_MODE") == "token"
        found = "with a token" if token else "without a token"
        yield Finding(
            "who may enter", "works" if token else "limited", found, "" if token else "RAY_AUTH_MODE=token"
        )
        for node in ray.nodes():
            yield _node(ray, node)
    finally:
        ray.shutdown()


def _node(ray: Any, node: dict[str, Any]) -> Finding:
    name, resources = f"node {node['NodeName']}", node["Resources"]
    if not node["Alive"]:
        return Finding(name, "limited", "Ray takes it for dead", "ray start --address on it again")
    if not resources.get("CPU"):
        return Finding(name, "limited", "it has no cores for blocks", "ray start --num-cpus N")
    asked: Any = ray.remote(_probe).options(num_cpus=0, max_retries=0, **on_node(node["NodeID"]))
    try:
        theirs, _ = ray.get(asked.remote(), timeout=_ANSWER_S)
        began = time.perf_counter()
        ray.get(asked.remote(), timeout=_ANSWER_S)
        took_s = time.perf_counter() - began
    except Exception as error:  # whatever Ray raises
        remedy = "look whether Penstock is installed there, and reaches this machine"
        return Finding(name, "fails", f"it makes no block: {in_words(error)}", remedy)
    if differ := other_versions(theirs, versions(), "this machine"):
        return Finding(name, "fails", differ, "install the same versions on all machines")
    store = size_text(int(resources.get("object_store_memory", 0)))
    speed = f"a block of {size_text(_BLOCK_BYTES)} takes {took_s * 1000:.0f} ms"
    return Finding(name, "works", f"{int(resources['CPU'])} cores, store of {store}, {speed}")


def _probe() -> tuple[tuple[str, ...], Any]:
    return versions(), np.zeros(_BLOCK_BYTES, np.uint8)
