"""The benchmark of read mechanisms: real reads on small files, and some that fail. No test asserts a speed."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
from tests.forked import eventually

from penstock.basics.sizes import size_text
from penstock.bench import io_child as child
from penstock.bench.io import cached_share, dropped, opened_target, run
from penstock.bench.io_child import measure, places
from penstock.bench.io_plan import IoSettings, sizes
from penstock.bench.io_report import medians, picture
from penstock.contracts import Completed, Extents
from penstock.errors import BadSetting, ReadFailed
from penstock.io.files import file_system
from penstock.io.measurements import Measurement

pytestmark = pytest.mark.whole

FILE_BYTES = 4 << 20
SHORT = IoSettings(bs_bytes=(4096,), qd=(8,), threads=(2,), runtime_s=0.1, warm_up_s=0.02)

FAKE = """
import os, signal, time
from penstock.errors import ReaderUnavailable
from penstock.io.open import open_reader as real
def where_posix_is_asked_for(does):
    def open_reader(mech, memory, **asked):
        if mech == "posix":
            does()
        return real(mech, memory, **asked)
    return open_reader
def bug():
    raise TypeError("this mechanism has a bug")
def refuse():
    raise ReaderUnavailable("there is no such hardware here")
def babble():
    print("a library says hello", flush=True)
    os._exit(0)
