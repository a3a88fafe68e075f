"""``penstock advise batch-size``, ``workers`` and ``together``, called as a person calls them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from penstock.runs.store import Store

SCRIPT = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(0.005)
        return index


for _ in DataLoader(Slow(), {batch_size}, shuffle=True, num_workers={workers}):
    time.sleep(0.01)
"""
Advise = Callable[..., CompletedProcess[str]]
pytestmark = pytest.mark.whole


@pytest.fixture
def advise(command: Advise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Advise:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_STORE", str(tmp_path / "store"))
    return partial(command, "advise", cwd=tmp_path)


def write(**numbers: str) -> None:
    Path("train.py").write_text(SCRIPT.format(**{"batch_size": "16", "workers": "0"} | numbers))


def test_workers_are_tried_and_drawn_and_their_runs_are_one_group(advise, tmp_path):
    write(workers="int(sys.argv[1])")
    ran = advise("workers", "--time-limit", "40s", "--plot", "workers.png", "--", "train.py", "{}")
    assert ran.returncode == 0, ran.stderr
    assert "train runs for some seconds at each setting" in ran.stderr
    assert "Take " in ran.stdout and " workers: " in ran.stdout and "one shared feed" in ran.stdout
    assert "heed" not in ran.stdout
    assert (tmp_path / "workers.png").stat().st_size > 10_000
    with Store.open(tmp_path / "store") as store:
        assert {record.group for record in store.runs()} == {"workers of train"}
        assert len({record.group_id for record in store.runs()}) == 1


def test_a_script_that_does_not_heed_the_number_of_workers_is_told_so(advise):
    write()
    ran = advise("workers", "--json", "--", "train.py", "{}")
    assert ran.returncode == 1, ran.stderr
    answer = json.loads(ran.stdout)
    assert answer["chosen"] is None
    assert re.match(
        "It has as many processes with 0 workers as with [2-9]: name the argument", answer["sentences"][0]
    )


def test_time_that_is_up_is_told_and_another_call_goes_on(advise):
    write()
    short = advise("together", "--json", "--time-limit", "5s", "--", "train.py")
    assert short.returncode == 0, short.stderr
    first = json.loads(short.stdout)
    assert [each["value"] for each in first["trials"]] == [1]
    assert "The time was up before 2, which takes about" in first["sentences"][-1]
    again = json.loads(advise("together", "--json", "--time-limit", "25s", "--", "train.py").stdout)
    assert again["trials"][0] == first["trials"][0]
    assert len(again["trials"]) > 1
    assert "1 known from before" in again["sentences"][-1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("batch-size", "--", "train.py"), "the command has no {}: write {} where the number goes"),
        (("together", "--", "train.py", "{}"), "copies of one command run together: write a number there"),
        (("workers", "--", "absent.py", "{}"), "absent.py"),
        (("batch-size", "--memory", "much", "--", "train.py", "{}"), "--memory"),
        (("batch-size", "--time-limit", "soon", "--", "train.py", "{}"), "--time-limit"),
        (("batch-size", "--plot", "absent/fit.png", "--", "train.py", "{}"), "absent"),
    ],
)
def test_what_cannot_be_asked_is_one_line(advise, tmp_path, words, says):
    write()
    ran = advise(*words)
    assert ran.returncode == 2
    assert says in ran.stderr and "Traceback" not in ran.stderr
    assert not (tmp_path / "store" / "fits").exists()
