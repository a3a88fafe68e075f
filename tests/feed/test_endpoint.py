"""Where feeds are found: any name, nobody else's directory, and what the dead left is no obstacle."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest

import penstock
from penstock.feed.directory import directory
from penstock.feed.endpoint import Endpoint, Owner

ARRAYS = {"id": np.arange(20)}
NAMES = [
    "imagenet/train",
    "/etc/passwd",
    "../../etc/passwd",
    "ü/データ \N{GRINNING FACE}",
    "\u0301",
    " ",
    "x" * 300,
    "a b\n\tc",
    ".",
    "\x00",
    "-n",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_feed_may_have_any_name_and_be_ended(serve, name, feeds_directory):
    of_other_tests = set(feeds_directory.parent.rglob("*.sock"))
    serve(ARRAYS, name)
    with penstock.attach(name, 6) as loader:
        assert sorted(int(i) for batch in loader for i in batch["id"]) == list(range(20))
        assert loader.name == name
    assert [feed.name for feed in penstock.feeds()] == [name]
    made = set(feeds_directory.parent.rglob("*.sock")) - of_other_tests
    assert {path.parent for path in made} == {feeds_directory}
    assert penstock.stop(name) == (os.getpid(), ())
    with pytest.raises(penstock.errors.FeedNotFound):
        penstock.stop(name)


def test_names_that_differ_are_different_feeds():
    paths = {Endpoint(name).lock_path for name in [*NAMES, "a", "A", "a ", "x" * 301]}
    assert len(paths) == len(NAMES) + 4


def test_a_missing_feed_is_told_with_those_that_run(serve):
    with pytest.raises(penstock.errors.FeedNotFound, match="no feed runs"):
        penstock.attach("train")
    serve(ARRAYS, "train/a")
    serve(ARRAYS, "train/b")
    with pytest.raises(penstock.errors.FeedNotFound, match="feeds that run: 'train/a', 'train/b'"):
        penstock.attach("train")


def test_what_the_dead_left_is_removed_by_whoever_looks(feeds_directory):
    def attach() -> None:
        with pytest.raises(penstock.errors.FeedNotFound):
            penstock.attach("feed")

    for look in (penstock.feeds, attach):
        endpoint = Endpoint("feed")
        lock = endpoint.acquire()
        assert lock is not None
        endpoint.log_path.write_text("it crashed")
        lock.close()
        look()
        assert list(feeds_directory.iterdir()) == []


def test_a_lock_is_held_by_one():
    endpoint = Endpoint("feed")
    lock = endpoint.acquire()
    assert lock is not None
    assert Endpoint("feed").acquire() is None
    assert endpoint.owner() == Owner("feed", os.getpid())
    endpoint.remove(lock)
    again = endpoint.acquire()
    assert again is not None
    endpoint.remove(again)


@pytest.fixture
def patch(feeds_directory: Path) -> Iterator[pytest.MonkeyPatch]:
    """Undone before the test's own directory is looked at."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def test_a_lock_that_was_removed_between_open_and_lock_is_not_taken_for_the_feeds(patch):
    endpoint = Endpoint("feed")
    real, removed = fcntl.flock, []

    def flock(lock, how):
        if not removed:
            removed.append(endpoint.lock_path.unlink())
        return real(lock, how)

    patch.setattr(fcntl, "flock", flock)
    lock = endpoint.acquire()
    assert lock is not None
    assert os.path.samestat(os.fstat(lock.fileno()), endpoint.lock_path.stat())
    assert Endpoint("feed").acquire() is None
    endpoint.remove(lock)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EBADF])
def test_a_file_system_that_locks_no_files_is_named_at_once_and_nothing_is_left(patch, feeds_directory, number):
    def refused(*_):
        raise OSError(number, os.strerror(number))

    patch.setattr(fcntl, "flock", refused)
    says = rf"feeds cannot be kept in {feeds_directory}: its file system, \w+, locks no files .*set PENSTOCK_DIR"
    for use in (lambda: penstock.Feeder(ARRAYS, "feed"), lambda: next(iter(penstock.share(arrays, "feed", 5)))):
        with pytest.raises(penstock.errors.DirectoryUnusable, match=says):
            use()
    for path in feeds_directory.iterdir():
        assert path.suffix == ".lock"
        path.unlink()


