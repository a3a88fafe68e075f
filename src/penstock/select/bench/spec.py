"""The YAML file of what ``penstock select bench`` compares."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from penstock.errors import BadSetting
from penstock.feed.launch.function import function_at
from penstock.runs.spec.checks import command
from penstock.runs.spec.yaml_file import read_yaml
from penstock.select.meter import WATTS
from penstock.select.scoring import METHODS, method_of

UNSCORED = ("full", "random", "rs2", "infobatch")
"""Methods without scores: all samples for fewer epochs, a random part, a fresh one each epoch, and InfoBatch."""
Fraction = Annotated[float, msgspec.Meta(gt=0, le=1)]
Seed = Annotated[int, msgspec.Meta(ge=0)]


class Arm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A method, and how it is used."""

    method: str  # one of ``UNSCORED``, or a method that scores
    fractions: list[Fraction]
    """Parts of the samples that an epoch holds; for ``full`` and ``infobatch``, of the epochs."""
    pool: Fraction | None = None
    """Part of the samples that is chosen by the scores; each epoch draws its fraction from it. Unless given, the
    fraction itself."""
    by: Literal["top", "class"] = "top"  # "top", or "class": the best of each class
    settings: dict[str, str] = {}  # attributes of the method

    @property
    def scores(self) -> str:
        """A name of its scores, by which they differ from those of other arms; usable in the name of a file."""
        return "-".join([self.method, *(f"{name}={value}" for name, value in sorted(self.settings.items()))])

    @property
    def differs(self) -> str:
        """How it differs from other arms with its method; empty if it does not."""
        pool = f"pool {100 * self.pool:g}%" if self.pool is not None else ""
        settings = [f"{name}={value}" for name, value in self.settings.items()]
        return ", ".join(filter(None, [pool, "by class" if self.by == "class" else "", *settings]))


class BenchSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A comparison."""

    task: str  # function that makes the Task of a seed, as ``FILE.py:FUNCTION``
    train: str | list[str]  # command of a training run, which asks ``penstock.select.plan_of_run``
    arms: list[Arm]
    """What is compared; ``full`` with fraction 1 must be there. RS2 and InfoBatch are, named or not."""
    seeds: list[Seed]  # seeds on which method and fraction are chosen
    fresh_seeds: list[Seed] = []  # seeds on which the choice is run again, beside the baselines at its cost
    metric: str = "accuracy"  # name of what the runs log; higher is better
    budget: Annotated[float, msgspec.Meta(gt=0)] = 0.7
    """Part of full's CPU time that the choice may cost, selection included."""
    together: Annotated[int, msgspec.Meta(ge=1)] = 1  # number of runs at a time
    watts: float = WATTS  # power of a busy core, for the energy where no counter can be read
    name: str = ""  # name of the groups of runs; the file's, unless given


class MethodComparison(msgspec.Struct, frozen=True):
    """A spec, checked."""

    spec: BenchSpec  # as written
    directory: Path  # its folder, from which paths count
    words: tuple[str, ...]  # the command of a training run

    @property
    def training_script(self) -> str | None:
        """Name in ``code()`` of the script that training runs begin with, if scoring cannot reach it."""
        script = next((self.directory / word for word in self.words if word.endswith(".py")), None)
        task = self._file(self.spec.task.rpartition(":")[0])
        if script is None or self._name(script) == self._name(task):
            return None
        others = [each for each in {task, *self.directory.glob("*.py")} if self._name(each) != self._name(script)]
        mentions = re.compile(rf"\b{re.escape(script.stem)}\b".encode())
        return None if any(mentions.search(each.read_bytes()) for each in others) else self._name(script)

    def code(self) -> dict[str, str]:
        """Return digests of the scripts that it runs, and of those beside them, and versions of the methods."""
        named = [self.spec.task.rpartition(":")[0], *(word for word in self.words if word.endswith(".py"))]
        files = {self._file(each) for each in named} | {self._file(each) for each in self.directory.glob("*.py")}
        digests = {
            self._name(file): hashlib.sha256(file.read_bytes()).hexdigest()[:16]
            for file in sorted(files)
            if file.is_file()
        }
        methods = {arm.method for arm in self.spec.arms} - set(UNSCORED)
        return digests | {f"method {each}": method_of(each, {}).version for each in sorted(methods)}

    def _file(self, written: str | Path) -> Path:
        return Path(os.path.normpath(self.directory / written))

    def _name(self, file: Path) -> str:
        file = self._file(file)
        return str(file.relative_to(self.directory) if file.is_relative_to(self.directory) else file)


def read_spec(path: Path) -> MethodComparison:
    """Read a spec, and check all that can be checked before hours of runs."""
    try:
        text = path.read_text()
    except OSError as error:
        raise BadSetting(f"{path}: {error.strerror}") from None
    try:
        spec = msgspec.convert(read_yaml(path, text), BenchSpec, strict=False)
    except msgspec.ValidationError as error:
        raise BadSetting(f"{path}: {str(error)[:1].lower()}{str(error)[1:]}") from None
    for arm in spec.arms:
        if arm.method not in UNSCORED:
            if arm.method not in METHODS:
                raise BadSetting(f"{path}: there is no method {arm.method!r}; {', '.join([*UNSCORED, *METHODS])}")
            method_of(arm.method, dict(arm.settings))
            if arm.pool is not None and arm.pool < max(arm.fractions):
                raise BadSetting(f"{path}: {arm.method}: pool {arm.pool:g} is less than {max(arm.fractions):g}")
        elif arm.settings or arm.pool is not None or arm.by != "top":
            raise BadSetting(f"{path}: {arm.method} has no scores: leave out pool, by and settings")
    present = {arm.method for arm in spec.arms}
    parts = sorted({part for arm in spec.arms if arm.method not in UNSCORED for part in arm.fractions})
    baselines = (
        Arm("full", []),
        Arm("random", []),
        Arm("rs2", parts),
        Arm("infobatch", [1.0]),
    )
    spec = msgspec.structs.replace(
        spec, arms=spec.arms + [each for each in baselines if each.method not in present]
    )
    seeds = [*spec.seeds, *spec.fresh_seeds]
    if not spec.seeds or len(set(seeds)) < len(seeds):
        raise BadSetting(f"{path}: give seeds, and fresh_seeds that are others, each once")
    arms = [(arm.method, f"{fraction:g}", arm.differs) for arm in spec.arms for fraction in arm.fractions]
    if twice := next((each for place, each in enumerate(arms) if each in arms[:place]), None):
        raise BadSetting(f"{path}: arm {twice[0]} with fraction {twice[1]} is there twice")
    directory = path.absolute().parent.resolve()
    file, _, function = spec.task.rpartition(":")
    function_at(f"{directory / file}:{function}")
    words = shlex.split(spec.train) if isinstance(spec.train, str) else spec.train
    if not words:
        raise BadSetting(f"{path}: train: the command is empty")
    named = msgspec.structs.replace(spec, name=spec.name or path.stem, task=f"{directory / file}:{function}")
    return MethodComparison(named, directory, command(words, str(directory)))
