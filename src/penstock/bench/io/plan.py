"""What ``penstock bench io`` measures: its settings, and the cases of one repeat in their order."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product
from typing import Any

import msgspec

from penstock.basics.sizes import size_from, size_text
from penstock.errors import BadSetting
from penstock.io.advice.measurements import Measurement
from penstock.io.open import MAX_DEPTH, MAX_THREADS, MECHANISMS

PATTERNS = ("random", "sequential")
EXTERNAL = ("fio",)
ONE_THREAD = frozenset({"uring"})
"""Mechanisms that one thread drives, whatever ``--threads`` is."""

_MEMORY_BYTES = 8 << 30


class Case(msgspec.Struct, frozen=True):
    """One mechanism, of Penstock or fio (``fio:...``), under one setting."""

    mech: str
    bs_bytes: int
    qd: int
    threads: int
    pattern: str
    dest: str = "host"

    def row(self, **fields: Any) -> Measurement:
        """Make a row of this case; ``fields`` override its own."""
        return Measurement(**{**msgspec.structs.asdict(self), **fields})

    def measured(self, ops: int, elapsed_s: float, cpu_s: float, **fields: Any) -> Measurement:
        """Make a row of ``ops`` reads in ``elapsed_s``, with their CPU time."""
        nbytes = ops * self.bs_bytes
        return self.row(
            runtime_s=_short(elapsed_s),
            iops=_short(ops / elapsed_s),
            mb_s=_short(nbytes / elapsed_s / 1e6),
            cpu_us_per_op=_short(1e6 * cpu_s / ops),
            cpu_s_per_gib=_short(cpu_s / nbytes * 2**30),
            cores_busy=_short(cpu_s / elapsed_s),
            **fields,
        )

    def __str__(self) -> str:
        threads = f", {self.threads} threads" if self.threads > 1 else ""
        return f"{self.mech}, {self.bs_bytes:,} bytes, depth {self.qd}{threads}, {self.pattern}, to {self.dest}"


class IoSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the benchmark runs; each tuple multiplies the cases."""

    mech: tuple[str, ...] = ("posix", "direct", "uring")
    bs_bytes: tuple[int, ...] = (4 << 10, 64 << 10, 1 << 20)
    qd: tuple[int, ...] = (32, 128)
    threads: tuple[int, ...] = (8,)
    pattern: tuple[str, ...] = ("random",)
    dest: tuple[str, ...] = ("host",)
    cold: bool = False
    runtime_s: float = 2.0
    repeats: int = 1
    scratch_bytes: int = 1 << 30  # size of the file that is made in a directory
    external: tuple[str, ...] = ()
    warm_up_s: float = 0.3  # warm-up time of a case
    limit_s: float = 30.0  # time that a case may take beyond its warm-up and measured time
    readers: str = "penstock.io.open:open_reader"  # the function that opens a reader, as ``module:function``

    def check(self) -> IoSettings:
        """Check and return these settings."""
        for option, given, known in (
            ("mech", self.mech, MECHANISMS),
            ("pattern", self.pattern, PATTERNS),
            ("external", self.external, EXTERNAL),
        ):
            for word in given:
                if word not in known:
                    other = "; fio is --external fio" if option == "mech" and word in EXTERNAL else ""
                    raise BadSetting(f"--{option} {word}: it must be one of {', '.join(known)}{other}")
        for word in self.dest:
            if not re.fullmatch(r"host|pinned|cuda(:\d+)?", word):
                raise BadSetting(f"--dest {word}: it must be host, pinned, or a GPU such as cuda:0")
        for option, numbers, least, most in (
            ("bs", self.bs_bytes, 512, 1 << 30),
            ("qd", self.qd, 1, MAX_DEPTH),
            ("threads", self.threads, 1, MAX_THREADS),
            ("repeats", (self.repeats,), 1, 1000),
            ("runtime", (self.runtime_s,), 0.05, 86400),
            ("size", (self.scratch_bytes,), 1 << 20, 1 << 50),
        ):
            for number in numbers:
                if not least <= number <= most:
                    raise BadSetting(f"--{option} {number}: it must lie between {least} and {most}")
        for option in ("bs_bytes", "qd", "threads", "pattern", "dest"):
            if not getattr(self, option):
                raise BadSetting(f"--{option.removesuffix('_bytes')}: give at least one")
        if not self.mech and not self.external:
            raise BadSetting("nothing to measure: give --mech or --external")
        needed = max(self.bs_bytes) * max(self.qd)
        if needed > _MEMORY_BYTES:
            raise BadSetting(
                f"--bs {size_text(max(self.bs_bytes))} at --qd {max(self.qd)} needs {size_text(needed)}, "
                f"more memory than {size_text(_MEMORY_BYTES)}; give smaller ones"
            )
        return self

    def cases(self) -> Iterable[Case]:
        """Return the cases of Penstock's mechanisms, each once; those to be compared are neighbours."""
        several = product(self.bs_bytes, self.qd, self.pattern, self.dest, self.mech, self.threads)
        return dict.fromkeys(
            Case(mech, bs, qd, 1 if mech in ONE_THREAD else min(threads, qd), pattern, dest)
            for bs, qd, pattern, dest, mech, threads in several
        )


def words(text: str) -> tuple[str, ...]:
    """Split a list with commas."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def numbers(option: str, text: str) -> tuple[int, ...]:
    """Read whole numbers from a list with commas."""
    try:
        return tuple(int(part) for part in words(text))
    except ValueError:
        raise BadSetting(
            f"--{option} {text}: give whole numbers with commas between them, such as 32,128"
        ) from None


def sizes(option: str, text: str) -> tuple[int, ...]:
    """Read sizes in bytes from a list such as ``"4KiB,1MiB"``."""
    return tuple(size_from(f"--{option}", part) for part in words(text))


def _short(value: float) -> float:
    """Round to six digits: the rest is noise."""
    return float(f"{value:.6g}")
