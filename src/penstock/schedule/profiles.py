"""What was measured of runs, kept by their command, their code and the GPU."""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec

from penstock.feed.launch.feeds import made_of
from penstock.linux.files import written_whole
from penstock.runs.command_options import script_of
from penstock.runs.launch.code import files_of
from penstock.runs.masking import masked_words
from penstock.runs.record import RunPlan

_INCOMPATIBLE = "incompatible.json"


def with_one_python(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command in which ``python3`` is called ``python``."""
    return (re.sub(r"(^|/)python3$", r"\1python", command[0]), *command[1:])


def data_of(feed: str, suffix: str) -> str:
    """Name what a feed gives, the same for runs that can share it; empty if its feeder does not answer.

    ``suffix`` is a pattern of the part of the feed's name that says which feed of that name it is.
    """
    made = made_of(feed)
    if made is None:
        return ""
    name = re.sub(rf"-{suffix}(-\w+)?$", "", feed)
    return f"{name}:{hashlib.sha256(made.digest.encode()).hexdigest()[:16]}"


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What a run takes, as it was measured."""

    preparation_s: float  # CPU-seconds in which its loader prepares a sample
    own_s: float  # CPU-seconds a sample in its own processes
    gpu_s: float  # seconds a sample, with the data at hand and the GPU for itself
    start_s: float  # CPU-seconds until its first batch
    feed_start_s: float = 0.0  # CPU-seconds that a feed of its own, with its workers, takes besides until then
    sm_share: float = 1.0  # part of a GPU's multiprocessors that it keeps busy while it computes alone
    memory_bytes: int | None = None  # most memory that it took, on one GPU or of the host; None where nobody knows
    data: str = ""  # names what it reads: runs with equal text can be fed by one feed. Empty: by none.
    samples_per_epoch: int | None = None  # samples of an epoch; None where nobody knows
    samples: float | None = None  # samples that a whole run trained on; None before one has ended


class Profiles:
    """The profiles of a store of runs, a file each."""

    def __init__(self, store: Path, gpu: str) -> None:
        self._folder = store / "profiles"
        self._gpu = gpu  # name of the GPUs on which they are measured; empty without
        self._code_of = cache(_code)

    def get(self, key: str) -> Profile | None:
        """Return what was measured of runs of a key; None if nothing was."""
        with suppress(FileNotFoundError, msgspec.DecodeError):
            return msgspec.json.decode(self._path(key).read_bytes(), type=Profile)
        return None

    def put(self, key: str, profile: Profile) -> None:
        """Keep what was measured, in place of what was known."""
        self._write(self._path(key), profile)

    def incompatible(self) -> list[tuple[str, str]]:
        """Return pairs of keys whose runs are never to share a GPU again."""
        with suppress(FileNotFoundError, msgspec.DecodeError):
            return msgspec.json.decode((self._folder / _INCOMPATIBLE).read_bytes(), type=list[tuple[str, str]])
        return []

    def mark_incompatible(self, one: str, other: str) -> bool:
        """Remember that runs of two keys are never to share a GPU again; return whether that is new."""
        before, pair = self.incompatible(), (min(one, other), max(one, other))
        if pair not in before:
            self._write(self._folder / _INCOMPATIBLE, [*before, pair])
        return pair not in before

    def key(self, plan: RunPlan) -> str:
        """Return what profiles are kept by: a digest of a run's command, its code and the GPU."""
        command = masked_words(with_one_python(plan.command))  # as the store has it
        digest = hashlib.sha256(msgspec.json.encode((command, plan.directory, plan.share, self._gpu)))
        if script := script_of(plan.command):
            digest.update(self._code_of(Path(plan.directory, script)))
        return digest.hexdigest()[:24]

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"

    def _write(self, path: Path, value: object) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        with written_whole(path) as half:
            half.write_bytes(msgspec.json.encode(value))


def _code(script: Path) -> bytes:
    """Return a script and what it imports from its folder, directly or not, one after the other."""
    return b"".join(content for _, content in sorted(files_of(script).items()))
