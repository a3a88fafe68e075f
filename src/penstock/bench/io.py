"""The benchmark of read mechanisms: every case in a separate process, in turn."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress

import msgspec
import numpy as np

from penstock.basics.results import Tell
from penstock.basics.sizes import size_text
from penstock.bench.io_child import CaseJob
from penstock.bench.io_plan import IoSettings
from penstock.errors import BadSetting
from penstock.io.files import disk_path, open_file
from penstock.io.measurements import Measurement
from penstock.linux.process import in_words
from penstock.runs.machine import describe

_PIECE_BYTES = 16 << 20
_WINDOW_BYTES = 1 << 30
_TRIES, _PAUSE_S = 6, 0.05  # pages that are just being read stay

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def is_url(path: str) -> bool:
    """Whether a path is a URL of an object."""
    return re.match(r"[a-z][a-z0-9+.-]*://", path, re.IGNORECASE) is not None


@contextmanager
def opened_target(path: str, scratch_bytes: int, *, named: bool = False) -> Generator[tuple[str, int | None]]:
    """Give the path that a reader opens, and its size; None for an object or disk whose size the reader knows.

    In a directory, make a file of random bytes. It has no name and is gone with this process, however that ends,
    unless it must be ``named``, as for cuFile, which opens it anew.
    """
    if is_url(path) or disk_path(path):
        yield path, None
        return
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = error.strerror if isinstance(error, OSError) else error
        raise BadSetting(f"{path}: {why}. Give a file to read, or a directory for a scratch file") from None
    if stat.S_ISDIR(mode):
        yield from _scratch(path, scratch_bytes, named)
    elif stat.S_ISREG(mode) or stat.S_ISBLK(mode):
        yield path, _size(path)
    else:
        raise BadSetting(f"{path} is neither a file, nor a block device, nor a directory")


def _size(path: str) -> int:
    try:
        fd, nbytes = open_file(path, direct=False)
    except OSError as error:
        raise BadSetting(f"{path} cannot be read: {error.strerror}") from None
    os.close(fd)
    if nbytes == 0:
        raise BadSetting(f"{path} is empty; give a larger file, or a directory for a scratch file")
    return nbytes


def _scratch(directory: str, nbytes: int, named: bool) -> Generator[tuple[str, int]]:
    free = shutil.disk_usage(directory).free
    if nbytes > 0.9 * free:
        raise BadSetting(
            f"{directory} has {size_text(free)} free: too little for a scratch file of {size_text(nbytes)}; "
            "give a smaller --size"
        )
    make = tempfile.NamedTemporaryFile if named else tempfile.TemporaryFile
    with ExitStack() as stack:
        try:
            file = stack.enter_context(make(dir=directory, prefix="penstock-"))
            for start in range(0, nbytes, _PIECE_BYTES):
                file.write(np.random.default_rng().bytes(min(_PIECE_BYTES, nbytes - start)))
            file.flush()
            os.fsync(file.fileno())
        except OSError as error:
            raise BadSetting(f"{directory}: no scratch file can be written there: {error.strerror}") from None
        yield str(file.name) if named else f"/proc/{os.getpid()}/fd/{file.fileno()}", nbytes


def cached_share(path: str, nbytes: int) -> float | None:
    """Return the part of a file in the page cache, 0 to 1; None if the kernel does not report it.

    It does so only to a process that owns the file or may write it (mincore(2)).
    """
    if os.stat(path).st_uid != os.geteuid() and not os.access(path, os.W_OK):
        return None
    present = 0
    with open(path, "rb") as file:
        for start in range(0, nbytes, _WINDOW_BYTES):
            size = min(_WINDOW_BYTES, nbytes - start)
            pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
            try:
                with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ, offset=start) as mapped:
                    address = np.frombuffer(mapped, np.uint8).ctypes.data
                    if _libc.mincore(address, size, pages.ctypes.data):
                        return None
            except (OSError, ValueError):  # it cannot be mapped
                return None
            present += np.count_nonzero(pages & 1)
    return min(1.0, present * mmap.PAGESIZE / nbytes)


def dropped(path: str, nbytes: int) -> float | None:
    """Drop a file from the page cache; return ``cached_share`` afterwards."""
    share = None
    with open(path, "rb") as file:
        for _ in range(_TRIES):
            os.fsync(file.fileno())  # dirty pages would stay
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            share = cached_share(path, nbytes)
            if not share:
                break
            time.sleep(_PAUSE_S)
    return share


_STILL_COLD = 0.01


def run(settings: IoSettings, path: str, tell: Tell) -> list[Measurement]:
    """Measure every case in each repeat.

    ``path`` is a file or block device, which is only read; a directory, for a scratch file; or an object's URL.
    """
    settings = _for_path(settings, path).check()
    machine = describe()
    gpus, memory = ", ".join(machine.gpus) or "no GPU", size_text(round(machine.memory_bytes / 2**30) << 30)
    words = f"{machine.cpu}, {machine.cores} cores, {memory}, {gpus}, {machine.system} {machine.kernel}"
    told = {"machine": f"{words}, penstock {machine.penstock}", "date": machine.date}
    tell(0, 1, "making ready")
    with opened_target(path, settings.scratch_bytes, named="gds" in settings.mech) as (read, nbytes):
        largest = max(settings.bs_bytes)
        if nbytes is not None and largest > nbytes:
            raise BadSetting(f"--bs {size_text(largest)}: {path} has only {nbytes:,} bytes to read")
        cases = settings.cases()
        rows: list[Measurement] = []
        for repeat in range(settings.repeats):
            for case in cases if repeat % 2 == 0 else reversed(cases):
                tell(len(rows), len(cases) * settings.repeats, str(case))
                cold, note = (False, "") if nbytes is None else _cache(settings, case, read, nbytes)
                row = msgspec.structs.replace(case, cold=cold, note=note, repeat=repeat, **told)
                rows.append(_measured(CaseJob(row, settings, read, nbytes)))
    return rows


def _measured(job: CaseJob) -> Measurement:
    """Measure a case in a process of its own; a row with a note if that fails."""
    limit_s = job.settings.warm_up_s + job.settings.runtime_s + job.settings.limit_s
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.bench.io_child"],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        start_new_session=True,  # so that children of its own do not outlive this call
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    with process:
        try:
            told, errors = process.communicate(msgspec.json.encode(job), timeout=limit_s)
        except subprocess.TimeoutExpired:
            return msgspec.structs.replace(job.case, note=f"gave no result within {limit_s:.0f} s, and was killed")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    note = f"gave no result, but {told[-200:].decode(errors='replace').strip()!r}"
    if process.returncode:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        note = f"{in_words(process.returncode)}: {last}".removesuffix(": ")
    with suppress(msgspec.DecodeError, IndexError):
        return msgspec.json.decode(told.splitlines()[-1], type=Measurement)
    return msgspec.structs.replace(job.case, note=note)


def _cache(settings: IoSettings, case: Measurement, path: str, nbytes: int) -> tuple[bool, str]:
    """Drop what is read from the page cache if asked; return whether it is cold, and a note on that."""
    share = dropped(path, nbytes) if settings.cold else cached_share(path, nbytes)
    cold = settings.cold and (share or 0.0) <= _STILL_COLD
    if case.mech != "posix" or (cold and share is not None):
        return cold, ""
    if share is None:
        return cold, "only its owner can check how much of the file is in the page cache"
    if settings.cold:
        return cold, f"{share:.0%} of the file stayed in the page cache"
    return cold, f"{share:.0%} of the file was in the page cache, which --cold empties"


def _for_path(settings: IoSettings, path: str) -> IoSettings:
    """Choose the one mechanism that reads an object, or a disk under BaM's module; else change nothing."""
    if not is_url(path) and not disk_path(path):
        return settings
    what, only = ("an object", "object") if is_url(path) else ("a disk under BaM's kernel module", "gpu")
    if settings.mech not in {IoSettings().mech, (only,)}:
        raise BadSetting(f"--mech {','.join(settings.mech)}: {path} is {what}, which only mech {only!r} reads")
    return msgspec.structs.replace(settings, mech=(only,))
