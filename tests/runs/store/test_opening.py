"""Opening a store: where it lies, whose it is, migrated once, never by an older Penstock, on any file system."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import subprocess
import sys
import warnings
from contextlib import closing
from pathlib import Path

import pytest
from tests.runs.store.groups import group

from penstock.errors import StoreUnusable
from penstock.runs.store import Store
from penstock.runs.store.folder import network_file_system


def journal_mode(store: Store) -> str:
    with closing(sqlite3.connect(store.folder / "runs.sqlite")) as database:
        return database.execute("PRAGMA journal_mode").fetchone()[0]


def test_a_store_is_where_the_environment_says_and_private(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("PENSTOCK_STORE", raising=False)
    stores = {"home/.local/share/penstock/runs": Store.open()}
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    stores["data/penstock/runs"] = Store.open()
    monkeypatch.setenv("PENSTOCK_STORE", str(tmp_path / "chosen"))
    stores |= {"chosen": Store.open(), "given": Store.open(tmp_path / "given")}
    for where, store in stores.items():
        folder = tmp_path / where
        store.close()
        assert store.folder == folder
        assert folder.stat().st_mode & 0o777 == 0o700
        assert journal_mode(store) == "wal"


def test_an_empty_folder_that_others_may_enter_is_closed_to_them(tmp_path):
    tmp_path.chmod(0o755)
    with Store.open(tmp_path):
        assert tmp_path.stat().st_mode & 0o777 == 0o700


def test_a_store_that_a_newer_penstock_has_written_is_refused_and_left_as_it_is(tmp_path):
    Store.open(tmp_path / "store").close()
    path = tmp_path / "store" / "runs.sqlite"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    with pytest.raises(StoreUnusable, match=r"newer Penstock .* its version is 99, .* up to 2\. Update Penstock"):
        Store.open(tmp_path / "store")
    assert path.read_bytes() == before


def test_what_is_no_database_or_no_folder_is_one_error(tmp_path):
    tmp_path.chmod(0o700)
    (tmp_path / "runs.sqlite").write_text("mine\n" * 500)
    with pytest.raises(StoreUnusable, match="file is not a database"):
        Store.open(tmp_path)
    (tmp_path / "store").touch()
    with pytest.raises(StoreUnusable, match="File exists"):
        Store.open(tmp_path / "store")


MIGRATE = """
import sys
from pathlib import Path
from penstock.runs.store import Store, database
database.STEPS.append("ALTER TABLE runs ADD COLUMN colour TEXT NOT NULL DEFAULT 'grey'; UPDATE runs SET pid = 7")
sys.stdin.read()
with Store.open(Path(sys.argv[1])) as store:
    print([run.name for run in store.runs()])
"""


def test_two_processes_migrate_at_once_and_a_copy_is_kept(tmp_path):
    with Store.open(tmp_path / "store") as store:
        store.add(group())
    command = [sys.executable, "-c", MIGRATE, str(tmp_path / "store")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for process in processes:
        process.stdin.close()
        process.stdin = None
    for process in processes:
        out, errors = process.communicate(timeout=60)
        assert out == "['run-0', 'run-1']\n", errors
    for name, version, columns in (("runs.sqlite", 3, {"colour"}), ("runs.sqlite.version-2", 2, set())):
        with closing(sqlite3.connect(tmp_path / "store" / name)) as database:
            assert database.execute("PRAGMA user_version").fetchone() == (version,)
            found = {row[1] for row in database.execute("PRAGMA table_info(runs)")}
            assert found & {"colour"} == columns
            assert database.execute("SELECT count(*) FROM runs").fetchone() == (2,)
    with pytest.raises(StoreUnusable, match="a newer Penstock"):
        Store.open(tmp_path / "store")


@pytest.mark.parametrize(
    ("by", "number"), [("lockf", errno.ENOLCK), ("flock", errno.ENOSYS), ("lockf", errno.EBADF)]
)
def test_a_file_system_that_locks_no_files_is_named_at_once(tmp_path, monkeypatch, by, number):
    """SQLite would take it for one that is busy, and try for 30 s."""
    if by == "lockf":  # such as a store that was copied there
        Store.open(tmp_path / "store").close()

    def refused(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, by, refused)
    with pytest.raises(StoreUnusable, match=rf"its file system, \w+, locks no files \({by}: .*set PENSTOCK_STORE"):
        Store.open(tmp_path / "store")
    monkeypatch.undo()
    Store.open(tmp_path / "store").close()


def mounts(tmp_path: Path, kind: str) -> Path:
    path = tmp_path / "mountinfo"
    where = str(tmp_path / "my home").replace(" ", "\\040")
    path.write_text(
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        f"36 22 0:50 / {where} rw,noatime shared:2 master:1 - {kind} server:/home rw\n"
        f"37 22 0:51 / {where}s rw - tmpfs tmpfs rw\n"
    )
    return path


@pytest.mark.parametrize(
    ("kind", "found"),
    [("nfs4", "nfs4"), ("cifs", "cifs"), ("fuse.sshfs", "fuse.sshfs"), ("xfs", None), ("fuseblk", None)],
)
def test_the_file_system_of_a_folder_is_that_of_the_nearest_mount(tmp_path, kind, found):
    path = mounts(tmp_path, kind)
    assert network_file_system(tmp_path / "my home" / "store", path) == found
    assert network_file_system(tmp_path / "my homes" / "store", path) is None
    assert network_file_system(Path("/elsewhere"), path) is None


def test_on_a_network_file_system_there_is_no_write_ahead_log_which_is_said_once(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.linux.files._MOUNTS", mounts(tmp_path, "nfs4"))
    with pytest.warns(UserWarning, match="lies on nfs4: it works without a write-ahead log"):
        store = Store.open(tmp_path / "my home" / "store")
    with store:
        store.add(group())
        assert journal_mode(store) == "delete"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Store.open(tmp_path / "my home" / "store") as store:
            assert len(store.runs()) == 2
            assert not list(store.folder.glob("runs.sqlite-*"))
