"""YAML specs: what they plan, and one clear error for each mistake."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from penstock.autosharing.options import ShareOptions
from penstock.errors import BadSetting, PackageMissing
from penstock.runs.record import GroupPlan
from penstock.runs.spec.checks import Gpus
from penstock.runs.spec.needs import Names
from penstock.runs.spec.yaml_file import plan_yaml


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "train.py").touch()
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "other.py").touch()
    return tmp_path / "spec.yaml"


def groups(spec: Path, text: str) -> list[GroupPlan]:
    return [group for _, group in plan_yaml(spec, dedent(text), Gpus(without=True))[0]]


def test_a_group_is_repeated_in_each_of_its_modes(spec: Path):
    alone, plain = groups(
        spec,
        """
        groups:
          - name: small
            command: train.py --lr {lr} --no no
            grid: {lr: [0.10, 1e-2]}
            repeats: 2
            devices: [0, 1]
            modes: [alone, plain]
            listeners: [proc, host]
            time_limit: 1.5h
            watch_dataloader: true
            watch_metrics: false
            profile: [torch 100-110]
        """,
    )
    assert (alone.name, alone.mode, plain.name, plain.mode) == ("small", "alone", "small", "plain")
    assert alone.runs == plain.runs
    assert alone.listeners == ("proc", "host")
    assert [run.name for run in alone.runs] == ["lr=0.10#0", "lr=0.10#1", "lr=1e-2#0", "lr=1e-2#1"]
    first = alone.runs[0]
    assert first.command == (sys.executable, "train.py", "--lr", "0.10", "--no", "no")
    assert first.parameters == {"lr": "0.10"}
    assert first.directory == str(spec.parent)
    assert first.time_limit_s == 5400
    assert first.watch_dataloader and not first.watch_metrics
    assert first.profile == ("torch 100-110",)


def test_groups_run_in_order_and_one_can_have_several_commands(spec: Path):
    first, second = groups(
        spec,
        """
        groups:
          - command: [train.py, "a b"]
          - runs:
              - {command: train.py}
              - {command: other.py, directory: deep, name: the other, repeats: 2}
        """,
    )
    assert (first.name, second.name) == ("spec-0", "spec-1")
    assert first.runs[0].command[1:] == ("train.py", "a b")
    assert first.mode == second.mode == "plain" and first.listeners is None
    assert [run.name for run in second.runs] == ["train", "the other#0", "the other#1"]
    assert second.runs[1].directory == str(spec.parent / "deep")


def test_ranges_are_drawn_from(spec: Path):
    (group,) = groups(spec, "groups: [{command: 'train.py {lr}', grid: {lr: 1e-4..1e-1:log}, random: 5, seed: 7}]")
    assert len({run.parameters["lr"] for run in group.runs}) == 5


def test_mps_and_mig_are_planned(spec: Path):
    text = "groups:\n- command: train.py\n  modes: [mps, 'mig:3g.20gb']"
    ((_, group), (where, _)), _ = plan_yaml(spec, text, Gpus(without=True))
    assert group.mode == "mps"
    assert where == f"{spec}: groups[0].modes"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("reapets: 2", " groups[0]: there is no key reapets; did you mean repeats?"),
        ("groups: []", " groups[0]: there is no key groups here"),
        ("repeats: two", " groups[0].repeats: it must be a whole number"),
        ("repeats: 1.5", " groups[0].repeats: it must be a whole number"),
        ("repeats: 0", " groups[0].command: repeats must be above 0, not 0"),
        ("repeats: 20000", " groups[0].command: these would be 20,000 runs"),
        ("grid: {lr: {a: 1}}", " groups[0].grid: it must be text or a list"),
        ("grid: {lr: [1]}", " groups[0].command: the command has no {lr}"),
        ("grid: {lr: []}", " groups[0].grid.lr: lr has no values"),
        ("command: x", " groups[0].command: it stands there twice"),
        ("modes: [plain, plain]", " groups[0].modes: one of them stands there twice"),
        ("mps_threads: 101", " groups[0].mps_threads: it must be a number of at most 100"),
        ("mps_threads: 0", " groups[0].mps_threads: it must be a number above 0"),
        ("mps_threads: 50", " groups[0].mode: mps_threads and mps_memory are for mode mps"),
        ("mps_memory: much", " groups[0].mps_memory='much': give bytes"),
        ("listeners: proc", " groups[0].listeners: it must be a list"),
        ("listeners: [proc, smi]", " groups[0].listeners: there is no 'smi'; there are proc, host"),
        ("time_limit: soon", " groups[0].time_limit='soon': give a time above 0"),
        ("directory: nowhere", " groups[0].directory: there is no folder"),
        ("random: 3", " groups[0].command: random draws from a grid"),
        ("runs: [{command: train.py}]", " groups[0].command: this group has runs"),
        ("after: b", " groups[0].after: there is no run or group 'b'"),
        ("after: [trian]", " groups[0].after: there is no run or group 'trian'; did you mean 'train'?"),
        ("after: a", " groups[0].after: these wait for each other: train -> train"),
        ("after: {a: b}", " groups[0].after: it must be text or a list"),
        ("gpus: -1", " groups[0].gpus: it must be a whole number of at least 0"),
        ("gpus: some", " groups[0].gpus: it must be a whole number"),
        ("memory: much", " groups[0].memory='much': give bytes"),
        ("priority: 0", " groups[0].priority: it must be a number above 0"),
        ("priority: inf", " groups[0].priority: it must be a number of at most 1,000,000"),
        ("deadline: soon", " groups[0].deadline='soon': give a time above 0"),
        ("preempt: perhaps", " groups[0].preempt: it must be true or false"),
        ("feed: train.py", " groups[0].feed='train.py': auto, none, or FILE.py:FUNCTION"),
        ("feed: missing.py:make", " groups[0].feed='missing.py:make': there is no file"),
        ("epochs: 0", " groups[0].epochs: it must be a whole number of at least 1"),
        ("memory: 1000TiB", " groups[0].memory=1,000 TiB: the machine has "),
        ("name: *x", " *x: write out what it stands for"),
        ("? [a]\n    : b", " groups[0]: a key must be a word"),
        ("name: [", "6: no YAML:"),
        ("name: \x00", "1: no YAML:"),
    ],
)
def test_a_mistake_is_one_error_with_file_and_key(spec: Path, line: str, said: str):
    with pytest.raises(BadSetting) as error:
        plan_yaml(spec, f"groups:\n\n  - name: a\n    command: train.py\n    {line}\n", Gpus(without=True))
    assert str(error.value).startswith(f"{spec}:{said}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", " it must be keys with values"),
        ("groups:", " groups: it must be a list"),
        ("groups: []", " groups is empty"),
        ("runs: []", " there is no key runs here; write groups: [{runs: …}]"),
        ("Experiment: a", " Experiment is a key of radT, whose YAML is not read: give its CSV file"),
        ("groups: [{}]", " groups[0].command: the command is empty"),
        (
            "groups: [{runs: [{command: train.py}, {command: train.py, grid: [1]}]}]",
            " groups[0].runs[1].grid: it must be keys with values, not a list",
        ),
        ("groups: [{command: no.py}]", " groups[0].command: no script 'no.py'"),
        ("groups: [{command: 'a \"b'}]", " groups[0].command: No closing quotation"),
        ("x: !!python/object/apply:os.system [ls]", " there is no key x"),
        ("groups: []\n---\n", "2: no YAML:"),
    ],
)
def test_what_is_no_spec_is_refused(spec: Path, text: str, said: str):
    with pytest.raises(BadSetting) as error:
        plan_yaml(spec, text, Gpus(without=True))
    assert str(error.value).startswith(f"{spec}:{said}")


def test_without_pyyaml_the_error_names_the_extra(spec: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [])
    for name in [name for name in sys.modules if name.split(".")[0] in {"yaml", "_yaml"}]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(PackageMissing, match=r"penstock\[runs\]"):
        plan_yaml(spec, "groups: []", Gpus(without=True))


def test_runs_share_their_loaders_where_the_file_says_so(spec: Path):
    (group,) = groups(
        spec,
        """
        groups:
          - runs:
              - {command: train.py, share: true}
              - {command: train.py, share: {workers: 3, only: Rows}}
              - {command: train.py, share: false}
        """,
    )
    assert [run.share for run in group.runs] == [ShareOptions(), ShareOptions(workers=3, only="Rows"), None]


def test_keys_of_a_schedule_are_planned(spec: Path):
    first, second = groups(
        spec,
        """
        groups:
          - {name: first, command: train.py, memory: auto}
          - command: "train.py {lr}"
            grid: {lr: [1, 2]}
            after: first
            memory: 1MiB
            priority: 2.5
            deadline: 1h30m
            preempt: true
            feed: deep/other.py:make
            epochs: 3
        """,
    )
    (plain,) = first.runs
    assert (plain.after, plain.gpus, plain.memory_bytes, plain.priority) == ((), 0, None, 1.0)
    for run in second.runs:
        assert (run.after, run.memory_bytes, run.priority) == (("first",), 1 << 20, 2.5)
        assert (run.deadline_s, run.preempt, run.epochs) == (5400, True, 3)
        assert run.feed == f"{spec.parent}/deep/other.py:make"


def test_a_group_and_its_runs_can_both_come_after_others(spec: Path):
    *_, group = groups(
        spec,
        """
        groups:
          - {name: before, command: train.py}
          - after: [before]
            runs:
              - {name: a, command: train.py}
              - {name: b, command: train.py, after: a}
        """,
    )
    assert [run.after for run in group.runs] == [("before",), ("before", "a")]


OF_GROUPS = """groups:
- name: x
  {of_x}
  runs:
    - {{name: a, command: train.py, {of_a}}}
    - {{name: b, command: train.py, {of_b}}}
