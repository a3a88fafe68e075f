"""What cgroups of either version allow a process, and what they count of it: trees as the kernel shows them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from penstock.linux.cgroups import cores, cpu_limits, free_memory_bytes, memory_limit_bytes, oom_kills

CORES = len(os.sched_getaffinity(0))
MEMORY = psutil.virtual_memory().total


def tree(tmp_path: Path, membership: str, files: dict[str, str]) -> tuple[Path, Path]:
    """Write the list of a process's cgroups, and their files; return where they are mounted, and that list."""
    told = tmp_path / "membership"
    told.write_text(membership)
    for path, text in files.items():
        file = tmp_path / "cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "cgroup", told


def of_version_1(folder: str, quota: int, period: int) -> dict[str, str]:
    return {f"{folder}/cpu.cfs_quota_us": f"{quota}\n", f"{folder}/cpu.cfs_period_us": f"{period}\n"}


@pytest.mark.parametrize(
    ("membership", "files", "allowed"),
    [
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 0.5),
        ("0::/jobs/7\n", {"jobs/7/cpu.max": "max 100000\n", "jobs/cpu.max": "50000 100000\n"}, 0.5),
        ("0::/jobs/7\n", {"jobs/7/cpu.max": "50000 100000\n", "jobs/cpu.max": "90000 100000\n"}, 0.5),
        ("4:cpu,cpuacct:/docker/0a\n0::/\n", of_version_1("cpu/docker/0a", 25000, 50000), 0.5),
        ("4:cpu:/a\n", of_version_1("cpu/a", -1, 100000) | of_version_1("cpu", 50000, 100000), 0.5),
        ("", {}, CORES),
        ("0::/\n", {"cpu.max": "max 100000\n"}, CORES),
        ("0::/\n", {"cpu.max": "100000000 100000\n"}, CORES),
        ("4:cpu:/\n", of_version_1("cpu", -1, 100000), CORES),
        ("4:memory:/\n", of_version_1("memory", 1000, 100000), CORES),
    ],
)
def test_the_least_quota_of_the_cgroups_holds_or_all_that_it_may_run_on(tmp_path, membership, files, allowed):
    assert cores(*tree(tmp_path, membership, files)) == allowed


def test_what_has_been_used_of_each_limit_is_counted_for_all_who_share_it(tmp_path):
    for name in ("1", "2", "none"):
        (tmp_path / name).mkdir()
    of_2 = {"jobs/7/cpu.max": "50000 100000\n", "jobs/7/cpu.stat": "usage_usec 2500000\nuser_usec 1\n"}
    folders, told = tree(tmp_path / "2", "0::/jobs/7\n", of_2)
    before = cpu_limits(folders, told)
    assert before[str(folders / "jobs/7")] == (0.5, 2.5)
    of_1 = {**of_version_1("cpu/a", 25000, 50000), "cpuacct/a/cpuacct.usage": "1500000000\n"}
    folders, told = tree(tmp_path / "1", "4:cpu:/a\n", of_1)
    assert cpu_limits(folders, told)[str(folders / "cpu/a")] == (0.5, 1.5)
    began = time.process_time()
    while time.process_time() < began + 0.2:
        pass
    mine, used_s = cpu_limits(*tree(tmp_path / "none", "", {}))[""]
    assert mine == CORES
    assert used_s >= before[""][1] + 0.1


def test_affinity_counts(tmp_path):
    mine = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mine)})
        assert cores(*tree(tmp_path, "", {})) == 1
    finally:
        os.sched_setaffinity(0, mine)


@pytest.mark.parametrize(
    ("membership", "limits", "allowed"),
    [
        ("0::/\n", {"memory.max": "1048576\n"}, 1 << 20),  # a container sees its own cgroup as the root
        ("0::/jobs/7\n", {"jobs/7/memory.max": "1048576\n"}, 1 << 20),
        ("0::/jobs/7\n", {"jobs/7/memory.max": "max\n", "jobs/memory.max": "1048576\n"}, 1 << 20),
        ("0::/jobs/7\n", {"jobs/7/memory.max": "2097152\n", "jobs/memory.max": "1048576\n"}, 1 << 20),
        ("5:cpu,memory:/jobs/7\n0::/\n", {"memory/jobs/7/memory.limit_in_bytes": "1048576\n"}, 1 << 20),
        ("4:memory:/docker/0a\n1:name=systemd:/\n", {"memory/memory.limit_in_bytes": "1048576\n"}, 1 << 20),
        ("", {}, MEMORY),
        ("0::/\n", {}, MEMORY),
        ("0::/jobs\n", {"jobs/memory.max": "max\n"}, MEMORY),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, MEMORY),  # 1's word for none
        ("3:cpuset:/jobs\n", {"jobs/memory.max": "1048576\n"}, MEMORY),
    ],
)
def test_the_least_limit_of_the_cgroups_holds_or_the_machines_memory(tmp_path, membership, limits, allowed):
    assert memory_limit_bytes(*tree(tmp_path, membership, limits)) == allowed
    assert 0 < memory_limit_bytes() <= MEMORY


@pytest.mark.parametrize(
    ("line", "folder", "limit", "used"),
    [
        ("0::/job", "job", "memory.max", "memory.current"),
        ("4:memory:/job", "memory/job", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ],
    ids=["v2", "v1"],
)
def test_what_a_cgroup_uses_is_not_free_but_for_its_caches(tmp_path, line, folder, limit, used):
    files = {limit: "10000000\n", used: "9000000\n", "memory.stat": "anon 1\ninactive_file 2000000\n"}
    assert (
        free_memory_bytes(*tree(tmp_path, line, {f"{folder}/{name}": it for name, it in files.items()}))
        == 3_000_000
    )
    (tmp_path / "cgroup" / folder / limit).write_text("max\n")
    assert 3_000_000 < free_memory_bytes(tmp_path / "cgroup", tmp_path / "membership") <= MEMORY


@pytest.mark.parametrize(
    ("line", "file"),
    [("0::/job/step", "job/step/memory.events"), ("4:cpu,memory:/job/step", "memory/job/step/memory.oom_control")],
    ids=["v2", "v1"],
)
def test_kills_for_want_of_memory_are_counted_and_what_cannot_be_seen_is_not(tmp_path, line, file):
    membership = f"1:name=systemd:/elsewhere\n{line}\n"
    assert oom_kills(*tree(tmp_path, membership, {})) == oom_kills(tmp_path, tmp_path / "none") == 0
    counts = "oom 1\noom_kill_disable 0\nunder_oom 0\noom_kill 2\n"
    assert oom_kills(*tree(tmp_path, membership, {file: counts})) == 2
