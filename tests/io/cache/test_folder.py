"""A cache's folder: whole data sets go, those of others stay, and so does what is not the cache's."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.io.cache.slabs import closed_later, content, ends_well, forked, items, read

from penstock import Cache, TokenSource
from penstock.errors import BadSetting
from penstock.io.cache.admission import Admitted
from penstock.io.cache.folder import CacheFolder
from penstock.io.cache.slab import Slab
from penstock.io.cache.tiers import CacheCounts, CacheLayout, Tiers

NOBODY = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")


def opened(folder: CacheFolder, root: str, kind: str = "bytes") -> Slab:
    slab = folder.open(root, kind)
    assert slab is not None
    return closed_later(slab)


def let_in(path: Path) -> None:
    """Let others into pytest's private folders."""
    for each in (path, *path.parents):
        if "pytest-" in str(each):
            each.chmod(0o755)


def as_nobody(what: Callable[[], None]) -> None:
    """Do it in a child that is another user; fail if it raises."""

    def other() -> None:
        os.setgid(NOBODY)
        os.setgroups([])
        os.setuid(NOBODY)
        what()

    assert ends_well(forked(other))


def test_the_data_set_that_was_opened_longest_ago_goes_first(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path, 100_000)
    for i, root in enumerate(("oldest", "older")):
        slab = opened(folder, root)
        assert slab.append(items(*range(4))) == 4  # about 33,000 bytes
        slab.close()
        (path,) = [each.path for each in folder.data_sets() if each.about.root == root]
        os.utime(path / "open", (1000 + i, 1000 + i))
    new = opened(folder, "new")
    assert new.append(items(*range(7))) == 7
    assert sorted(each.about.root for each in folder.data_sets()) == ["new", "older"]
    assert sum(each.nbytes for each in folder.data_sets()) <= 100_000


def test_what_somebody_reads_stays(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path, 100_000)
    used = opened(folder, "used")
    assert used.append(items(*range(8))) == 8
    new = opened(folder, "new")
    assert new.append(items(*range(8))) == 4
    assert "its 100 KB are full, of which others have" in new.full
    assert all(read(used, key) == content(key) for key in range(8))
    (path,) = [each.path for each in folder.data_sets() if each.about.root == "used"]
    assert not folder.drop(path)
    used.close()
    assert folder.drop(path)
    assert [each.about.root for each in folder.data_sets()] == ["new"]


def test_a_data_set_that_does_not_fit_drops_no_sample_of_its_own(tmp_path: Path) -> None:
    slab = opened(CacheFolder(tmp_path, 50_000), "large")
    for first in range(0, 40, 4):
        slab.append(items(*range(first, first + 4)))
    kept = [key for key in range(40) if read(slab, key)]
    assert kept == list(range(6))


def test_files_of_others_are_never_deleted(tmp_path: Path) -> None:
    (tmp_path / "mine.jpg").write_text("the only copy")
    (tmp_path / "penstock-0123456789abcdef-bytes").mkdir()
    (tmp_path / "penstock-0123456789abcdef-bytes" / "data").write_text("no data set")
    folder = CacheFolder(tmp_path, 60_000)
    slab = opened(folder, "old")
    slab.append(items(*range(5)))
    slab.close()
    (old,) = folder.data_sets()
    (old.path / "notes.txt").write_text("mine, too")
    assert opened(folder, "new").append(items(*range(6))) == 6  # so the old one went
    assert [each.about.root for each in folder.data_sets()] == ["new"]
    assert (tmp_path / "mine.jpg").read_text() == "the only copy"
    assert (tmp_path / "penstock-0123456789abcdef-bytes" / "data").read_text() == "no data set"
    assert (old.path / "notes.txt").read_text() == "mine, too"


def test_a_data_set_of_which_files_of_others_are_left_can_be_kept_anew(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path, 60_000)
    slab = opened(folder, "data")
    slab.append(items(1))
    slab.close()
    (path,) = [each.path for each in folder.data_sets()]
    (path / "notes.txt").write_text("mine")
    assert folder.drop(path)
    again = opened(folder, "data")
    assert read(again, 1) is None
    assert again.append(items(1)) == 1
    assert [each.about.root for each in folder.data_sets()] == ["data"]


def test_kinds_of_one_data_set_are_apart(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path, 1 << 20)
    opened(folder, "data", "bytes").append(items(1))
    assert read(opened(folder, "data", "pixels"), 1) is None


def test_a_folder_that_cannot_be_one_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadSetting, match="cannot be used as a cache: File exists"):
        Cache(tmp_path / "file", "1GB")
    with pytest.raises(BadSetting, match="keep='all': it must be one of auto, bytes, pixels"):
        Cache(tmp_path / "cache", "1GB", keep="all")  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadSetting, match="size='big'"):
        Cache(tmp_path / "cache", "big")
    with pytest.raises(BadSetting, match="node= must name this one"):
        Cache(tmp_path / "cache", "1GB", others={"b": tmp_path})


def test_a_folder_that_is_removed_as_it_is_opened_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = CacheFolder(tmp_path / "cache", 1 << 20)
    make = folder._make

    def made_and_removed(*arguments: Any) -> None:
        make(*arguments)
        shutil.rmtree(folder.path)

    monkeypatch.setattr(folder, "_make", made_and_removed)
    assert folder.open("data", "bytes") is None


def test_it_is_private_unless_it_is_shared(tmp_path: Path) -> None:
    for shared, mode in ((False, 0o700), (True, 0o2770)):
        folder = CacheFolder(tmp_path / str(shared), 1 << 20, shared=shared)
        opened(folder, "data").append(items(1))
        assert stat.S_IMODE(folder.path.stat().st_mode) == mode
        (found,) = folder.data_sets()
        assert stat.S_IMODE((found.path / "data").stat().st_mode) == (0o660 if shared else 0o600)


