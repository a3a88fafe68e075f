"""Cgroups as the kernel shows them, in a folder of the test's own."""

from __future__ import annotations

from pathlib import Path


def cgroup_tree(tmp_path: Path, membership: str, files: dict[str, str]) -> tuple[Path, Path]:
    """Write the list of a process's cgroups, and their files; return where they are mounted, and that list."""
    told = tmp_path / "membership"
    told.write_text(membership)
    for path, text in files.items():
        file = tmp_path / "cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "cgroup", told