- name: y
  modes: [alone, plain]
  runs:
    - {{name: c, command: train.py, {of_c}}}
    - {{name: d, command: train.py}}
"""


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (
            {"of_a": "after: b", "of_b": "after: a"},
            " groups[0].runs[0].after: these wait for each other: a -> b -> a",
        ),
        (
            {"of_a": "after: y", "of_c": "after: b", "of_b": "after: a"},
            " groups[0].runs[0].after: these wait for each other: a -> ",
        ),
        ({"of_x": "after: y", "of_c": "after: x"}, " groups[0].after: these wait for each other: "),
        ({"of_x": "after: [d, e]"}, " groups[0].after: there is no run or group 'e'"),
    ],
)
def test_what_could_never_begin_is_one_error(spec: Path, after: dict[str, str], said: str):
    text = OF_GROUPS.format(**{key: after.get(key, "") for key in ("of_x", "of_a", "of_b", "of_c")})
    with pytest.raises(BadSetting) as error:
        plan_yaml(spec, text.replace(", }", "}"), Gpus(without=True))
    assert str(error.value).startswith(f"{spec}:{said}")


def test_a_group_in_several_modes_comes_after_itself_in_none(spec: Path):
    text = OF_GROUPS.format(of_x="", of_a="", of_b="", of_c="after: [d, x]").replace(", }", "}")
    planned, _ = plan_yaml(spec, text, Gpus(without=True), in_turn=True)
    names = Names([group for _, group in planned])
    assert [[names.runs[place][1].name for place in places] for places in names.before()] == [
        *([], []),
        *(["a", "b", "d"], []),
        *(["a", "b", "d"], []),
    ]
    assert [places[-1] for places in names.before() if places] == [3, 5]


def test_a_run_after_a_later_group_is_refused_where_groups_run_in_turn(spec: Path):
    text = OF_GROUPS.format(of_x="", of_a="after: d", of_b="", of_c="").replace(", }", "}")
    plan_yaml(spec, text, Gpus(without=True))
    with pytest.raises(BadSetting) as error:
        plan_yaml(spec, text, Gpus(without=True), in_turn=True)
    assert str(error.value) == (
        f"{spec}: groups[0].runs[0].after: 'd' is in group 'y', which penstock run starts later: put that "
        "group first, or use penstock schedule run"
    )
    with pytest.raises(BadSetting, match=r"which machine.groups starts later: put that group first$"):
        plan_yaml(spec, text + "machine: {groups: in turn}", Gpus(without=True))


def test_the_page_s_runs_that_come_after_others_are_planned(spec: Path):
    page = Path(__file__).parents[3] / "docs" / "contracts" / "spec.md"
    (text,) = [
        each for each in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.S | re.M) if "machine:" in each
    ]
    for name in ("prepare.py", "report.py"):
        (spec.parent / name).touch()
    planned, _ = plan_yaml(spec, text.replace("machine: {", "machine: {simulated: true, "), Gpus(), in_turn=True)
    (prepare, sweep) = (group for _, group in planned)
    assert [run.after for run in (*prepare.runs, *sweep.runs)] == [
        (),
        *2 * [("prepare",)],
        ("prepare", "small", "large"),
    ]