crashes = where_posix_is_asked_for(lambda: os.kill(os.getpid(), signal.SIGSEGV))
hangs = where_posix_is_asked_for(lambda: time.sleep(600))
raises = where_posix_is_asked_for(bug)
is_absent = where_posix_is_asked_for(refuse)
babbles = where_posix_is_asked_for(babble)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(np.random.default_rng(0).bytes(FILE_BYTES))
    return path


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "fakes"
    folder.mkdir()
    (folder / "fake_readers.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return "fake_readers"


@pytest.fixture
def bench_io(command: Callable[..., Any]) -> Callable[..., Any]:
    return partial(command, "bench", "io")


def said(done: Any) -> str:
    return done.stderr.replace("\n", " ")


def quietly(settings: IoSettings, path: Path | str) -> list[Measurement]:
    return run(settings, str(path), lambda *_: None)


changed = partial(msgspec.structs.replace, SHORT)


@pytest.mark.parametrize("mechanisms", [("uring",), pytest.param(("posix", "direct"), marks=pytest.mark.soak)])
def test_every_mechanism_is_measured_and_told_apart_by_its_path(file: Path, mechanisms: tuple[str, ...]) -> None:
    several = changed(bs_bytes=(4096, 65536), pattern=("random", "sequential"), repeats=2, mech=mechanisms)
    rows = quietly(several, file)
    assert len(rows) == len(mechanisms) * 2 * 2 * 2
    others = tuple(mech for mech in ("posix", "direct", "uring") if mech not in mechanisms)
    rows += quietly(changed(mech=others, repeats=2), file)
    assert len(rows) == len(mechanisms) * 2 * 2 * 2 + len(others) * 2
    paths = {"posix": "preadv, page cache", "direct": "preadv, O_DIRECT", "uring": "io_uring, O_DIRECT"}
    for row in rows:
        assert row.path_taken.startswith(paths[row.mech]), row
        assert row.threads == (1 if row.mech == "uring" else 2)
        assert row.iops > 0 and row.cpu_us_per_op > 0
        assert row.machine and row.date
    assert {row.repeat for row in rows} == {0, 1}


@pytest.mark.parametrize(
    ("reader", "note"),
    [
        ("crashes", "died of SIGSEGV"),
        ("hangs", "gave no result within"),
        ("raises", "ended with status 1: TypeError: this mechanism has a bug"),
        ("is_absent", "there is no such hardware here"),
        ("babbles", "gave no result, but 'a library says hello'"),
    ],
)
def test_a_mechanism_that_fails_is_a_row_with_a_note_and_the_others_go_on(file, fakes, reader, note):
    before = psutil.Process().children(recursive=True)
    rows = quietly(changed(mech=("posix", "uring"), readers=f"{fakes}:{reader}", limit_s=5.0), file)
    assert [row.mech for row in rows] == ["posix", "uring"]
    assert note in rows[0].note
    assert (rows[0].iops, rows[0].path_taken) == (0, "")
    assert rows[1].iops > 0
    assert psutil.Process().children(recursive=True) == before


def test_a_file_that_is_cut_short_is_a_row_with_a_note(file: Path) -> None:
    with opened_target(str(file), 0) as (path, nbytes):
        os.truncate(file, 8192)
        assert nbytes == FILE_BYTES
        (case,) = changed(mech=("posix",)).cases()
        with pytest.raises(ReadFailed, match="cut short"):
            child.run(child.CaseJob(case, changed(warm_up_s=0.0), path, nbytes))


class Instant:
    """A reader that has read at once, and gives what is done in any order."""

    mech, path_taken = "instant", "nothing"

    def __init__(self, depth: int, room: int = 0) -> None:
        self.depth = depth
        self.room = room or depth
        self.offsets: list[int] = []
        self.most = 0
        self._under_way: list[int] = []
        self._random = np.random.default_rng(1)

    def submit(self, extents: Extents) -> int:
        extents = extents.part(0, min(len(extents.tags), self.room - len(self._under_way)))
        assert not set(extents.tags.tolist()) & set(self._under_way)
        assert (np.diff(np.sort(extents.to)) >= extents.nbytes[1:]).all()
        self.offsets += extents.offsets.tolist()
        self._under_way += extents.tags.tolist()
        self.most = max(self.most, len(self._under_way))
        assert self.most <= self.depth
        return len(extents.tags)

    def completed(self, at_least: int = 1) -> Completed:
        assert 1 <= at_least <= len(self._under_way)
        self._random.shuffle(self._under_way)
        count = int(self._random.integers(at_least, len(self._under_way) + 1))
        done, self._under_way = self._under_way[:count], self._under_way[count:]
        return Completed(np.array(done), {})


@pytest.mark.parametrize(
    ("depth", "threads", "room"), [(1, 0, 1), (1, 1, 1), (7, 0, 7), (16, 8, 16), (64, 64, 64), (64, 0, 5)]
)
def test_a_loop_reads_each_block_once_and_keeps_as_many_under_way_as_the_reader_takes(
    depth: int, threads: int, room: int
) -> None:
    reader: Any = Instant(depth, room)
    offsets = places(1000 * 4096, 4096, "random", seed=3)
    ops, *_ = measure(reader, 0, offsets, 4096, threads=threads, once=True, runtime_s=60.0, warm_up_s=0.0)
    assert ops == 1000
    assert reader.most == room
    assert sorted(reader.offsets) == [4096 * i for i in range(1000)]


def test_a_loop_that_is_not_to_end_begins_the_blocks_again_in_the_same_order() -> None:
    reader: Any = Instant(8)
    offsets = places(10 * 4096, 4096, "random", seed=3)
    ops, elapsed_s, _ = measure(reader, 0, offsets, 4096, threads=0, once=False, runtime_s=0.05, warm_up_s=0.01)
    assert elapsed_s >= 0.05
    assert len(reader.offsets) > ops > 100
    for start in range(0, 100, 10):
        assert reader.offsets[start : start + 10] == offsets.tolist()


def test_blocks_of_a_file_come_at_random_each_once_or_in_order() -> None:
    random = places(100 * 512 + 300, 512, "random", seed=1)
    assert sorted(random) == [512 * i for i in range(100)]
    assert random.tolist() != sorted(random)
    assert places(100 * 512, 512, "sequential", seed=1).tolist() == sorted(random)
    assert places(100 * 512, 512, "random", seed=2).tolist() != random.tolist()
    huge = places(1 << 46, 4096, "random", seed=1)
    assert len(huge) == 1 << 22
    assert np.diff(np.sort(huge)).min() == 4096
    assert huge.max() > 1 << 45
    with pytest.raises(BadSetting, match="does not fit"):
        places(511, 512, "random", seed=1)


def test_threads_are_not_multiplied_where_one_thread_drives_a_mechanism() -> None:
    cases = [(case.mech, case.threads) for case in changed(threads=(1, 4, 64)).cases()]
    assert cases == [*((mech, n) for mech in ("posix", "direct") for n in (1, 4, 8)), ("uring", 1)]


def test_cold_reads_come_from_storage_and_end_when_all_was_read(file: Path) -> None:
    with file.open("rb") as readable:
        readable.read()
    assert cached_share(str(file), FILE_BYTES) == 1.0
    if (where := file_system(str(file))) in {"tmpfs", "overlay", "zfs", "9p"}:
        pytest.skip(f"{where} keeps files in the page cache")
    assert dropped(str(file), FILE_BYTES) == 0.0
    assert cached_share(str(file), FILE_BYTES) == 0.0
    (row,) = quietly(changed(mech=("posix",), cold=True, runtime_s=60.0, warm_up_s=0.0), file)
    assert row.cold
    assert row.note.endswith("every block was read once")


def test_what_stays_in_the_page_cache_is_said(file: Path) -> None:
    memory = Path("/dev/shm/penstock-bench-test")
    memory.write_bytes(file.read_bytes())
    try:
        (row,) = quietly(changed(mech=("posix",), cold=True), memory)
    finally:
        memory.unlink()
    assert (row.cold, row.note) == (False, "100% of the file stayed in the page cache")


def test_warm_reads_say_how_much_was_in_the_page_cache(file: Path) -> None:
    posix, uring = quietly(changed(mech=("posix", "uring")), file)
    assert posix.note == "100% of the file was in the page cache, which --cold empties"
    assert uring.note == ""


def test_a_scratch_file_has_no_name_and_goes_with_its_process(tmp_path: Path) -> None:
    with opened_target(str(tmp_path), 1 << 20) as (scratch, nbytes):
        assert nbytes == 1 << 20
        assert len(set(Path(scratch).read_bytes())) == 256
        assert list(tmp_path.iterdir()) == []
    assert not Path(scratch).exists()


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_behind_when_it_is_interrupted(tmp_path: Path, by: signal.Signals) -> None:
    words = ("bench", "io", str(tmp_path), "--size", "1MiB", "--mech", "posix", "--bs", "4k", "--qd", "4")
    command = [sys.executable, "-m", "penstock", *words, "--runtime", "600"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    started = psutil.Process(process.pid).children
    children = eventually(lambda: [each for each in started() if "--runtime" not in each.cmdline()])
    (child, *_) = children
    eventually(lambda: any(word.startswith("/proc/") for word in child.cmdline()) or child.num_threads() > 4)
    process.send_signal(by)
    assert process.wait(20) != 0
    eventually(lambda: not any(child.is_running() and child.status() != "zombie" for child in children))
    assert list(tmp_path.iterdir()) == []


def test_the_command_saves_json_and_a_picture(bench_io: Callable[..., Any], file: Path, tmp_path: Path):
    pytest.importorskip("matplotlib")
    saved, drawn = tmp_path / "out.json", tmp_path / "out.png"
    words = ("--bs", "4KiB,64k", "--qd", "4", "--runtime", "0.05", "--json", str(saved), "--plot", str(drawn))
    done = bench_io(str(file), *words)
    assert done.returncode == 0, done.stderr
    assert "4 KiB, random" in done.stdout
    assert "io_uring, O_DIRECT" in done.stdout
    rows = json.loads(saved.read_text())
    assert len(rows) == 6
    assert all({*Measurement.__struct_fields__} == {*row} for row in rows)
    assert drawn.read_bytes().startswith(b"\x89PNG")
    assert str(tmp_path) not in saved.read_text()


def of_cache(mech: str, *, cold: bool) -> Measurement:
    figures = {"iops": 1.0, "mb_s": 100.0, "cpu_s_per_gib": 1.0, "date": "2026-01-01"}
    return Measurement(mech=mech, bs_bytes=4096, qd=8, threads=1, pattern="random", cold=cold, **figures)


def hollow(*rows: Measurement) -> tuple[int, bool]:
    """How many points of the picture are hollow, and whether its legend says what that means."""
    drawn = picture(rows)
    points = sum(len(line.get_xdata()) for line in drawn.axes[0].lines if line.get_markerfacecolor() == "white")
    return points, any("page cache" in text.get_text() for legend in drawn.legends for text in legend.texts)


def test_the_picture_tells_what_may_have_come_from_the_page_cache() -> None:
    buffered, direct = of_cache("posix", cold=False), of_cache("direct", cold=False)
    assert hollow(buffered, direct) == (1, True)
    assert hollow(of_cache("posix", cold=True), direct) == (0, False)
    assert hollow(of_cache("posix", cold=True), buffered) == (1, True)


def test_a_pipe_a_socket_and_a_name_that_nothing_can_have_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        for name in ("pipe", "socket"):
            with pytest.raises(BadSetting, match=f"{name} is neither a file"):
                run(IoSettings(), str(tmp_path / name), lambda *_: None)
    with pytest.raises(BadSetting, match="null byte"):
        run(IoSettings(), "a\0b", lambda *_: None)


ONE_CASE = "FILE --mech posix --bs 4k --qd 4"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("/does/not/exist", "/does/not/exist: No such file or directory"),
        ("/dev/null", "neither a file, nor a block device, nor a directory"),
        ("/proc", "too little for a scratch file"),
        ("FILE --qd 0", "--qd 0: it must lie between 1 and 4096"),
        ("FILE --qd 1000000", "--qd 1000000: it must lie between 1 and 4096"),
        ("FILE --qd many", "--qd many: give whole numbers"),
        ("FILE --qd ''", "each of --mech, --bs, --qd, --threads, --pattern and --dest needs at least one value"),
        ("FILE --threads 0", "--threads 0"),
        ("FILE --bs nine", "bs='nine': give bytes"),
        ("FILE --bs 1GiB --qd 1", "has only 4,194,304 bytes"),
        ("FILE --bs 1GiB --qd 64", "more memory than 8 GiB"),
        ("FILE --mech telepathy", "--mech telepathy: it must be one of posix, direct, uring"),
        ("FILE --pattern zigzag", "--pattern zigzag: it must be one of random, sequential"),
        ("FILE --dest moon", "--dest moon"),
        ("FILE --json /no/where/x.json", "its directory does not exist"),
        (f"{ONE_CASE} --runtime 0.05 --json /dev/full", "/dev/full could not be written: No space left on device"),
        ("FILE --json /tmp", "/tmp is a directory; give the name of a file"),
        ("FILE --bs 0", "--bs='0': give bytes as a number above 0"),
        ("FILE --plot x.doc", "--plot x.doc: its name ends in one of .png"),
        ("FILE --runtime 0", "--runtime 0"),
        ("FILE --size 1GiB,2GiB", "give one size"),
        pytest.param(f"{ONE_CASE} --dest cuda:250", "nothing could be measured. posix: ", marks=pytest.mark.whole),
        ("EMPTY", "is empty"),
        ("s3://bucket/key --mech posix", "is an object"),
    ],
)
def test_a_mistake_gets_one_clear_message(bench_io, file, words, says):
    empty = file.parent / "empty"
    empty.touch()
    failed = bench_io(*(str({"FILE": file, "EMPTY": empty}.get(word, word)) for word in shlex.split(words)))
    assert failed.returncode == 2
    assert says in said(failed) and "Traceback" not in said(failed)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everywhere")
