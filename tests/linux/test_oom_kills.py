"""The kernel's count of processes that it ended for want of memory, in both kinds of cgroups."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.linux.cgroups import oom_kills


@pytest.mark.parametrize(
    ("line", "folder", "name"),
    [("0::/job/step", "", "memory.events"), ("4:cpu,memory:/job/step", "memory", "memory.oom_control")],
    ids=["v2", "v1"],
)
def test_kills_in_a_cgroup_are_counted_and_what_cannot_be_seen_is_not(
    tmp_path: Path, line: str, folder: str, name: str
):
    membership = tmp_path / "cgroup"
    membership.write_text(f"1:name=systemd:/elsewhere\n{line}\n")
    assert oom_kills(tmp_path, membership) == 0
    group = tmp_path / folder / "job" / "step"
    group.mkdir(parents=True)
    (group / name).write_text("oom 1\noom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert oom_kills(tmp_path, membership) == 2


def test_without_cgroups_there_is_none(tmp_path: Path):
    assert oom_kills(tmp_path, tmp_path / "none") == 0
