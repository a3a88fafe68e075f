"""Tries what sharing a loader needs on this machine."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import resource
import threading
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import TypeVar

import numpy as np
import psutil

from penstock.contracts import Gpu, WritableRing
from penstock.doctor import devices
from penstock.doctor.devices import Finding
from penstock.errors import BadSetting, DeviceUnavailable, PenstockError, PinningRefused
from penstock.feed.directory import directory
from penstock.feed.feeder.feeder import Feeder
from penstock.feed.launch.attach import attach
from penstock.feed.launch.feeds import feeds
from penstock.feed.settings import DEFAULT_WINDOW, bytes_from
from penstock.io.reader import lies_on_huge_pages
from penstock.linux.cgroups import memory_limit_bytes
from penstock.memory.cuda import CudaGpu, uuid_of
from penstock.memory.gpu_ring import DeviceRing, WritableDeviceRing
from penstock.memory.host_ring import HostRing, WritableHostRing
from penstock.runs.listeners.energy import rapl_missing
from penstock.sources.plain import ArraySource

R = TypeVar("R", bound=WritableRing)
_DRIVER = Path("/proc/driver/nvidia/version")


def examine() -> list[Finding]:
    """Try everything; findings come from doing things, not from version numbers."""
    checks: dict[str, Callable[[], Iterable[Finding]]] = {
        "System": _system,
        "Directory of sockets": _directory,
        "Ring memory": _ring,
        "A feed, end to end": _share,
        "Memory": _memory,
        "Huge pages": _huge_pages,
        "File descriptors": _files,
        "Libraries": _libraries,
        "GPU": _gpu,
        "NVML": devices.driver,
        "MPS": _mps,
        "Energy counters of processors": _energy,
        "Readers": devices.probe,
    }
    findings: list[Finding] = []
    for name, check in checks.items():
        try:
            findings.extend(check())
        except (OSError, PenstockError, RuntimeError) as error:  # RuntimeError: torch's, for a full or busy GPU
            findings.append(Finding(name, "fails", str(error)))
    return findings


def _enough(what: str, found: str, remedy: str = "", *, enough: object) -> Finding:
    return Finding(what, "works", found) if enough else Finding(what, "limited", found, remedy)


def _system() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0))
    found = f"Linux {platform.release()}, Python {platform.python_version()}, {cores} cores"
    yield Finding("system", "works", found)


def _directory() -> Iterator[Finding]:
    path = directory()
    running = feeds()
    yield Finding("sockets", "works", f"{path} is yours alone; feeds that run: {len(running)}")


def _ring() -> Iterator[Finding]:
    def seen(ring: WritableHostRing) -> bytes:
        reader = HostRing.attach(fd := ring.open_for_readers(), ring.capacity_bytes)
        os.close(fd)
        found = reader.readable(0, 8).tobytes()
        reader.close()
        return found

    yield _round_trip("host ring", "memfd, mapped read-only by trainers", WritableHostRing.create(1 << 20), seen)


def _round_trip(what: str, found: str, ring: R, seen: Callable[[R], bytes]) -> Finding:
    """Write into a ring, and read it back through a descriptor as a trainer does."""
    try:
        ring.write(0, np.full(8, 7, np.uint8))
        ring.flush()
        read = seen(ring)
    finally:
        ring.close()
    if read == bytes([7] * 8):
        return Finding(what, "works", found)
    return Finding(what, "fails", f"wrote {bytes([7] * 8).hex()}, read {read.hex()}")


def _share() -> Iterator[Finding]:
    name = f"penstock-doctor-{os.getpid()}"
    source = ArraySource({"id": np.arange(1000)}, batch_size=100)
    with Feeder(source, name, window="1MiB", epochs=1) as feeder:
        thread = threading.Thread(target=feeder.run)
        thread.start()
        with attach(name, 33) as loader:
            ids = np.concatenate([batch["id"] for batch in loader])
        thread.join()
    if sorted(ids.tolist()) == list(range(1000)):
        yield Finding("a feed", "works", "1,000 samples, each exactly once")
    else:
        different = len(set(ids.tolist()))
        yield Finding("a feed", "fails", f"{len(ids):,} of 1,000 samples arrived, {different:,} different ones")


def _memory() -> Iterator[Finding]:
    available = min(psutil.virtual_memory().available, memory_limit_bytes())
    window = bytes_from(DEFAULT_WINDOW)
    found = f"{available / 2**30:.1f} GiB available, a feed's window is {window >> 20} MiB unless set"
    remedy = 'pass a smaller window, such as window="128MiB"'
    yield _enough("memory", found, remedy, enough=available > 2 * window)


def _huge_pages() -> Iterator[Finding]:
    ring = WritableHostRing.create(8 << 20)
    try:
        ring.writable(0, ring.capacity_bytes)[:] = 1
        huge = lies_on_huge_pages(ring.readable(0, ring.capacity_bytes))
    finally:
        ring.close()
    small = "pages of 4 KiB; disks read into those more slowly"
    remedy = "echo advise | sudo tee /sys/kernel/mm/transparent_hugepage/shmem_enabled"
    yield _enough("huge pages", f"the ring lies on {'huge pages' if huge else small}", remedy, enough=huge)


def _files() -> Iterator[Finding]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{soft} a process; a feeder takes one a trainer"
    yield _enough("descriptors", found, "ulimit -n 4096", enough=soft >= 1024)


def _libraries() -> Iterator[Finding]:
    for library, package, use in (
        ("torch", "torch", "to feed DataLoaders and receive tensors"),
        ("simplejpeg", "images", "for ImageSource, the demo and the JPEG benchmark"),
        ("cv2", "images", "for ImageSource, the demo and the JPEG benchmark"),
        ("confluent_kafka", "kafka", "for a StreamSource of Kafka"),
    ):
        if importlib.util.find_spec(library):
            packages = packages_distributions().get(library, [])
            yield Finding(library, "works", version(packages[0]) if packages else "installed")
        else:
            yield Finding(library, "limited", f"not installed; needed {use}", f'pip install "penstock[{package}]"')
    if importlib.util.find_spec("simplejpeg") and importlib.util.find_spec("cv2"):
        yield _decoder()
        if _DRIVER.exists():
            yield _gpu_decoder()


def _decoder() -> Finding:
    from penstock.sources.images.decoders import DECODER, WholeDecoder, decoder
    from penstock.sources.images.turbo import OVERRIDE

    try:
        found = decoder()
    except BadSetting as error:
        remedy = f"unset {OVERRIDE if OVERRIDE in str(error) else DECODER}"
        return Finding("JPEG decoder", "fails", str(error), remedy)
    if type(found) is not WholeDecoder:  # nvImageCodec's is one for what it does not decode
        return Finding("JPEG decoder", "works", found.name)
    remedy = "conda install -c conda-forge libjpeg-turbo (3.0.2 or later)"
    if _DRIVER.exists():  # for whose systems NVIDIA's licence is
        remedy = f'pip install "penstock[nvimagecodec]", or {remedy}'
    limit = f"{found.name}; regions take a fifth to a third less CPU time"
    return Finding("JPEG decoder", "limited", limit, remedy)


def _gpu_decoder() -> Finding:
    from penstock.sources.images.gpu import lacks

    if why := lacks():
        return Finding("JPEGs on a GPU", "limited", f'ImageSource(gpu="auto"): {why}')
    found = f"torchvision {version('torchvision')} and cuda-bindings {version('cuda-bindings')} are installed"
    return Finding("JPEGs on a GPU", "works", f'{found} for ImageSource(gpu="auto")')


def _gpu() -> Iterator[Finding]:
    if not _DRIVER.exists():
        yield Finding("GPU", "limited", "no NVIDIA driver is loaded; batches end in host memory")
        return
    if not os.access("/dev/nvidiactl", os.R_OK | os.W_OK):
        remedy = "join the group that owns it (often video)"
        yield Finding("GPU", "fails", "/dev/nvidiactl cannot be opened by you", remedy)
        return
    if importlib.util.find_spec("torch"):
        torch = importlib.import_module("torch")
        uuids = [uuid_of(torch, i) for i in range(torch.cuda.device_count())]
        in_all = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
        yield devices.seen_devices(os.environ, uuids, in_all)
    gpu = CudaGpu("cuda")
    yield Finding("GPU", "works", f"{gpu.name} is {gpu.uuid}")
    yield pinned_ring(gpu)
    yield _gpu_ring(gpu)


def pinned_ring(gpu: Gpu) -> Finding:
    """Report whether a trainer on this GPU can register a feed's ring with it."""
    ring = WritableHostRing.create(1 << 20)
    fd = ring.open_for_readers()
    try:
        reader = HostRing.attach_pinned(fd, ring.capacity_bytes, gpu)
        gpu.unpin(reader.readable(0, ring.capacity_bytes))
    except PinningRefused as refused:
        return Finding("pinned ring", "limited", f"{refused}; copies go by way of a buffer, which costs CPU time")
    finally:
        os.close(fd)
        ring.close()
    return Finding("pinned ring", "works", "a trainer's mapping of a ring on the host can be registered with it")


def _gpu_ring(gpu: CudaGpu) -> Finding:
    def seen(ring: WritableDeviceRing) -> bytes:
        reader = DeviceRing.attach(gpu, fd := ring.open_for_readers(), ring.capacity_bytes)
        os.close(fd)
        there = np.empty(8, np.uint8)
        with gpu.beside():
            gpu.copy_out(there, reader.readable(0, 8))
        gpu.synchronize()
        reader.close()
        return there.tobytes()

    try:
        ring = WritableDeviceRing(gpu, 1 << 20)
        return _round_trip("GPU ring", "a descriptor of its memory, mapped read-only by trainers", ring, seen)
    except DeviceUnavailable as error:
        return Finding("GPU ring", "limited", str(error), 'Feeder(memory="host") needs nothing of it')


def _energy() -> Iterator[Finding]:
    missing = rapl_missing()
    yield _enough("RAPL", *(missing or ["the processor's energy can be read"]), enough=not missing)


def _mps() -> Iterator[Finding]:
    if _DRIVER.exists():
        yield from devices.mps(os.environ, feeds())
        yield devices.mode_mps(os.environ)