@as_root
def test_a_folder_that_may_only_be_read_is_read(tmp_path: Path) -> None:
    let_in(tmp_path)
    path = tmp_path / "cache"
    opened(CacheFolder(path, 1 << 20), "data").append(items(1))
    for each in (path, *path.rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o644)

    def reads() -> None:
        folder = CacheFolder(path, 1 << 20)
        slab = opened(folder, "data")
        assert read(slab, 1) == content(1)
        assert slab.full == "it may only be read"
        tiers = Tiers(CacheLayout("data", "bytes", str(path), 1 << 20, shared=False))
        assert tiers.wanted(np.arange(4, dtype=np.uint64), Admitted(1.0, 1.0)) == [None] * 4
        assert folder.open("another", "bytes") is None
        (found,) = folder.data_sets()
        assert not folder.drop(found.path)

    as_nobody(reads)


def refuse(monkeypatch: pytest.MonkeyPatch, number: int, how: int = ~0) -> None:
    """Refuse a kind of locks; those for one alone only of files that may not be written, as over NFS."""
    real = fcntl.flock

    def flock(fd: int, asked: int) -> None:
        if asked & how and (how == ~0 or fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY):
            raise OSError(number, os.strerror(number))
        real(fd, asked)

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EBADF])
def test_a_folder_whose_file_system_locks_no_files_goes_unused_and_is_named(tmp_path, monkeypatch, capsys, number):
    refuse(monkeypatch, number)
    folder = CacheFolder(tmp_path / "cache", 1 << 20)
    assert folder.open("data", "bytes") is None
    says = rf"its file system, \w+, locks no files \(flock: {os.strerror(number)}\)"
    tiers = Tiers(CacheLayout("data", "bytes", str(tmp_path / "cache"), 1 << 20, shared=False))
    assert tiers.wanted(np.arange(4, dtype=np.uint64), Admitted(1.0, 1.0)) == [None] * 4
    assert re.fullmatch(says, tiers.counts.full)
    np.arange(1000, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    with pytest.raises(BadSetting, match=rf"nothing can be kept in .*/cache: {says}. Name a folder"):
        TokenSource(str(tmp_path / "tokens.bin"), length=10, cache=Cache(tmp_path / "cache", "1MB"))
    counts = CacheCounts()
    for _ in range(2):
        counts.add(tiers.counts)
    assert len(re.findall(f"the cache is of no use: {says}", capsys.readouterr().err)) == 1


def test_over_nfs_the_least_used_still_goes_where_room_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    refuse(monkeypatch, errno.EBADF, fcntl.LOCK_EX)
    folder = CacheFolder(tmp_path, 40_000)
    for root in ("old", "new"):
        slab = opened(folder, root)
        assert slab.append(items(*range(4))) == 4  # about 33,000 bytes
        slab.close()
    assert [each.about.root for each in folder.data_sets()] == ["new"]


@as_root
def test_another_users_private_folder_is_an_error_that_names_the_remedy(tmp_path: Path) -> None:
    let_in(tmp_path)
    CacheFolder(tmp_path / "cache", 1 << 20)

    def tries() -> None:
        with pytest.raises(BadSetting, match=r"Permission denied\. Its owner may share it"):
            CacheFolder(tmp_path / "cache", 1 << 20)

    as_nobody(tries)


@as_root
def test_two_users_of_a_group_share_what_they_keep(tmp_path: Path) -> None:
    let_in(tmp_path)
    path = tmp_path / "cache"
    ours = CacheFolder(path, 1 << 20, shared=True)
    os.chown(path, -1, NOBODY)
    mine = opened(ours, "data")
    mine.append(items(1))

    def adds() -> None:
        slab = opened(CacheFolder(path, 1 << 20, shared=True), "data")
        assert read(slab, 1) == content(1)
        assert slab.append(items(2)) == 1

    as_nobody(adds)
    assert read(mine, 2) == content(2)


def test_four_who_add_at_once_keep_nothing_twice_and_stay_within_the_limit(tmp_path: Path) -> None:
    limit = 100 * 8192 + 20_000

    def adds(child: int) -> None:
        slab = CacheFolder(tmp_path, limit).open("data", "bytes")
        assert slab is not None
        order = np.random.default_rng(child).permutation(150).tolist()
        for first in range(0, 150, 6):
            slab.append(items(*order[first : first + 6]))

    children = [forked(partial(adds, child)) for child in range(4)]
    assert [ends_well(child) for child in children] == [True] * 4
    folder = CacheFolder(tmp_path, limit)
    slab = opened(folder, "data")
    keys: list[int] = slab.records["key"].tolist()
    assert len(keys) == len(set(keys)) >= 95
    assert all(read(slab, key) == content(key) for key in keys)
    (data_set,) = folder.data_sets()
    assert data_set.nbytes <= limit


def test_two_nodes_never_keep_the_same(tmp_path: Path) -> None:
    keys = np.arange(1000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    names = ["a", "b", "c"]
    kept: list[set[int]] = []
    for name in names:
        others = {other: str(tmp_path / other) for other in names if other != name}
        layout = CacheLayout("data", "bytes", str(tmp_path / name), 1 << 20, False, node=name, others=others)
        tiers = Tiers(layout)
        kept.append({i for i, tier in enumerate(tiers.wanted(keys, Admitted(0.0, 1.0))) if tier is not None})
        tiers.close()
    assert set.union(*kept) == set(range(1000))
    assert sum(map(len, kept)) == 1000
