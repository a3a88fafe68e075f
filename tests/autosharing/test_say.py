"""Where a script iterates."""

from __future__ import annotations

import sysconfig
from typing import Any

import pytest

from penstock.autosharing.say import place


@pytest.mark.parametrize(
    "file",
    [
        f"{sysconfig.get_path('stdlib')}/runpy.py",
        f"{sysconfig.get_path('purelib')}/lightning/fit.py",
        "/home/user/.local/lib/python3.12/site-packages/lightning/fit.py",
        "/usr/lib/python3/dist-packages/lightning/fit.py",
    ],
)
def test_the_place_is_the_scripts_own_below_any_library(file: str) -> None:
    held: dict[str, Any] = {"place": place}
    exec(compile("def fit(): return place()", file, "exec"), held)
    assert held["fit"]().startswith("test_say.py:")
