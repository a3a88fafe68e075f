"""Memory to read into, on huge pages where there are some."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from penstock.io.open import open_reader
from penstock.io.reader import host_memory, lies_on_huge_pages
from penstock.memory.host_ring import WritableHostRing

SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")


def setting(name: str) -> str:
    """What the system gives, such as "madvise"."""
    path = SETTINGS / name
    return path.read_text().partition("[")[2].partition("]")[0] if path.exists() else "never"


@pytest.mark.skipif(setting("enabled") == "never", reason="this system gives no huge pages")
def test_private_memory_lies_on_huge_pages_and_readers_say_so() -> None:
    memory = host_memory(16 << 20)
    assert not lies_on_huge_pages(memory)
    memory[:] = 1
    assert lies_on_huge_pages(memory)
    reader = open_reader("posix", memory)
    assert reader.path_taken.endswith("huge pages")
    reader.close()


def test_memory_on_small_pages_is_not_taken_for_another() -> None:
    mapping = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_NOHUGEPAGE)  # NumPy's own memory may lie on huge pages
    memory = np.frombuffer(mapping, np.uint8)
    memory[:] = 1
    assert not lies_on_huge_pages(memory)
    reader = open_reader("posix", memory)
    assert "huge pages" not in reader.path_taken
    reader.close()


def test_a_ring_lies_on_them_where_the_system_gives_them_to_shared_memory() -> None:
    ring = WritableHostRing.create(16 << 20)
    ring.writable(0, 16 << 20)[:] = 1
    given = setting("shmem_enabled") in ("always", "within_size", "advise", "force")
    assert lies_on_huge_pages(ring.readable(0, 16 << 20)) == given
    ring.close()
