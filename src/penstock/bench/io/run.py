"""The benchmark of read mechanisms: every case in a separate process, in turn."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

import msgspec

from penstock.basics.results import Tell
from penstock.basics.sizes import size_text
from penstock.bench.io.child import CaseJob
from penstock.bench.io.plan import IoSettings
from penstock.bench.io.target import cached_share, dropped, is_url, opened_target
from penstock.errors import BadSetting
from penstock.io.files import disk_path
from penstock.io.measurements import Measurement
from penstock.linux.process import in_words
from penstock.runs.machine import describe

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
        [sys.executable, "-m", "penstock.bench.io.child"],
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
