"""An experiment: arms measured in turn, several times each, and compared within a repeat."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

import msgspec

from penstock.basics.results import Spread, Tell
from penstock.errors import PenstockError
from penstock.runs.machine import Machine

S = TypeVar("S")
F = TypeVar("F")


class ArmFailed(PenstockError):
    """Raised by an arm that cannot run on this machine: the others go on without it."""


class Result(msgspec.Struct, Generic[F], frozen=True):
    """The figures of one arm in one repeat (or with one seed)."""

    arm: str
    repeat: int
    figures: F


class Report(msgspec.Struct, Generic[S, F], kw_only=True):
    """Everything that an experiment has measured so far, as it is saved."""

    benchmark: str
    version: int = 2
    machine: Machine
    settings: S
    results: list[Result[F]] = []
    absent: dict[str, str] = {}  # arms that could not run here, and why
    sentence: str = ""  # what follows from the figures

    def measure(
        self,
        arms: Mapping[str, Callable[[int], F]],
        repeats: Iterable[int],
        tell: Tell,
        save: Callable[[], object] = lambda: None,  # called after each result
    ) -> None:
        """Measure each arm once in each repeat, forth and back in turn; results that are there are not repeated.

        Args:
            arms: By name, a function that runs an arm once in a repeat and returns its figures.
        """
        turns = [
            (arm, repeat)
            for number, repeat in enumerate(repeats)
            for arm in (arms if number % 2 == 0 else reversed([*arms]))
        ]
        for done, (arm, repeat) in enumerate(turns):
            if arm in self.absent or repeat in self.of(arm):
                continue
            tell(done, len(turns), arm)
            try:
                self.add(arm, repeat, arms[arm](repeat))
            except ArmFailed as error:
                self.absent[arm] = str(error)
                self.results = [each for each in self.results if each.arm != arm]
            save()

    def add(self, arm: str, repeat: int, figures: F) -> None:
        """Add a result, unless there is one: an arm that runs several repeats at once adds them all."""
        if repeat not in self.of(arm):
            self.results.append(Result(arm, repeat, figures))

    @property
    def arms(self) -> list[str]:
        """Names of the arms that have results."""
        return list(dict.fromkeys(each.arm for each in self.results))

    def of(self, arm: str) -> dict[int, F]:
        """Return the figures of an arm by repeat."""
        return {each.repeat: each.figures for each in self.results if each.arm == arm}

    def spread(self, arm: str, figure: Callable[[F], float]) -> Spread:
        """Return the spread of a figure over the repeats of an arm."""
        return Spread.of([*map(figure, self.of(arm).values())])

    def ratio(self, arm: str, to: str, figure: Callable[[F], float]) -> Spread:
        """Return the spread of an arm's figure over that of another arm, each ratio within a repeat."""
        others = self.of(to)
        both = [(each, others[repeat]) for repeat, each in self.of(arm).items() if repeat in others]
        return Spread.of([figure(one) / figure(other) for one, other in both])
