"""Words of a command line become groups of runs; grids fill their places, in order or drawn at random."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.basics.sizes import seconds_from
from penstock.errors import BadSetting
from penstock.runs.spec.checks import Gpus, listeners_from
from penstock.runs.spec.command import Grid, combinations, fill, grid_from, group_of, named, runs_of

NAMES = st.sampled_from(["lr", "width", "_x", "L2"])
VALUES = st.lists(st.text("{}lr_x 0.,", min_size=1, max_size=6), min_size=1, max_size=4, unique=True)


def drawn(take: int, *options: str, seed: int = 0) -> list[dict[str, str]]:
    grid = grid_from(options)
    return combinations("it", [f"{{{name}}}" for name in grid], grid, take, seed)


def test_every_combination_comes_in_order():
    grid = grid_from(["lr=0.1,0.03", "width=8,16"])
    words = ["--lr={lr}", "{width}x{lr}"]
    filled = [[fill(word, each) for word in words] for each in combinations("it", words, grid, None, 0)]
    assert filled == [[f"--lr={lr}", f"{width}x{lr}"] for lr in ("0.1", "0.03") for width in (8, 16)]


def test_braces_of_a_command_without_a_grid_stay_as_they_are():
    words = ["--json={x}", "{{y}}", "{}", "a{1,2}"]
    assert combinations("it", words, {}, None, 0) == [{}]
    assert [fill(word, {}) for word in words] == words


def test_with_a_grid_only_names_are_places_and_doubled_braces_are_text():
    words = ["{lr}", "{{lr}}", '{"a": {"b": 1}}', "{}", "{1,2}"]
    (parameters,) = combinations("it", words, grid_from(["lr=1"]), None, 0)
    assert [fill(word, parameters) for word in words] == ["1", "{lr}", '{"a": {"b": 1}}', "{}", "{1,2}"]


@settings(max_examples=50)
@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=3))
def test_a_grid_gives_each_combination_once_and_never_fills_its_own_values(lists: dict[str, list[str]]):
    grid: Grid = {name: tuple(values) for name, values in lists.items()}
    words = [f"{{{name}}}" for name in grid]
    parameters = combinations("it", words, grid, None, 0)
    filled = [tuple(fill(word, each) for word in words) for each in parameters]
    assert filled == list(itertools.product(*lists.values()))


@given(st.integers(1, 12), st.integers())
def test_what_is_drawn_differs_and_is_of_the_grid_and_is_the_same_for_one_seed(take: int, seed: int):
    options = "lr=0.1,0.2,0.3", "width=8..11"
    runs = drawn(take, *options, seed=seed)
    assert len({tuple(run.items()) for run in runs}) == take
    assert {run["lr"] for run in runs} <= {"0.1", "0.2", "0.3"}
    assert {run["width"] for run in runs} <= {"8", "9", "10", "11"}
    assert runs == drawn(take, *options, seed=seed)


@settings(max_examples=50)
@given(st.floats(1e-9, 1e9), st.floats(1.1, 1e6), st.booleans(), st.integers())
def test_numbers_are_drawn_from_within_their_range(low: float, factor: float, is_log: bool, seed: int):
    high = low * factor
    runs = drawn(5, f"lr={low}..{high}{':log' if is_log else ''}", seed=seed)
    assert all(low <= float(run["lr"]) <= high for run in runs)


def test_a_log_scale_gives_each_power_of_ten_its_share():
    runs = drawn(400, "lr=1e-4..1:log")
    assert all(60 < sum(10**-n <= float(run["lr"]) < 10 ** (1 - n) for run in runs) < 140 for n in (1, 2, 3, 4))


def test_all_integers_of_a_range_can_be_drawn_on_a_log_scale_too():
    assert {run["n"] for run in drawn(200, "n=1..200:log")} == {str(n) for n in range(1, 201)}


@pytest.mark.parametrize(
    ("options", "take", "said"),
    [
        (["depth=1,2"], None, "the command has no {depth}"),
        (["lr=1"], None, "{width} has no values"),
        (["lr=1", "width=2", "lr=3"], None, "lr has values already"),
        (["lr=1", "width="], None, "width has no values"),
        (["lr=1", "width=2,,3"], None, "width has an empty value"),
        (["lr=1", "width"], None, "write NAME=VALUE"),
        (["lr=1", "wi dth=2"], None, "is no name"),
        (["lr=1,1", "width=2"], None, "lr has 1 twice"),
        (["lr=1..x", "width=2"], None, "1..x is no range"),
        (["lr=3..1", "width=2"], None, "3..1 must rise"),
        (["lr=0..1:log", "width=2"], None, "from above 0"),
        (["lr=1..2", "width=2"], None, "lr is a range"),
        (["lr=1,2", "width=2"], 3, "random 3 of 2 combinations"),
        ([f"{name}={','.join(map(str, range(999)))}" for name in ("lr", "width")], None, "would be 998,001 runs"),
        (["lr=1..2", "width=2.0..3"], 10**6, "would be 1,000,000 runs"),
        (["lr=1,2", "width=2"], 0, "must be above 0, not 0"),
        ([], 2, "there is none"),
        (["lr=1.00001..1.00002", "width=2"], 5, "found only"),
    ],
)
def test_a_wrong_grid_is_one_clear_error(options: list[str], take: int | None, said: str):
    with pytest.raises(BadSetting) as error:
        combinations("it", ["train.py", "{lr}", "{width}"], grid_from(options), take, 0)
    assert said in str(error.value)


def test_runs_are_named_by_what_varies(tmp_path: Path):
    (tmp_path / "train.py").touch()
    command = ["train.py", "{lr}", "{data}"]

    def names(*options: str, repeats: int = 1) -> list[str]:
        runs = runs_of("it", command, str(tmp_path), grid=grid_from(options), repeats=repeats)
        return [run.name for run in named(runs)]

    assert names("lr=1", "data=x") == ["train"]
    assert names("lr=1", "data=x", repeats=2) == ["train#0", "train#1"]
    assert names("lr=1,2", "data=x", repeats=2) == ["lr=1#0", "lr=1#1", "lr=2#0", "lr=2#1"]
    assert names("lr=1,2", f"data={'/a' * 30},{'/b' * 30}")[3] == f"lr=2,data={'/b' * 8}"


@given(st.lists(st.sampled_from(["a", "a#0", "a#1", "a\n", "x" * 60, "x" * 61]), min_size=1, max_size=12))
def test_names_are_unique_short_and_printable(given_names: list[str]):
    runs = runs_of("it", ["true"], "/", repeats=len(given_names))
    renamed = [replace(run, name=name) for run, name in zip(runs, given_names, strict=True)]
    names = [run.name for run in named(renamed)]
    assert len(set(names)) == len(names)
    assert all(len(name) < 55 and name.isprintable() for name in names)


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
