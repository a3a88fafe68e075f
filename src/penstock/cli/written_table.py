"""Tables as people take them elsewhere: CSV for programs, LaTeX (booktabs) for papers."""

from __future__ import annotations

import csv
import re
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from penstock.cli.command import option

if TYPE_CHECKING:
    from rich.console import RenderableType

Format = Annotated[
    Literal["table", "json", "csv", "latex"],
    option("--format", "csv, latex (booktabs) or json.", metavar="FORMAT"),
]
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


def print_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows, under the names of all that any of them has; what is not known is empty."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(sys.stdout, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def print_latex(page: RenderableType) -> None:
    """Print a table, whose columns stand as they do in the terminal; nothing if it is none."""
    from rich.table import Table

    if not isinstance(page, Table):
        return
    lines = [[column.header, *column.cells] for column in page.columns]
    sides = "".join("r" if column.justify == "right" else "l" for column in page.columns)
    head, *rows = (" & ".join(escaped(str(cell)) for cell in row) + r" \\" for row in zip(*lines, strict=True))
    top = [f"\\begin{{tabular}}{{{sides}}}", r"\toprule", head, r"\midrule"]
    table = "\n".join([*top, *rows, r"\bottomrule", r"\end{tabular}"])
    if _NOT_IN_PDFLATEX.search(table):
        typer.echo("% With letters that pdflatex lacks: take LuaLaTeX or XeLaTeX, and a font that has them.")
    typer.echo(table)
