"""The cores that a process may use: those it may run on, or less where a cgroup of either version says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.linux.cgroup_tree import cgroup_tree

from penstock.linux.cgroups import cores

MACHINE = len(os.sched_getaffinity(0))


def allowed(tmp_path: Path, membership: str, **files: str) -> float:
    return cores(*cgroup_tree(tmp_path, membership, files))


@pytest.mark.parametrize(
    ("membership", "files"),
    [
        ("0::/\n", {"cpu.max": "50000 100000\n"}),
        ("0::/jobs/7\n", {"jobs/7/cpu.max": "max 100000\n", "jobs/cpu.max": "50000 100000\n"}),
        ("0::/jobs/7\n", {"jobs/7/cpu.max": "50000 100000\n", "jobs/cpu.max": "90000 100000\n"}),
        (
            "4:cpu,cpuacct:/docker/0a\n0::/\n",
            {"cpu/docker/0a/cpu.cfs_quota_us": "25000\n", "cpu/docker/0a/cpu.cfs_period_us": "50000\n"},
        ),
        (
            "4:cpu:/docker/0a\n",
            {
                "cpu/docker/0a/cpu.cfs_quota_us": "-1\n",
                "cpu/docker/0a/cpu.cfs_period_us": "100000\n",
                "cpu/cpu.cfs_quota_us": "50000\n",
                "cpu/cpu.cfs_period_us": "100000\n",
            },
        ),
    ],
)
def test_the_least_quota_of_the_cgroups_holds(tmp_path, membership, files):
    assert allowed(tmp_path, membership, **files) == 0.5


@pytest.mark.parametrize(
    ("membership", "files"),
    [
        ("", {}),
        ("0::/\n", {"cpu.max": "max 100000\n"}),
        ("0::/\n", {"cpu.max": "100000000 100000\n"}),
        ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}),
        ("4:memory:/\n", {"memory/cpu.cfs_quota_us": "1000\n", "memory/cpu.cfs_period_us": "100000\n"}),
    ],
)
def test_without_a_quota_they_are_those_that_it_may_run_on(tmp_path, membership, files):
    assert allowed(tmp_path, membership, **files) == MACHINE


def test_affinity_counts(tmp_path):
    mine = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mine)})
        assert allowed(tmp_path, "") == 1
    finally:
        os.sched_setaffinity(0, mine)
