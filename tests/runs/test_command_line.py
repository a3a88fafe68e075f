"""Words of a command line become groups of runs."""

from __future__ import annotations

import pytest

from penstock.errors import BadSetting
from penstock.runs.spec.checks import Gpus, listeners_from, seconds_from
from penstock.runs.spec.command import group_of


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("10m", 600), ("1h30m", 5400), ("0.5s", 0.5), ("2 d", 172800)]
)
def test_a_time_is_read(text: str, seconds: float):
    assert seconds_from("--time-limit", text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "m", "10x", "1h 30", "1e3", "nan"])
def test_what_is_no_time_is_refused(text: str):
    with pytest.raises(BadSetting, match="--time-limit="):
        seconds_from("--time-limit", text)


def test_one_run_is_alone_and_several_are_together_with_names_of_their_own():
    one = group_of(["sh", "-c", "true"], Gpus())
    assert (one.mode, [run.name for run in one.runs]) == ("alone", ["sh"])
    several = group_of(["sh"], Gpus(), repeat=3, name="try", group="all", time_limit_s=5)
    assert (several.name, several.mode) == ("all", "plain")
    assert [run.name for run in several.runs] == ["try#0", "try#1", "try#2"]
    assert {run.time_limit_s for run in several.runs} == {5}


def test_listeners_are_named_or_none():
    assert listeners_from("--listeners", "proc, host") == ("proc", "host")
    assert listeners_from("--listeners", "none") == ()
    with pytest.raises(BadSetting, match=r"--listeners='proc,smi': there is no 'smi'; there are proc, host, disk"):
        listeners_from("--listeners", "proc,smi")