def test_what_must_not_be_read_or_written_is_said(bench_io: Callable[..., Any], file: Path, tmp_path: Path):
    file.chmod(0)
    assert "cannot be read: Permission denied" in said(bench_io(str(file)))
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    file.chmod(0o600)
    saved = bench_io(str(file), "--json", str(locked / "x.json"))
    assert "you may not write" in said(saved)
    assert "no scratch file can be written there: Permission denied" in said(bench_io(str(locked)))


def test_a_gpu_that_is_not_there_is_a_row_beside_those_of_the_host(file: Path) -> None:
    host, gpu = quietly(changed(mech=("posix",), dest=("host", "cuda:250")), file)
    assert host.iops > 0
    assert gpu.iops == 0
    assert "cuda:250" in gpu.note


def test_sizes_are_read_as_people_write_them_and_told_in_the_unit_that_is_rounder() -> None:
    written = "4k, 4K, 4KiB, 4KB, 1.5 MiB, 512, 2T"
    assert sizes("bs", written) == (4096, 4096, 4096, 4000, 3 << 19, 512, 2 << 40)
    told = [*map(size_text, (4096, 110_000, 512, 1 << 20, 2 * 10**9, 1536))]
    assert told == ["4 KiB", "110 KB", "512 bytes", "1 MiB", "2 GB", "1.5 KiB"]


def test_repeats_become_medians_and_failures_do_not_count() -> None:
    case = {"bs_bytes": 4096, "qd": 1, "threads": 1, "pattern": "random"}
    rows = [Measurement(mech="posix", iops=n, **case) for n in (1.0, 0.0, 9.0, 2.0)]
    found = medians([*rows, Measurement(mech="gds", note="no driver", **case)])
    assert [(row.mech, row.iops, row.note) for row in found] == [("posix", 2.0, ""), ("gds", 0.0, "no driver")]


def test_a_median_is_cold_only_if_all_its_repeats_were() -> None:
    assert medians([of_cache("posix", cold=True)] * 2)[0].cold
    assert not medians([of_cache("posix", cold=True), of_cache("posix", cold=False)])[0].cold
