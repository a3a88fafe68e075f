"""An experiment: arms measured in turn, several times each, compared within a repeat, shown and saved."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from penstock.basics.packages import require
from penstock.basics.terminal import printable
from penstock.errors import BadSetting, PenstockError
from penstock.runs.machine import Machine

S = TypeVar("S")
F = TypeVar("F")
Tell = Callable[[int, int, str], None]
"""Called with (cases done, cases in all, the case that comes now)."""
_PICTURES = (".png", ".svg", ".pdf")


class ArmFailed(PenstockError):
    """Raised by an arm that cannot run on this machine: the others go on without it."""


class Spread(msgspec.Struct, frozen=True):
    """The median, least and most of a figure."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of values.

        >>> Spread.of([3, 1, 2])
        Spread(median=2, least=1, most=3)
        """
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        """Return the median, and the least and most in brackets, unless they are the same.

        >>> str(Spread(3.1, 2.9, 3.3)), str(Spread(2, 2, 2))
        ('3.1 (2.9–3.3)', '2')
        """
        around = f" ({short(self.least)}–{short(self.most)})" if self.least < self.most else ""
        return short(self.median) + around


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


@contextmanager
def progress(console: Console) -> Generator[Tell]:
    """Show a bar on a terminal; it is erased at the end."""
    columns = [TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()]
    quiet = not console.is_terminal
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True, disable=quiet) as bar:
        task = bar.add_task("starting", total=None)

        def tell(done: int, in_all: int, what: str) -> None:
            bar.update(task, completed=done, total=in_all, description=printable(what))

        yield tell


def results_table(*headings: str, title: str | None = None) -> Table:
    """Make a table without lines: names to the left, and figures, which are never cut, to the right."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", title=title, title_justify="left")
    for place, heading in enumerate(headings):
        justify = "right" if place else "left"
        table.add_column(heading, justify=justify, no_wrap=bool(place), overflow="fold")
    return table


def short(value: float) -> str:
    """Format a number with three digits, or as a whole number.

    >>> short(0.12345), short(1234.5)
    ('0.123', '1,234')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def as_json(report: object) -> bytes:
    """Encode a report, or a list of rows, as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"


def check_files(*files: Path | None, plot: Path | None = None) -> None:
    """Check that files can be written, and a picture drawn, before minutes of measuring."""
    for file in filter(None, (*files, plot)):
        folder = file.absolute().parent
        if not folder.is_dir():
            raise BadSetting(f"{file}: its directory does not exist")
        if file.is_dir():
            raise BadSetting(f"{file} is a directory; give the name of a file")
        if not os.access(file if file.exists() else folder, os.W_OK):
            raise BadSetting(f"you may not write {file}; give another place")
    if plot is not None:
        if plot.suffix.lower() not in _PICTURES:
            raise BadSetting(f"--plot {plot}: its name ends in one of {', '.join(_PICTURES)}")
        require("--plot", "paper", "matplotlib")


def save(file: Path | None, write: Callable[[Path], object], console: Console) -> None:
    """Write a file, if one is asked for, and print its name."""
    if file is None:
        return
    try:
        write(file)
    except OSError as error:
        raise BadSetting(f"{file} could not be written: {error.strerror}") from None
    console.print(f"saved: {printable(str(file))}", soft_wrap=True)
