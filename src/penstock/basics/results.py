"""How results are told: progress, tables, numbers, spreads, and files of them."""

from __future__ import annotations

import os
import re
import statistics
import unicodedata
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from penstock.basics.packages import require
from penstock.basics.terminal import printable
from penstock.errors import BadSetting

Tell = Callable[[int, int, str], None]
"""Called with (cases done, cases in all or 0 if nobody knows, the case that comes now)."""
_PICTURES = (".png", ".svg", ".pdf")


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


@contextmanager
def progress(console: Console) -> Generator[Tell]:
    """Show a bar on a terminal; it is erased at the end."""
    columns = [TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()]
    quiet = not console.is_terminal
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True, disable=quiet) as bar:
        task = bar.add_task("starting", total=None)

        def tell(done: int, in_all: int, what: str) -> None:
            bar.update(task, completed=done, total=in_all or None, description=printable(what))

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


_ESCAPED = str.maketrans(
    {
        **{letter: f"\\{letter}" for letter in "$%&#_{}"},
        "\\": r"\textbackslash{}",
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "[": "{[}",  # behind \\, they would belong to it
        "*": "{*}",
    }
)
_NOT_IN_PDFLATEX = re.compile("[^\0-\u017f\u2013-\u2026]")


def escaped(text: str) -> str:
    r"""Return a text as LaTeX shows it: accents on their letters, without what is never seen, two hyphens no dash.

    >>> escaped("--lr_0.1 & 50%")
    '-{}-lr\\_0.1 \\& 50\\%'
    """
    whole = unicodedata.normalize("NFC", text)
    seen = "".join(letter for letter in whole if unicodedata.category(letter) != "Cf")
    return re.sub("-(?=-)", "-{}", " ".join(seen.split()).translate(_ESCAPED))


def latex_table(rows: Sequence[Sequence[str]], sides: str = "") -> str:
    """Write a table of texts, the first row its heading; ``sides`` has l or r for each column."""
    head, *lines = (" & ".join(map(escaped, row)) + r" \\" for row in rows)
    top = [f"\\begin{{tabular}}{{{sides or 'l' * len(rows[0])}}}", r"\toprule", head, r"\midrule"]
    table = "\n".join([*top, *lines, r"\bottomrule", r"\end{tabular}", ""])
    if _NOT_IN_PDFLATEX.search(table):
        return f"% With letters that pdflatex lacks: take LuaLaTeX or XeLaTeX, and a font that has them.\n{table}"
    return table
