"""The memory that a process may have: the machine's, or less where a cgroup of either version says so."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from tests.linux.cgroup_tree import cgroup_tree

from penstock.linux.cgroups import memory_limit_bytes

MACHINE = psutil.virtual_memory().total


def limit(tmp_path: Path, membership: str, **limits: str) -> int:
    return memory_limit_bytes(*cgroup_tree(tmp_path, membership, limits))


@pytest.mark.parametrize(
    ("membership", "limits"),
    [
        ("0::/\n", {"memory.max": "1048576\n"}),  # a container sees its own cgroup as the root
        ("0::/jobs/7\n", {"jobs/7/memory.max": "1048576\n"}),
        ("0::/jobs/7\n", {"jobs/7/memory.max": "max\n", "jobs/memory.max": "1048576\n"}),
        ("0::/jobs/7\n", {"jobs/7/memory.max": "2097152\n", "jobs/memory.max": "1048576\n"}),
        ("5:cpu,memory:/jobs/7\n0::/\n", {"memory/jobs/7/memory.limit_in_bytes": "1048576\n"}),
        ("4:memory:/docker/0a\n1:name=systemd:/\n", {"memory/memory.limit_in_bytes": "1048576\n"}),
    ],
)
def test_the_least_limit_of_the_cgroups_holds(tmp_path, membership, limits):
    assert limit(tmp_path, membership, **limits) == 1 << 20


@pytest.mark.parametrize(
    ("membership", "limits"),
    [
        ("", {}),
        ("0::/\n", {}),
        ("0::/jobs\n", {"jobs/memory.max": "max\n"}),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}),  # version 1's word for none
        ("3:cpuset:/jobs\n", {"jobs/memory.max": "1048576\n"}),
    ],
)
def test_without_a_limit_it_is_the_machines_memory(tmp_path, membership, limits):
    assert limit(tmp_path, membership, **limits) == MACHINE


def test_this_process_may_have_some():
    assert 0 < memory_limit_bytes() <= MACHINE
