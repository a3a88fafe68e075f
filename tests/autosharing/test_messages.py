"""Where a script iterates."""

from __future__ import annotations

import sysconfig
from typing import Any

import pytest

from penstock.autosharing.messages import decline, place
from penstock.basics import terminal
from penstock.basics.terminal import say_once


class Rows:
    dataset = ()


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
    assert held["fit"]().startswith("test_messages.py:")


def test_every_verdict_is_said_once_and_none_is_swallowed(monkeypatch: pytest.MonkeyPatch, capsys: Any):
    monkeypatch.setattr(terminal, "_said", set())
    for _ in range(2):
        for number in range(100):
            say_once(f"train.py:3 is shared as train-{number}: it shuffles")
            decline(Rows(), f"it has {number} parts")
            decline(Rows(), ValueError(f"<Lock object at {hex(number)}> cannot travel"))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(set(lines)) == 201
