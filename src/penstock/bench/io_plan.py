"""What ``penstock bench io`` measures: its settings, and the cases of one repeat in their order."""

from __future__ import annotations

import re
from itertools import product

import msgspec

from penstock.basics.sizes import size_from, size_text
from penstock.errors import BadSetting
from penstock.io.measurements import Measurement
from penstock.io.open import MAX_DEPTH, MAX_THREADS, MECHANISMS

_MEMORY_BYTES = 8 << 30


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
    warm_up_s: float = 0.3  # warm-up time of a case
    limit_s: float = 30.0  # time that a case may take beyond its warm-up and measured time
    readers: str = "penstock.io.open:open_reader"  # the function that opens a reader, as ``module:function``

    def check(self) -> IoSettings:
        """Check and return these settings."""
        for option, given, known in (
            ("mech", self.mech, MECHANISMS),
            ("pattern", self.pattern, ("random", "sequential")),
        ):
            for word in given:
                if word not in known:
                    raise BadSetting(f"--{option} {word}: it must be one of {', '.join(known)}")
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
        if not all((self.mech, self.bs_bytes, self.qd, self.threads, self.pattern, self.dest)):
            raise BadSetting(
                "each of --mech, --bs, --qd, --threads, --pattern and --dest needs at least one value"
            )
        needed = max(self.bs_bytes) * max(self.qd)
        if needed > _MEMORY_BYTES:
            raise BadSetting(
                f"--bs {size_text(max(self.bs_bytes))} at --qd {max(self.qd)} needs {size_text(needed)}, "
                f"more memory than {size_text(_MEMORY_BYTES)}; give smaller ones"
            )
        return self

    def cases(self) -> list[Measurement]:
        """Return what is to be measured, each once; those to be compared are neighbours.

        One thread drives uring, whatever ``--threads`` is.
        """
        several = product(self.bs_bytes, self.pattern, self.dest, self.qd, self.mech, self.threads)
        cases = {
            (mech, bs, qd, 1 if mech == "uring" else min(threads, qd), pattern, dest): None
            for bs, pattern, dest, qd, mech, threads in several
        }
        return [
            Measurement(mech=mech, bs_bytes=bs, qd=qd, threads=threads, pattern=pattern, dest=dest)
            for mech, bs, qd, threads, pattern, dest in cases
        ]


def words(text: str) -> tuple[str, ...]:
    """Split a list with commas."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def numbers(option: str, text: str) -> tuple[int, ...]:
    """Read whole numbers from a list with commas."""
    try:
        return tuple(int(part) for part in words(text))
    except ValueError:
        raise BadSetting(f"--{option} {text}: give whole numbers with commas between them, such as 1,4") from None


def sizes(option: str, text: str) -> tuple[int, ...]:
    """Read sizes in bytes from a list such as ``"4KiB,1MiB"``."""
    return tuple(size_from(f"--{option}", part) for part in words(text))
