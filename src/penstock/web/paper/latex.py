"""Tables as LaTeX (booktabs): those of the terminal, and those that the page saves."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

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