def arrays():
    return ARRAYS


def is_refused(says: str) -> None:
    """Whoever serves, attaches or looks for feeds is told that the directory is not safe."""
    for use in (lambda: penstock.Feeder(ARRAYS, "feed"), lambda: penstock.attach("feed"), penstock.feeds):
        with pytest.raises(penstock.errors.InsecureDirectory, match=says):
            use()


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o701, 0o777, 0o770, 0o1777, 0o720])
def test_a_directory_that_others_may_enter_is_refused(patch, tmp_path, mode):
    open_to_others = tmp_path / "feeds"
    open_to_others.mkdir()
    open_to_others.chmod(mode)
    patch.setenv("PENSTOCK_DIR", str(open_to_others))
    is_refused(f"mode {mode:04o}.*chmod 700")
    assert list(open_to_others.iterdir()) == []


def test_a_directory_of_another_user_is_refused(patch, tmp_path):
    theirs = tmp_path / "feeds"
    theirs.mkdir(mode=0o700)
    patch.setenv("PENSTOCK_DIR", str(theirs))
    uid = os.getuid()
    patch.setattr(os, "getuid", lambda: uid + 1)
    with pytest.raises(penstock.errors.InsecureDirectory, match=f"belongs to uid {uid}, you are uid {uid + 1}"):
        directory()


def test_only_a_real_directory_will_do(patch, tmp_path):
    """A link could be turned to another place between the check and the use."""
    (tmp_path / "target").mkdir(mode=0o700)
    (tmp_path / "file").touch()
    for kind, to in (("link", "target"), ("dangling", "nowhere")):
        (tmp_path / kind).symlink_to(tmp_path / to)
    for kind in ("link", "dangling", "file"):
        patch.setenv("PENSTOCK_DIR", str(tmp_path / kind))
        with pytest.raises(penstock.errors.InsecureDirectory, match="is not a directory"):
            directory()


def test_a_directory_is_made_private_whatever_the_umask(patch, tmp_path):
    patch.setenv("PENSTOCK_DIR", str(tmp_path / "deep" / "er" / "feeds"))
    before = os.umask(0)
    try:
        with penstock.Feeder(ARRAYS, "feed"):
            modes = {path.suffix: stat.S_IMODE(path.stat().st_mode) for path in directory().iterdir()}
    finally:
        os.umask(before)
    assert stat.S_IMODE(directory().stat().st_mode) == 0o700
    assert modes[".lock"] == 0o600


as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")
NOBODY = 65534


@as_root
def test_a_runtime_directory_of_another_user_is_not_used(patch, tmp_path):
    """As ``sudo -E`` keeps it."""
    os.chown(tmp_path, NOBODY, NOBODY)
    patch.delenv("PENSTOCK_DIR")
    patch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert directory() == Path("/tmp/penstock-0")
    assert list(tmp_path.iterdir()) == []


@as_root
def test_a_directory_in_one_of_another_user_is_refused(patch, tmp_path):
    """Its owner could put another in its place."""
    above = tmp_path / "theirs"
    above.mkdir()
    (above / "feeds").mkdir(mode=0o700)
    os.chown(above, NOBODY, NOBODY)
    patch.setenv("PENSTOCK_DIR", str(above / "feeds"))
    is_refused(f"{above} belongs to uid {NOBODY}, you are uid 0")
    os.chmod(above, 0o1777)  # as /tmp: there only the owner of an entry may rename it
    assert directory() == above / "feeds"


def test_a_file_is_never_reached_by_way_of_a_link(patch, tmp_path):
    """Whoever owns the directory above may put a link in the place of ours, at any instant."""
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o700)
    endpoint = Endpoint("feed")
    ours = endpoint.lock_path.parent
    kept = {f"{endpoint.lock_path.stem}{suffix}": b"precious" for suffix in (".lock", ".sock", ".log")}
    for name, content in kept.items():
        (victim / name).write_bytes(content)
    ours.rename(tmp_path / "moved")
    ours.symlink_to(victim)
    uses = endpoint.acquire, endpoint.open_log, endpoint.listen, endpoint.connect, endpoint.sweep, endpoint.owner
    for use in uses:
        with suppress(penstock.errors.InsecureDirectory, OSError):
            assert not use()
    assert {path.name: path.read_bytes() for path in victim.iterdir()} == kept
    ours.unlink()
    (tmp_path / "moved").rename(ours)


