"""What a script was found to take, kept in the store: a search that was interrupted goes on where it was."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

from penstock.basics.sizes import size_from
from penstock.basics.terminal import say
from penstock.errors import BadSetting, PenstockError
from penstock.fit.answers import Limit
from penstock.fit.search import Search, Tried
from penstock.fit.trial import Script, ScriptTrials, Trial
from penstock.linux.cgroups import memory_limit_bytes
from penstock.linux.files import written_whole
from penstock.runs.masking import masked_words
from penstock.runs.record import RunPlan
from penstock.runs.spec.checks import command as executed
from penstock.runs.store import Store
from penstock.runs.trial import WARM_BATCHES, Bounds
from penstock.schedule.jobs import SPARE, HostMachine
from penstock.schedule.profiles import Profiles

_LEAST_BYTES = 16 << 20
Tell = Callable[[int, str], object]
"""Called with how many trials are done, and what comes now."""


class NotTried(PenstockError):
    """A script cannot be tried; the message says why."""


class Kept(msgspec.Struct):
    """What is known of a script."""

    group_id: str = ""  # the group of its runs
    trials: list[Trial] = []  # what they took, in order


class TrialLog:
    """Tries a script at one setting after another."""

    def __init__(
        self,
        store: Store,  # where runs and what they took are kept
        script: Script,
        setting: str,  # what varies: "batch size", "workers" or "together"
        *,
        bounds: Bounds,  # what each trial may take
        gpu: str,  # name of the GPU; empty without
        seconds: float,  # for all trials together; what was tried before does not count
        within: str,  # what else decides what a trial finds: a limit of memory
        again: bool,  # whether what is known is measured anew
        tell: Tell,  # told of each trial
    ) -> None:
        plan = RunPlan(command=script.words, name=script.name, directory=str(script.directory))
        key = f"{Profiles(store.folder, gpu).key(plan)}|{setting}|{within}"
        self._path = store.folder / "fits" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"
        self._kept = Kept() if again else _read(self._path)
        self._script, self._setting, self._seconds, self._tell = script, setting, seconds, tell
        self._began_s = time.monotonic()
        self._new = 0
        self.cut_before: int | None = None  # the setting that there was no time for; None if there was enough
        self._trials = ScriptTrials(
            store,
            script,
            f"{setting} of {script.name}",
            group_id=self._kept.group_id,
            bounds=bounds,
            setting=setting.replace(" ", "-"),
            listens=setting != "batch size",
        )

    @property
    def tried(self) -> Tried:
        return Tried(self._kept.trials)

    @property
    def cost(self) -> str:
        """What it took, in words."""
        trials = self._kept.trials
        known = len(trials) - self._new
        before = f", and {known} known from before" if known else ""
        took_s = time.monotonic() - self._began_s
        words = f"That took {self._new} trial{'s' * (self._new != 1)}{before}, in {took_s:,.0f} s."
        if self.cut_before is None:
            return words
        each_s = trials[-1].seconds if trials else 0.0
        return (
            f"{words} The time was up before {self.cut_before:,}, which takes about {each_s:,.0f} s: call it "
            "again to go on, or give it a longer --time-limit."
        )

    @property
    def has_time(self) -> bool:
        """Whether another trial fits the time, as the last one took."""
        trials = self._kept.trials
        last_s = trials[-1].seconds if self._new else 0.0
        return time.monotonic() - self._began_s + last_s <= self._seconds

    def search(self, search: Search, shared: Search | None = None, *, copies: bool = False) -> bool:
        """Try what a search asks for; return whether it came to its end.

        Args:
            shared: Another, of copies that share: the two go on by turns, the smaller setting first.
            copies: Whether settings are numbers of copies.
        """
        going: dict[bool, tuple[Search, int]] = {}
        for share, each in ((False, search), (True, shared)):
            with suppress(StopIteration):
                if each is not None:
                    going[share] = each, next(each)
        while going:
            share = min(going, key=lambda share: (going[share][1], share))
            asks, value = going.pop(share)
            good = (each for each in self._kept.trials if not each.failed)
            trial = next((each for each in good if (each.value, each.share) == (value, share)), None)
            if trial is None and not self.has_time:
                self.cut_before = value
                return False
            trial = trial or self.measure(value, copies=copies, share=share)
            self._check_obeyed()
            with suppress(StopIteration):
                going[share] = asks, asks.send(trial)
        return True

    def confirm(self) -> None:
        """Try once more those that may be chosen, while there is time."""
        for value in self.tried.to_confirm():
            if self.has_time:
                self.measure(value)

    def measure(self, value: int, *, copies: bool = False, share: bool = False) -> Trial:
        """Try a setting now, and keep what it took."""
        self._tell(len(self._kept.trials), f"{self._setting} {value}{' shared' * share}")
        # What a loader's workers have ready when the first step is over says nothing of their speed.
        warm = max(WARM_BATCHES, 2 * value) if self._setting == "workers" else WARM_BATCHES
        trial = self._trials.run(value, value if copies else 1, share=share, warm=warm)
        self._new += 1
        self._kept.trials.append(trial)
        self._kept.group_id = self._trials.group_id
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        with written_whole(self._path) as half:
            half.write_bytes(msgspec.json.encode(self._kept))
        return trial

    def _check_obeyed(self) -> None:
        """Raise NotTried where batches are of one size whatever is asked for."""
        good = self.tried.good if self._setting == "batch size" else []
        if len(good) > 1 and abs(good[-1].batch - good[0].batch) < 0.01 * good[0].batch:
            raise NotTried(
                f"{self._script.name} ignores its batch size: asked for {good[0].value} and for {good[-1].value}, "
                f"it takes {good[0].batch:,.0f} samples at a time. Name the argument that sets it"
            )


def check(script: Script, option: str) -> None:
    """Check that there is such a command, and that it has a place for a setting that an option is to name."""
    executed(script.at(1), str(script.directory))
    has_place = any("{}" in word for word in script.words)
    if has_place and not option:
        raise BadSetting("the command has {}, and copies of one command run together: write a number there")
    if option and not has_place:
        words = masked_words(script.words)
        at = next((place for place, word in enumerate(words) if word == option), None)
        example = " ".join([*words, option, "{}"] if at is None else [*words[: at + 1], "{}", *words[at + 2 :]])
        raise BadSetting(f"the command has no {{}}: write {{}} where the number goes, such as: {example}")


def limit_of(machine: HostMachine, memory: str | None) -> tuple[Limit, int | None]:
    """Return the memory that is to suffice, and what trials may take of the host's; None where GPUs have theirs.

    Args:
        memory: The limit that is asked for; None for what there is.
    """
    asked = None if memory is None else size_from("--memory", memory)
    if asked is not None and asked < _LEAST_BYTES:
        raise BadSetting(f"--memory {memory}: no script runs in {asked:,} bytes; write it as 4GiB")
    if machine.devices:
        own = int(machine.model.memories[0] / SPARE)
        return Limit(min(asked or own, own), "what it may take of the GPU" if asked else "the GPU's memory"), None
    free = min(psutil.virtual_memory().available, memory_limit_bytes())
    if asked is not None:
        return Limit(asked, "the memory that it may take"), min(asked, int(SPARE * free))
    return Limit(free, "this machine's free memory"), int(SPARE * free)


def warn(script: Script) -> None:
    """Say what trials do besides."""
    say(
        f"{script.name} runs for some seconds at each setting, in a copy of this folder, removed afterwards. What "
        "it writes by an absolute path, or into folders too large for a copy (64 MiB in all), stays: checkpoints"
    )


def _read(path: Path) -> Kept:
    with suppress(FileNotFoundError, msgspec.DecodeError):
        return msgspec.json.decode(path.read_bytes(), type=Kept)
    return Kept()
