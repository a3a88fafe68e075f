"""Feeds' directory and the store of runs: full disks, killed writers and others' files are one error or none."""

from __future__ import annotations

import errno
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.faults.sources import rows
from tests.scripts import output_of

import penstock
from penstock.errors import InsecureDirectory
from penstock.runs.store import Store

SAYS = "feeds cannot be kept in {}: .*Make room there, or set PENSTOCK_DIR"
NO_ROOM = """
import resource, sys
import penstock
from sources import rows
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
try:
    {use}
except penstock.errors.DirectoryUnusable as error:
    print(error)
"""
USES = {"feeder": "penstock.Feeder(rows(), 'feed')", "share": "penstock.share(rows, 'feed')"}


@pytest.mark.parametrize(("use", "limit"), [*zip(USES.values(), (0, 5), strict=True)], ids=list(USES))
def test_a_lock_that_cannot_be_written_is_one_error_and_leaves_nothing(feeds_directory, use, limit):
    ran = subprocess.run(
        [sys.executable, "-c", NO_ROOM.format(limit=limit, use=use)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parent,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(f"feeds cannot be kept in {feeds_directory}: ")
    assert "set PENSTOCK_DIR" in ran.stdout
    assert not list(feeds_directory.iterdir())


@pytest.mark.parametrize(
    ("use", "limit"), [*zip(USES.values(), (1 << 20, 100 << 20), strict=True)], ids=list(USES)
)
def test_a_limit_on_files_is_not_the_doing_of_make_loader(feeds_directory, use, limit):
    program = NO_ROOM.format(limit=limit, use=use).replace(
        "penstock.errors.DirectoryUnusable", "penstock.PenstockError"
    )
    program = program.replace("    print", "    assert type(error) is penstock.PenstockError, error\n    print")
    said = output_of(program, cwd=Path(__file__).parent)
    assert "no file of 536,870,912 bytes can be made in memory (memfd_create: File too large)" in said
    assert f"no file may have over {limit:,} here, in memory neither: raise ulimit -f" in said
    assert "make_loader" not in said


@pytest.mark.parametrize(
    ("suffix", "use"),
    [(".sock", lambda: penstock.Feeder(rows(), "feed")), (".log", lambda: penstock.share(rows, "feed"))],
    ids=["socket", "log"],
)
def test_a_file_that_cannot_be_made_is_one_error_and_leaves_nothing(clean, feeds_directory, suffix, use):
    """As on a disk that has room for one more file, and not for two."""
    unlink = os.unlink
    refused: list[str] = []

    def refuse(path: str, **options: Any) -> None:
        if str(path).endswith(suffix) and not refused:  # what may be there is removed first
            refused.append(path)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        unlink(path, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        with pytest.raises(penstock.errors.DirectoryUnusable, match=SAYS.format(feeds_directory)):
            use()
    assert not list(feeds_directory.iterdir())


def says(path: str | Path, error: type[Exception], what: str) -> None:
    """Whoever looks for feeds there, attaches or serves is told so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_DIR", str(path))
        for use in (penstock.feeds, lambda: penstock.attach("feed"), lambda: penstock.Feeder(rows(), "feed")):
            with pytest.raises(error, match=what):
                use()


def test_a_directory_that_cannot_be_made_or_is_a_file_is_one_error(clean, tmp_path):
    says("/proc/feeds", penstock.errors.DirectoryUnusable, SAYS.format("/proc/feeds"))
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "feeds", tmp_path / "file" / "deep" / "feeds"):
        says(path, penstock.errors.InsecureDirectory, r"/file.* is not Penstock's .* remove it")
    assert os.listdir(tmp_path) == ["file"]


WRITER = """
import os, sys
from itertools import count
from pathlib import Path
from penstock.runs.record import GroupPlan, RunPlan
from penstock.runs.store import SeriesWriter, Store
from penstock.runs.store.database import this_process

me = this_process()
plan = GroupPlan(name="group", runs=(RunPlan(command=("true",), name="run", directory="/"),))
with Store.open(Path(sys.argv[1])) as store:
    for _ in count():
        (run,) = store.add(plan)
        print(run.id, "waiting", 0, flush=True)
        store.began(run.id, keeper=(me.pid, me.started_ticks), pid=me.pid)
        writer = SeriesWriter(store.folder_of(run.id) / "series" / "a.points")
        for i in range(20):
            writer.add("x", i)
            writer.add("y", i)
            writer.flush()
            print(run.id, "running", i + 1, flush=True)
        writer.close()
        store.ended(run.id, "finished", 0)
        print(run.id, "finished", 20, flush=True)
        store.compact(run.id)
"""


@pytest.mark.parametrize("kills", [4, pytest.param(200, marks=pytest.mark.soak)])
def test_killed_writers_lose_nothing_that_was_written_and_every_status_is_right(tmp_path, kills):
    """Two at a time are killed, and the store is compared with the last that each has said."""
    folder, dice = tmp_path / "store", random.Random(7)
    for _ in range(0, kills, 2):
        command = [sys.executable, "-c", WRITER, str(folder)]
        writers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        told: dict[str, tuple[str, int]] = {}
        for writer in writers:
            assert writer.stdout
            for _ in range(dice.randrange(1, 60)):
                id, status, points = writer.stdout.readline().split()
                told[id] = status, int(points)
            writer.send_signal(signal.SIGKILL)
            for line in writer.stdout.read().split("\n")[:-1]:  # what follows the last was torn
                id, status, points = line.split()
                told[id] = status, int(points)
            writer.wait()
            writer.stdout.close()
        with Store.open(folder) as store:
            for id, (status, points) in told.items():
                run = store.run(id)
                # What was done and not said any more: the writer died between the two.
                assert run.status in ({"finished"} if status == "finished" else {"lost", "finished"})
                assert (run.exit_code == 0) == (run.status == "finished")
                for _ in range(2):
                    for name, (_, values) in store.series(id).items():
                        assert values.tolist() == list(range(len(values)))
                        assert points <= len(values) <= points + 1, name
                    assert points == 0 or len(store.series(id)) == 2
                    store.compact(id)


STORE_WITHOUT_ROOM = """
import resource, sys
from pathlib import Path
from penstock.errors import StoreUnusable
from penstock.runs.store.merged import compact
from penstock.runs.record import GroupPlan, RunPlan
from penstock.runs.store import SeriesWriter, Store

folder = Path(sys.argv[1])
many = tuple(RunPlan(command=("true",), name=f"{i}" * 500, directory="/") for i in range(100))

def full(limit):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

def fails(action):
    try:
        action()
    except StoreUnusable as error:
        assert "Make room if its disk is full, or set PENSTOCK_STORE" in str(error), error
    else:
        raise AssertionError("no error")

full(1000)
fails(lambda: Store.open(folder))
full(-1)
with Store.open(folder) as store:
    (run,) = store.add(GroupPlan(name="small", runs=many[:1]))
    full(50_000)
    fails(lambda: store.add(GroupPlan(name="large", runs=many)))
    path = store.folder_of(run.id) / "series" / "a.points"
    writer = SeriesWriter(path)
    writer.add("x", 1, 1)
    writer.flush()
    full(path.stat().st_size + 5)
    writer.add("x", 2, 2)
    writer.add("y", 2, 2)
    fails(writer.flush)
    assert writer.dropped == 2
    full(-1)
    writer.add("y", 3, 3)
    writer.close()
    full(10)
    fails(lambda: compact(path.parent))
    full(-1)
    assert [file.name for file in path.parent.iterdir()] == ["a.points"]
    series = store.series(run.id)
    assert {name: each.values.tolist() for name, each in series.items()} == {"x": [1], "y": [3]}
    assert [each.group for each in store.runs()] == ["small"]
    assert len(store.add(GroupPlan(name="large", runs=many))) == 100
"""


def test_a_full_disk_is_one_error_and_all_goes_on_when_there_is_room_again(tmp_path):
    output_of(STORE_WITHOUT_ROOM, tmp_path / "store")


NO_ROOM_TO_COMPRESS = """
import resource, sys
from pathlib import Path
from penstock.runs.record import GroupPlan, RunPlan
from penstock.runs.store import SeriesWriter, Store, points_file

with Store.open(Path(sys.argv[1])) as store:
    (run,) = store.add(GroupPlan(name="g", runs=(RunPlan(command=("true",), name="a", directory="/"),)))
    path = points_file(store.folder_of(run.id), "a")
    writer = SeriesWriter(path)
    for value in range(100):
        writer.add("x", value, value)
    writer.close()
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
    sys.stderr = sys.stdout
    store.compact(run.id)
    assert [file.name for file in path.parent.iterdir()] == ["a.points"]
    assert store.series(run.id)["x"].values.tolist() == list(range(100))
"""


def test_what_a_full_disk_leaves_uncompressed_is_said_and_ends_no_command(tmp_path):
    said = output_of(NO_ROOM_TO_COMPRESS, tmp_path / "store")
    assert re.match(r"penstock: the series of run \w+ are not compressed: .*Make room", said)


def test_a_store_that_others_own_or_may_enter_is_refused_and_left_as_it_is(tmp_path, monkeypatch):
    folder = tmp_path / "store"
    Store.open(folder).close()
    folder.chmod(0o750)
    with pytest.raises(InsecureDirectory, match=r"has mode 0750, others may enter it: chmod 700 "):
        Store.open(folder)
    assert folder.stat().st_mode & 0o777 == 0o750
    folder.chmod(0o700)
    me = os.getuid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: me + 1)
        with pytest.raises(InsecureDirectory, match=f"to uid {me}, you are uid {me + 1}: set PENSTOCK_STORE"):
            Store.open(folder)
