"""Tries what sharing a loader needs on this machine."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import resource
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import TypeVar

import numpy as np
import psutil

from penstock.contracts import Gpu, WritableRing
from penstock.doctor import devices as doctor_gpu
from penstock.doctor.devices import Finding, probe
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
    checks: list[Callable[[], Iterator[Finding]]] = [
        _system,
        _directory,
        _ring,
        _share,
        _memory,
        _huge_pages,
        _files,
        _libraries,
        _gpu,
        _driver,
        _mps,
        _energy,
        _readers,
    ]
    findings: list[Finding] = []
    for check in checks:
        try:
            findings.extend(check())
        except (OSError, PenstockError, RuntimeError) as error:  # RuntimeError: torch's, for a full or busy GPU
            findings.append(Finding((check.__doc__ or "").rstrip("."), "fails", str(error)))
    return findings


def _system() -> Iterator[Finding]:
    """System."""
    cores = len(os.sched_getaffinity(0))
    yield Finding(
        "system", "works", f"Linux {platform.release()}, Python {platform.python_version()}, {cores} cores"
    )


def _directory() -> Iterator[Finding]:
    """Directory of sockets."""
    path = directory()
    running = feeds()
    yield Finding("sockets", "works", f"{path} is yours alone; feeds that run: {len(running)}")


def _ring() -> Iterator[Finding]:
    """Ring memory."""

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
    """A feed, end to end."""
    name = f"penstock-doctor-{os.getpid()}"
    source = ArraySource({"id": np.arange(1000)}, batch_size=100)
    with Feeder(source, name, window="1MiB", epochs=1) as feeder:
        thread = threading.Thread(target=feeder.run)
        thread.start()
        with attach(name, 33) as loader:
            ids = np.concatenate([batch["id"] for batch in loader])
        thread.join()
    exact = sorted(ids.tolist()) == list(range(1000))
    yield Finding(
        "a feed",
        "works" if exact else "fails",
        "1,000 samples, each exactly once"
        if exact
        else f"{len(ids):,} of 1,000 samples arrived, {len(set(ids.tolist())):,} different ones",
    )


def _readers() -> Iterator[Finding]:
    """Readers."""
    yield from probe()


def _memory() -> Iterator[Finding]:
    """Memory."""
    available = min(psutil.virtual_memory().available, memory_limit_bytes())
    window = bytes_from(DEFAULT_WINDOW)
    enough = available > 2 * window
    yield Finding(
        "memory",
        "works" if enough else "limited",
        f"{available / 2**30:.1f} GiB available, a feed's window is {window >> 20} MiB unless set",
        "" if enough else 'pass a smaller window, such as window="128MiB"',
    )


def _huge_pages() -> Iterator[Finding]:
    """Huge pages."""
    ring = WritableHostRing.create(8 << 20)
    try:
        ring.writable(0, ring.capacity_bytes)[:] = 1
        huge = lies_on_huge_pages(ring.readable(0, ring.capacity_bytes))
    finally:
        ring.close()
    yield Finding(
        "huge pages",
        "works" if huge else "limited",
        "the ring lies on huge pages"
        if huge
        else "the ring lies on pages of 4 KiB; disks read into those more slowly",
        "" if huge else "echo advise | sudo tee /sys/kernel/mm/transparent_hugepage/shmem_enabled",
    )


def _files() -> Iterator[Finding]:
    """File descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = soft >= 1024
    yield Finding(
        "descriptors",
        "works" if enough else "limited",
        f"{soft} a process; a feeder takes one a trainer",
        "" if enough else "ulimit -n 4096",
    )


def _libraries() -> Iterator[Finding]:
    """Libraries."""
    for library, package, use in (
        ("torch", "torch", "to feed DataLoaders and receive tensors"),
        ("simplejpeg", "images", "for ImageSource, the demo and the JPEG benchmark"),
        ("cv2", "images", "for ImageSource, the demo and the JPEG benchmark"),
    ):
        if importlib.util.find_spec(library):
            packages = packages_distributions().get(library, [])
            yield Finding(library, "works", version(packages[0]) if packages else "installed")
        else:
            yield Finding(library, "limited", f"not installed; needed {use}", f'pip install "penstock[{package}]"')
    if importlib.util.find_spec("simplejpeg") and importlib.util.find_spec("cv2"):
        yield _decoder()


def _decoder() -> Finding:
    from penstock.sources.images.decoders import DECODER, WholeDecoder, decoder
    from penstock.sources.images.turbo import OVERRIDE

    try:
        found = decoder()
    except BadSetting as error:
        return Finding(
            "JPEG decoder", "fails", str(error), f"unset {OVERRIDE if OVERRIDE in str(error) else DECODER}"
        )
    if not isinstance(found, WholeDecoder):
        return Finding("JPEG decoder", "works", found.name)
    remedy = 'pip install "penstock[nvimagecodec]", or conda install -c conda-forge libjpeg-turbo (3.0.2 or later)'
    return Finding(
        "JPEG decoder", "limited", f"{found.name}; regions take a fifth to a third less CPU time", remedy
    )


def _gpu() -> Iterator[Finding]:
    """GPU."""
    if not _DRIVER.exists():
        yield Finding("GPU", "limited", "no NVIDIA driver is loaded; batches end in host memory")
        return
    if not os.access("/dev/nvidiactl", os.R_OK | os.W_OK):
        yield Finding(
            "GPU", "fails", "/dev/nvidiactl cannot be opened by you", "join the group that owns it (often video)"
        )
        return
    if importlib.util.find_spec("torch"):
        torch = importlib.import_module("torch")
        uuids = [uuid_of(torch, i) for i in range(torch.cuda.device_count())]
        in_all = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
        yield doctor_gpu.seen_devices(os.environ, uuids, in_all)
    gpu = CudaGpu("cuda")
    yield Finding("GPU", "works", f"{gpu.name} is {gpu.uuid}")
    yield pinned_ring(gpu)
    yield _gpu_ring(gpu)


def pinned_ring(gpu: Gpu) -> Finding:
    """Whether a trainer on this GPU can register a feed's ring with it."""
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
        gpu.copy_out(there, reader.readable(0, 8))
        gpu.synchronize()
        reader.close()
        return there.tobytes()

    try:
        ring = WritableDeviceRing(gpu, 1 << 20)
        return _round_trip("GPU ring", "a descriptor of its memory, mapped read-only by trainers", ring, seen)
    except DeviceUnavailable as error:
        return Finding("GPU ring", "limited", str(error), 'Feeder(memory="host") needs nothing of it')


def _driver() -> Iterator[Finding]:
    """NVML."""
    yield from doctor_gpu.driver()


def _energy() -> Iterator[Finding]:
    """Energy counters of processors."""
    if missing := rapl_missing():
        yield Finding("RAPL", "limited", *missing)
    else:
        yield Finding("RAPL", "works", "the processor's energy can be read")


def _mps() -> Iterator[Finding]:
    """MPS."""
    if _DRIVER.exists():
        yield from doctor_gpu.mps(os.environ, feeds())
        yield doctor_gpu.mode_mps(os.environ)