@pytest.mark.parametrize(
    "put",
    [Path.symlink_to, Path.hardlink_to, lambda path, _: path.mkdir(), lambda path, _: os.mkfifo(path)],
    ids=["link", "hard link", "directory", "fifo"],
)
def test_what_lies_in_the_place_of_a_lock_is_not_written_to(tmp_path, put):
    """Such as was put there while the directory was open to others."""
    endpoint = Endpoint("feed")
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    put(endpoint.lock_path, victim)
    with pytest.raises(penstock.errors.InsecureDirectory, match="remove it"):
        penstock.Feeder(ARRAYS, "feed")
    assert penstock.feeds() == []
    assert victim.read_bytes() == b"precious"
    endpoint.lock_path.rmdir() if endpoint.lock_path.is_dir() else endpoint.lock_path.unlink()


def test_a_log_is_a_new_file_whatever_lay_in_its_place(tmp_path):
    endpoint = Endpoint("feed")
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    for link in (endpoint.log_path.symlink_to, endpoint.log_path.hardlink_to):
        endpoint.log_path.unlink(missing_ok=True)
        link(victim)
        with endpoint.open_log() as log:
            log.write(b"words")
        assert endpoint.log_end(3) == "rds"
    assert victim.read_bytes() == b"precious"
    assert stat.S_IMODE(endpoint.log_path.stat().st_mode) == 0o600
    endpoint.log_path.unlink()


JUNK = [
    *(b"", b"\xff\xff nonsense", b"\x91" * 5000, bytes(1 << 20)),
    b"\x82\xa4name\xa2\xff\xff\xa3pid\x01",  # no Unicode
    *(msgspec.msgpack.encode(Owner(name, 1)) for name in ("", "x" * 2000, "feed")),  # also another feed's name
    msgspec.msgpack.encode({"name": 1, "pid": "x"}),
]


def test_junk_in_the_directory_is_passed_over(serve, feeds_directory):
    for number, junk in enumerate(JUNK):
        (feeds_directory / f"012{number}.lock").write_bytes(junk)
    (feeds_directory / "4567.lock").mkdir()
    os.mkfifo(feeds_directory / "89ab.lock")
    (feeds_directory / "cdef.lock").symlink_to("/dev/zero")
    assert penstock.feeds() == []
    serve(ARRAYS)
    assert [feed.name for feed in penstock.feeds()] == ["feed"]
    with pytest.raises(penstock.errors.FeedNotFound, match="feeds that run: 'feed'"):
        penstock.stop("other")
    for name in (*(f"012{number}" for number in range(len(JUNK))), "89ab", "cdef"):
        (feeds_directory / f"{name}.lock").unlink()
    (feeds_directory / "4567.lock").rmdir()


def test_the_directory_is_the_runtime_directorys_where_there_is_one(patch, tmp_path):
    patch.delenv("PENSTOCK_DIR")
    patch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert directory() == tmp_path / "penstock"


def test_a_directory_may_have_a_longer_path_than_a_socket(patch, tmp_path, serve):
    long: Path = tmp_path.joinpath(*["d" * 200] * 4)
    patch.setenv("PENSTOCK_DIR", str(long))
    serve(ARRAYS)
    with penstock.attach("feed", 6) as loader:
        assert sum(len(batch["id"]) for batch in loader) == 20


@pytest.mark.whole
def test_a_feeder_starts_although_others_look_for_what_dead_ones_left() -> None:
    """Whoever waits for a feed sweeps, and for that moment holds its lock."""
    over = threading.Event()

    def sweep() -> None:
        while not over.is_set():
            Endpoint("feed").sweep()

    with ThreadPoolExecutor(3) as sweepers, ExitStack() as at_last:
        at_last.callback(over.set)
        sweeping = [sweepers.submit(sweep) for _ in range(3)]
        for _ in range(60):
            with penstock.Feeder(ARRAYS, "feed"):
                with pytest.raises(penstock.errors.FeedExists, match=str(os.getpid())):
                    penstock.Feeder(ARRAYS, "feed")
                penstock.attach("feed").close()
        over.set()
        assert [each.result() for each in sweeping] == [None] * 3
