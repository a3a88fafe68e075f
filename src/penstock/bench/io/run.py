"""The benchmark of read mechanisms: every case in a separate process, in turn."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial

import msgspec
import psutil

from penstock.basics.sizes import size_text
from penstock.bench.experiment import Report, Tell
from penstock.bench.io import fio
from penstock.bench.io.child import CaseJob
from penstock.bench.io.plan import Case, IoSettings
from penstock.bench.io.target import BUFFERED, Target, cached_share, dropped, is_url, opened_target
from penstock.bench.measure.pool import MeasurementFailed, answer
from penstock.errors import BadSetting
from penstock.io.advice.measurements import Measurement
from penstock.io.files import DIRECT_ALIGNMENT, disk_path
from penstock.runs.machine import Machine, describe

_STILL_COLD = 0.01


class IoReport(Report[IoSettings, Measurement]):
    """What was measured, with remarks."""

    remarks: list[str] = msgspec.field(default_factory=list[str])
    """What holds for all rows: why fio was not run, caches that were not empty."""

    @property
    def rows(self) -> list[Measurement]:
        return [each.figures for each in self.results]


def run(settings: IoSettings, path: str, tell: Tell) -> IoReport:
    """Measure every case in each repeat.

    Args:
        path: A file or block device, which is only read; a directory, for a scratch file; or the address of
            an object.
    """
    settings = _for_path(settings, path).check()
    report = IoReport(benchmark="bench io", machine=describe(), settings=settings)
    tell(0, 1, "making ready")
    with opened_target(path, settings.scratch_bytes, named="gds" in settings.mech) as read:
        if read.nbytes is not None and max(settings.bs_bytes) > read.nbytes:
            raise BadSetting(
                f"--bs {size_text(max(settings.bs_bytes))}: {read.name} has only {read.nbytes:,} bytes"
            )
        refusal = fio.refusal(settings, read)
        others = fio.cases(settings) if settings.external and not refusal else ()
        planned = sorted(
            [*settings.cases(), *others],
            key=lambda case: (case.bs_bytes, case.pattern, case.dest != "host", case.dest),
        )
        bench = _Bench(settings, read, report.machine)
        report.measure(
            {str(case): partial(bench.measure, case) for case in planned}, range(settings.repeats), tell
        )
        reads_cache = any(case.mech in BUFFERED for case in planned)
        report.remarks = [*bench.warnings(reads_cache=reads_cache), *filter(None, [refusal])]
    return report


class _Bench:
    """Runs cases against one target."""

    def __init__(self, settings: IoSettings, read: Target, machine: Machine) -> None:
        self._settings = settings
        self._machine = machine
        self._target = read
        self._cached = 0.0  # the largest part that --cold left in the page cache

    def measure(self, case: Case, repeat: int) -> Measurement:
        cold, note = self._cache(case)
        try:
            if case.mech.startswith("fio:"):
                row = fio.measured(case, self._target, self._settings, cold=cold)
            else:
                row = self._own(case, repeat, cold=cold)
        except MeasurementFailed as error:
            row = case.row(cold=cold, note=str(error))
        if row.iops:
            row = msgspec.structs.replace(row, note="; ".join(filter(None, (row.note, note))))
        return msgspec.structs.replace(row, repeat=repeat, machine=_words(self._machine), date=self._machine.date)

    def warnings(self, *, reads_cache: bool) -> Iterator[str]:
        """Yield sentences on what odd sizes and the page cache did to the figures."""
        read, settings = self._target, self._settings
        if read.nbytes is None:
            if settings.cold:
                yield f"--cold has no effect on {read.name}: it is not in the page cache"
            return
        odd = [str(nbytes) for nbytes in settings.bs_bytes if nbytes % DIRECT_ALIGNMENT]
        direct = [mech for mech in settings.mech if mech not in {*BUFFERED, "object"}]
        if odd and direct:
            yield (
                f"--bs {','.join(odd)}: no multiple of {DIRECT_ALIGNMENT}; {', '.join(direct)} may read more, "
                "whole blocks of the disk; MB/s count what was asked for"
            )
        memory = psutil.virtual_memory().total
        if not reads_cache or read.nbytes > memory:
            return
        fits = f"{read.name} ({size_text(read.nbytes)}) fits into the page cache ({size_text(memory)} of memory)"
        if not settings.cold:
            yield f"{fits}: buffered reads need not come from storage; --cold empties it before each case"
        elif self._cached > _STILL_COLD:
            yield f"{fits}, and --cold could not drop {self._cached:.0%} of it: buffered reads are too fast"

    def _own(self, case: Case, repeat: int, *, cold: bool) -> Measurement:
        settings = self._settings
        job = CaseJob(case, settings, self._target.path, self._target.nbytes, cold, repeat)
        limit_s = settings.warm_up_s + settings.runtime_s + settings.limit_s
        command = [sys.executable, "-m", "penstock.bench.io.child"]
        text = answer(command, limit_s=limit_s, sent=msgspec.json.encode(job))
        try:
            return msgspec.json.decode(text.splitlines()[-1], type=Measurement)
        except (msgspec.DecodeError, IndexError):
            raise MeasurementFailed(f"gave no result, but {text.strip()[-200:]!r}") from None

    def _cache(self, case: Case) -> tuple[bool, str]:
        """Drop the file from the page cache if asked; return whether it is cold, and a note on that."""
        path, nbytes = self._target.path, self._target.nbytes
        if nbytes is None:
            return disk_path(path) is not None, ""
        buffered = case.mech in BUFFERED
        if not self._settings.cold:
            share = cached_share(path, nbytes) if buffered else None
            return False, "" if share is None else f"{share:.0%} of the file was in the page cache"
        share = dropped(path, nbytes)
        if share is None:
            return True, "only its owner can check whether the file has left the page cache" if buffered else ""
        self._cached = max(self._cached, share)
        if share > _STILL_COLD:
            return False, f"{share:.0%} of the file stayed in the page cache" if buffered else ""
        return True, ""


def _for_path(settings: IoSettings, path: str) -> IoSettings:
    """Choose the one mechanism that reads an object, or a disk under BaM's module; else change nothing."""
    if is_url(path):
        what, only = "an object", "object"
    elif disk_path(path):
        what, only = "a disk under BaM's kernel module", "gpu"
    else:
        return settings
    if settings.mech not in {IoSettings().mech, (only,)}:
        raise BadSetting(f"--mech {','.join(settings.mech)}: {path} is {what}, which only mech {only!r} reads")
    return msgspec.structs.replace(settings, mech=(only,))


def _words(machine: Machine) -> str:
    gpus = ", ".join(machine.gpus) or "no GPU"
    memory = size_text(round(machine.memory_bytes / 2**30) << 30)
    return (
        f"{machine.cpu}, {machine.cores} cores, {memory}, {gpus}, {machine.system} {machine.kernel}, "
        f"penstock {machine.penstock}"
    )
