"""A folder that grows as a log: what counts, in which order, under which number, and what is lost."""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from penstock.contracts import Bound, LogRecords, Part
from penstock.errors import BadSetting, SourceError, StreamTruncated
from penstock.sources.streams import folder as module
from penstock.sources.streams.folder import FolderLog
from penstock.testing.log import LogContract


class TestFolder(LogContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make(self) -> FolderLog:
        return FolderLog(str(self.folder), skips=False)

    def append(self, partition: int, records: list[bytes]) -> None:
        append(self.folder, f"{partition}.jsonl", *records)

    def truncate(self) -> None:
        os.truncate(self.folder / "0.jsonl", 3)


class TestFolderOfManyFiles(TestFolder):
    """A record is a file, and all are finished but the newest 64."""

    def append(self, partition: int, records: list[bytes]) -> None:
        for record in records:
            number, _, _ = record.partition(b" ")
            _, _, i = number.partition(b"/")
            put(self.folder, f"{int(i) // 10:03}-{partition}-{int(i):03}", record)

    def truncate(self) -> None:
        for path in self.folder.glob("*-0-*"):
            path.unlink()


def append(folder: Path, name: str, *records: bytes) -> None:
    with (folder / name).open("ab") as file:
        file.writelines(record + b"\n" for record in records)


def put(folder: Path, name: str, data: bytes) -> None:
    """Rename a file in."""
    other = folder / f".{name}"
    other.write_bytes(data)
    other.rename(folder / name)


def opened(folder: Path, at: Bound | None = None, *, skips: bool = False) -> FolderLog:
    log = FolderLog(str(folder), skips=skips)
    log.seek(at or Bound())
    return log


def rest(log: FolderLog, most: int = 1000) -> dict[int, bytes]:
    """Read all that is there."""
    found: dict[int, bytes] = {}
    while (part := log.read(most, 0)).ids:
        assert not found.keys() & {*part.ids}
        found |= zip(part.ids, part.data, strict=True)
    return found


def texts(log: FolderLog, most: int = 1000) -> list[str]:
    return [data.decode() for data in rest(log, most).values()]


def all_of(parts: Iterable[LogRecords]) -> dict[int, bytes]:
    return {number: data for ids, some in parts for number, data in zip(ids, some, strict=True)}


def told(do: Callable[[], Any], *words: str) -> None:
    """Assert that something is refused in one sentence with these words and the remedy."""
    with pytest.raises(StreamTruncated) as caught:
        do()
    for word in (*words, "rename new ones in", 'on_loss="skip"'):
        assert word in str(caught.value)
    assert "\n" not in str(caught.value) and caught.value.__cause__ is None


def test_only_files_that_were_renamed_in_count(tmp_path: Path) -> None:
    for name in (".a", "_b", "c.tmp", "d.part", "e.jsonl.tmp"):
        (tmp_path / name).write_bytes(b"no\n")
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "g.jsonl").write_bytes(b"no\n")
    (tmp_path / "h").symlink_to("nowhere")
    log = opened(tmp_path)
    assert not rest(log) and log.lag().records == 0 and log.begin("latest") == Bound()
    (tmp_path / "c.tmp").rename(tmp_path / "c")
    (tmp_path / "e.jsonl.tmp").rename(tmp_path / "e.jsonl")
    (tmp_path / "i").symlink_to("e.jsonl")
    assert rest(log) == {0: b"no\n", 1 << 32: b"no", 2 << 32: b"no\n"}
    assert log.at == Bound(3, "", (Part(0, 1, "c", 3), Part(1, 1, "e.jsonl", 3), Part(2, 1, "i", 3)))


def test_a_line_counts_once_it_has_ended_and_empty_ones_do_not(tmp_path: Path) -> None:
    log = opened(tmp_path)
    (tmp_path / "a.jsonl").write_bytes(b"\none\n\n\ntw")
    assert rest(log) == {0: b"one"}
    assert log.lag().records == 0
    append(tmp_path, "a.jsonl", b"o", b"", b"\r", b"three")
    assert log.lag().records > 0
    end = log.begin("latest")
    assert rest(log) == {1: b"two", 2: b"\r", 3: b"three"}
    assert log.at == end == Bound(1, "", (Part(0, 4, "a.jsonl", 20),))
    assert all_of(opened(tmp_path).between(Bound(), end)) == dict(enumerate([b"one", b"two", b"\r", b"three"]))


def test_an_empty_file_is_a_record_unless_it_has_lines(tmp_path: Path) -> None:
    put(tmp_path, "a", b"")
    put(tmp_path, "b.jsonl", b"")
    log = opened(tmp_path)
    assert rest(log) == {0: b""} == all_of(log.between(Bound(), log.at))
    append(tmp_path, "b.jsonl", b"x")
    begin = log.at
    assert rest(log) == {1 << 32: b"x"} == all_of(opened(tmp_path).between(begin, log.at))


def test_lines_longer_than_what_is_read_at_once_come_whole(tmp_path: Path) -> None:
    lines = [bytes([65 + i]) * (700_000 * i) for i in range(1, 5)]
    append(tmp_path, "a.jsonl", *lines)
    log = opened(tmp_path)
    assert len(log.read(100, 0).ids) < 4
    assert [*rest(opened(tmp_path), 1).values()] == [*rest(opened(tmp_path)).values()] == lines


def test_files_come_in_the_order_of_names_and_read_waits_for_one(tmp_path: Path) -> None:
    for name in "cab":
        put(tmp_path, name, name.encode())
    log = opened(tmp_path)
    assert texts(log, 1) == ["a", "b", "c"]
    timer = threading.Timer(0.15, put, (tmp_path, "d", b"d"))
    timer.start()
    assert log.read(5, 30).data == [b"d"]
    timer.join()


def test_a_name_that_comes_late_among_the_newest_gets_the_next_number(tmp_path: Path) -> None:
    for i in range(70):
        put(tmp_path, f"{i:03}", str(i).encode())
    log = opened(tmp_path)
    rest(log)
    assert log.at.finished == "005" and len(log.at.parts) == 64
    before = log.at
    put(tmp_path, "010-late", b"late")
    assert rest(log) == {70 << 32: b"late"}
    assert log.at.finished == "006" and all_of(opened(tmp_path).between(before, log.at)) == {70 << 32: b"late"}


def test_a_file_that_came_late_keeps_its_number_when_it_is_finished(tmp_path: Path) -> None:
    for i in range(70):
        put(tmp_path, f"{i:03}", str(i).encode())
    log = opened(tmp_path)
    found = rest(log, 7)
    bounds = [Bound(), log.at]
    for name in ("010-late", "006-late", "008-late"):  # the second is finished at once
        put(tmp_path, name, name.encode())
        found |= rest(log)
    bounds.append(log.at)
    for i in range(100, 300):
        put(tmp_path, f"{i:03}", str(i).encode())
        found |= rest(log) if i % 50 == 0 else {}
    found |= rest(log)
    bounds.append(log.at)
    assert sorted(found) == [i << 32 for i in range(273)]
    assert [part.name for part in log.at.parts if part.name <= log.at.finished] == [
        "010-late",
        "006-late",
        "008-late",
    ]
    for i, begin in enumerate(bounds):
        for end in bounds[i:]:
            there = all_of(opened(tmp_path).between(begin, end))
            assert there == {i: data for i, data in found.items() if begin.numbers <= i >> 32 < end.numbers}


def test_more_late_files_than_a_bound_keeps_are_told_and_not_numbered_wrongly(tmp_path: Path) -> None:
    for i in range(64):
        put(tmp_path, f"m{i:03}", b"")
    log = opened(tmp_path)
    begin = log.at
    rest(log)
    middle = log.at
    for i in range(70):
        put(tmp_path, f"b{i:03}", b"late")
        rest(log)
    for i in range(70):
        put(tmp_path, f"n{i:03}", b"")
    rest(log)
    assert len(log.at.parts) == 128
    told(lambda: all_of(opened(tmp_path).between(begin, log.at)), "too many to order")
    told(lambda: all_of(opened(tmp_path).between(middle, log.at)), "since file 64")


@pytest.mark.parametrize("anew", [False, True])
def test_a_name_below_the_finished_ones_is_a_loss(tmp_path: Path, anew: bool) -> None:
    for i in range(70):
        put(tmp_path, f"{i:03}", str(i).encode())
    strict, lenient = opened(tmp_path), opened(tmp_path, skips=True)
    for log in (strict, lenient):
        rest(log)
    put(tmp_path, "003-late", b"late")
    put(tmp_path, "070", b"70")
    if anew:
        told(lambda: opened(tmp_path, strict.at), "005: 1 of 7 files up to it came after they had been read")
        lenient = opened(tmp_path, lenient.at, skips=True)
    else:
        for _ in range(2):
            told(lambda: rest(strict), "003-late: it came after all up to 005 had been read")
    assert [*rest(lenient).values()] == [b"70"] and lenient.lost == 1
    if not anew:  # the skipped one has a number, so that no other file ever gets it
        there = all_of(opened(tmp_path).between(Bound(), lenient.at))
        assert there.keys() == {i << 32 for i in (*range(70), 71)}
        assert opened(tmp_path, lenient.at, skips=True).lost == 0


def test_growth_of_a_finished_file_is_a_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WATCH_S", 0.0)
    for i in range(70):
        append(tmp_path, f"{i:03}.jsonl", b"x")
    strict, lenient = opened(tmp_path), opened(tmp_path, skips=True)
    for log in (strict, lenient):
        assert len(rest(log)) == 70
    append(tmp_path, "065.jsonl", b"more")
    time.sleep(0.002)
    assert [*rest(strict).values()] == [b"more"] == [*rest(lenient).values()]
    append(tmp_path, "003.jsonl", b"more")
    time.sleep(0.002)
    told(lambda: rest(strict), "003.jsonl: it had 2 bytes when it was read, and has 7")
    assert not rest(lenient) and not rest(lenient) and lenient.lost == 1


def test_an_unfinished_line_of_a_finished_file_is_a_loss_when_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WATCH_S", 0.0)
    (tmp_path / "000.jsonl").write_bytes(b"a\nhalf")
    for i in range(1, 70):
        append(tmp_path, f"{i:03}.jsonl", b"x")
    log = opened(tmp_path)
    rest(log)
    time.sleep(0.002)
    assert not rest(log)
    append(tmp_path, "000.jsonl", b"done")
    time.sleep(0.002)
    told(lambda: rest(log), "000.jsonl: it had 6 bytes when it was read, and has 11")


def test_a_finished_file_may_be_deleted_unless_it_is_needed(tmp_path: Path) -> None:
    for i in range(70):
        put(tmp_path, f"{i:03}", str(i).encode())
    log = opened(tmp_path)
    log.read(3, 0)
    middle = log.at
    rest(log)
    for i in (0, 4):
        (tmp_path / f"{i:03}").unlink()
    put(tmp_path, "070", b"70")
    begin = log.at
    assert rest(log) == {70 << 32: b"70"} == rest(opened(tmp_path, begin))
    assert all_of(opened(tmp_path).between(begin, log.at)) == {70 << 32: b"70"}
    told(lambda: all_of(opened(tmp_path).between(middle, log.at)), "4 files up to it were read since file 3, of 3")
    lenient = opened(tmp_path, skips=True)
    assert len(all_of(lenient.between(middle, log.at))) == 67 and lenient.lost == 1


def change(folder: Path, how: str) -> None:
    path = folder / "b.jsonl"
    if how == "deleted":
        path.unlink()
    elif how == "cut":
        os.truncate(path, 3)
    elif how == "replaced":
        put(folder, "b.jsonl", b"four\nfive\nsix\nseven\n")
    elif how == "rewritten":
        path.write_bytes(b"elevenelevenelevenelevel\n")
    else:
        (folder / "a").write_bytes(b"much longer")


WORDS = {
    "deleted": ("b.jsonl: it was read up to record 2 at byte 8, and is gone now",),
    "cut": ("b.jsonl: it was read up to record 2 at byte 8, and has 3 bytes now",),
    "replaced": ("b.jsonl: it was read up to record 2 at byte 8, and is another file now",),
    "rewritten": ("b.jsonl: it was read up to record 2 at byte 8, and has no line that begins there now",),
    "grown": ("a: it was read up to record 1 at byte 1, and has 11 bytes now",),
}


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("how", WORDS)
def test_a_file_that_may_grow_and_was_changed_is_a_loss(tmp_path: Path, how: str, anew: bool) -> None:
    put(tmp_path, "a", b"a")
    append(tmp_path, "b.jsonl", b"one", b"two")
    strict, lenient = opened(tmp_path), opened(tmp_path, skips=True)
    for log in (strict, lenient):
        assert len(rest(log)) == 3
    at = strict.at
    change(tmp_path, how)
    if anew:
        strict, lenient = opened(tmp_path, at), opened(tmp_path, at, skips=True)
    words = WORDS[how]
    if anew and how == "replaced":
        words = ("it was read up to record 2 at byte 8, and has no line that begins there now",)
    for _ in range(2):
        told(lambda: rest(strict), *words)
    append(tmp_path, "c.jsonl", b"c")
    assert rest(lenient) == {2 << 32: b"c"} and lenient.lost == 1
    assert not rest(lenient) and lenient.lost == 1 and lenient.lag().records == 0
    told(lambda: [*opened(tmp_path).between(Bound(), at)])
    again = opened(tmp_path, skips=True)
    assert {*all_of(again.between(Bound(), at))} <= {0, 1 << 32, 1 << 32 | 1} and again.lost == 1
    assert all_of(opened(tmp_path).between(at, lenient.at)) == {2 << 32: b"c"}


def test_records_before_a_loss_are_given_first(tmp_path: Path) -> None:
    append(tmp_path, "a.jsonl", b"1")
    append(tmp_path, "b.jsonl", b"2")
    log = opened(tmp_path)
    rest(log)
    append(tmp_path, "a.jsonl", b"3")
    (tmp_path / "b.jsonl").unlink()
    assert log.read(9, 0).data == [b"3"]
    told(lambda: log.read(9, 0), "b.jsonl")
    assert log.at == Bound(2, "", (Part(0, 2, "a.jsonl", 4), Part(1, 1, "b.jsonl", 2)))


def test_a_file_that_goes_before_it_was_read_is_a_loss(tmp_path: Path) -> None:
    for name in "abc":
        put(tmp_path, name, b"x")
    strict, lenient = opened(tmp_path), opened(tmp_path, skips=True)
    for log in (strict, lenient):
        log.read(1, 0)
    (tmp_path / "b").unlink()
    told(lambda: rest(strict), "b: it was read up to record 0 at byte 0, and is gone now")
    assert rest(lenient) == {2 << 32: b"x"} and lenient.lost == 1
    assert all_of(opened(tmp_path).between(Bound(), lenient.at)) == {0: b"x", 2 << 32: b"x"}


def test_a_file_that_goes_before_it_was_begun_is_a_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_S", 0.0)
    for name in "abc":
        put(tmp_path, name, b"x")
    strict, lenient = opened(tmp_path), opened(tmp_path, skips=True)
    for log in (strict, lenient):
        log.read(1, 0)
    (tmp_path / "b").unlink()
    for _ in range(2):
        told(lambda: rest(strict), "b: it is gone, and was not read")
    assert rest(lenient) == {1 << 32: b"x"} and lenient.lost == 1


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_changed_file_keeps_its_number_when_it_is_finished(tmp_path: Path, how: str) -> None:
    put(tmp_path, "a", b"a")
    append(tmp_path, "b.jsonl", b"one", b"two")
    log = opened(tmp_path, skips=True)
    rest(log)
    begin = log.at
    change(tmp_path, how)
    for i in range(70):
        put(tmp_path, f"c{i:03}", str(i).encode())
    found = rest(log)
    assert log.at.finished == "c005" and [*found] == [i << 32 for i in range(2, 72)]
    assert all_of(opened(tmp_path).between(begin, log.at)) == found
    again = opened(tmp_path, skips=True)
    assert all_of(again.between(Bound(), log.at)).items() >= found.items() and again.lost == 1


def test_the_newest_of_many_files_may_grow(tmp_path: Path) -> None:
    for i in range(100):
        append(tmp_path, f"{i:03}.jsonl", b"one")
    log = opened(tmp_path)
    assert len(rest(log)) == 100
    at = log.at
    assert at == log.begin("latest") and at.finished == "035.jsonl" and log.lag().partitions == 64
    for i in range(36, 100):
        append(tmp_path, f"{i:03}.jsonl", b"two")
    expected = {i << 32 | 1: b"two" for i in range(36, 100)}
    assert all_of([log.read(10, 0)]).keys() == {*[*expected][:10]}
    assert len(rest(log)) == 54 and log.at.finished == at.finished
    assert all_of(opened(tmp_path).between(at, log.at)) == expected == rest(opened(tmp_path, at))


@pytest.mark.whole
def test_a_hundred_thousand_files_are_read_and_found_again(tmp_path: Path) -> None:
    for i in range(100_000):
        os.close(os.open(tmp_path / f"{i:06}", os.O_CREAT))
    log = opened(tmp_path)
    assert log.lag().records == 100_000
    log.read(10, 0)
    begin = log.at
    assert sum(len(log.read(500, 0).ids) for _ in range(200)) == 99_990
    assert log.lag().records == 0 and len(log.at.parts) == 64
    put(tmp_path, "100000", b"last")
    end = log.at
    assert rest(log) == {100_000 << 32: b"last"} == rest(opened(tmp_path, end))
    half = opened(tmp_path).divide(begin, end, 2)
    found = [len(all_of(log.between(one, other))) for one, other in ((begin, half), (half, end))]
    assert sum(found) == 99_990 and min(found) > 49_000


def test_the_lag_counts_files_and_estimates_lines(tmp_path: Path) -> None:
    log = opened(tmp_path)
    assert log.lag() == (0, None, 0)
    append(tmp_path, "a.jsonl", *[b"x" * 9] * 20)
    for name in "bcd":
        put(tmp_path, name, b"")
    assert log.lag() == (4, None, 0)
    log.read(10, 0)
    records, seconds, partitions = log.lag()
    assert records == 13 and partitions == 1 and seconds is not None and 0 <= seconds < 60
    os.utime(tmp_path / "a.jsonl", (1, time.time() - 1000))
    log.read(1, 0)
    assert 1000 <= (log.lag().seconds or 0) < 1100
    rest(log)
    assert log.lag().records == 0 and log.lag().partitions == 4


def test_a_folder_that_is_missing_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"there is no folder .*; make a folder") as caught:
        FolderLog(str(tmp_path / "clicks"), skips=False)
    assert str(tmp_path / "clicks") in str(caught.value)
    (tmp_path / "clicks").mkdir()
    log = FolderLog(str(tmp_path / "clicks"), skips=True)
    assert (
        log.name == "clicks" and log.description == f"records of files in {tmp_path}/clicks" and log.trouble == ""
    )
    shutil.rmtree(tmp_path / "clicks")
    with pytest.raises(SourceError, match="cannot be listed: No such file"):
        log.read(1, 0)


def test_a_name_that_is_no_utf_8_is_refused_until_it_is_another(tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/caf\xe9.jsonl"
    with open(odd, "wb") as file:
        file.write(b"1\n")
    log = FolderLog(str(tmp_path), skips=True)
    with pytest.raises(SourceError, match=r"the name 'caf\\udce9.jsonl' is not UTF-8; rename that file"):
        log.read(1, 0)
    os.rename(odd, tmp_path / "café.jsonl")
    assert log.read(1, 0).data == [b"1"]


def test_another_thread_may_read_between_divide_and_ask_for_the_lag(tmp_path: Path) -> None:
    stop, errors = threading.Event(), list[BaseException]()
    log = opened(tmp_path)

    def others() -> None:
        try:
            while not stop.is_set():
                end = log.at
                cut = log.divide(Bound(), end, 2)
                assert all_of(log.between(Bound(), cut)).keys() | all_of(log.between(cut, end)).keys() == {
                    *all_of(log.between(Bound(), end))
                }
                assert log.lag().records >= 0
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=others)
    thread.start()
    found: dict[int, bytes] = {}
    for i in range(150):
        put(tmp_path, f"{i:03}.jsonl", b"one\n")
        append(tmp_path, f"{i - i % 7:03}.jsonl", b"two")
        found |= rest(log, 3)
    stop.set()
    thread.join()
    assert not errors and len(found) == 300


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**32), newest=st.sampled_from([2, 3, 8]), steps=st.integers(1, 60))
def test_any_history_gives_every_record_once_and_again_between_its_bounds(
    seed: int, newest: int, steps: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng, tmp_path = random.Random(seed), tmp_path_factory.mktemp("history")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_NEWEST", newest)
        log = opened(tmp_path)
        written, found = list[bytes](), dict[int, bytes]()
        bounds, late = [(Bound(), 0)], 0
        for step in range(steps):
            match rng.randrange(5):
                case 0 | 1:  # some new files, now and then one that is late
                    for i in range(rng.randrange(1, 5)):
                        name = f"{step:03}-{i}" + rng.choice(["", ".jsonl"])
                        growing = sorted(part.name for part in log.at.parts if part.name > log.at.finished)
                        if len(growing) >= 2 and late < newest - 1 and rng.random() < 0.3 and not rest_is_new(log):
                            name, late = f"{rng.choice(growing[:-1])}-{step:03}-{i}.jsonl", late + 1
                        data = f"{name}/{rng.random()}".encode()
                        written.append(data)
                        put(tmp_path, name, data + b"\n" * name.endswith("jsonl"))
                case 2:  # some that may grow do
                    names = [part.name for part in log.at.parts if part.name > log.at.finished]
                    for name in rng.sample(names, rng.randrange(len(names) + 1)) if not rest_is_new(log) else ():
                        if name.endswith("jsonl"):
                            lines = [f"{name}/{rng.random()}".encode() for _ in range(rng.randrange(1, 4))]
                            append(tmp_path, name, *lines, b"")
                            written += lines
                case 3:
                    for _ in range(rng.randrange(1, 6)):
                        part = log.read(rng.choice([1, 2, 5]), 0)
                        assert not found.keys() & {*part.ids}
                        found |= zip(part.ids, part.data, strict=True)
                        bounds.append((log.at, len(found)))
                case _:
                    log = opened(tmp_path, log.at)
            if rng.random() < 0.5:
                found |= rest(log, rng.choice([1, 3, 100]))
                bounds.append((log.at, len(found)))
        found |= rest(log)
        bounds.append((log.at, len(found)))
        assert sorted(found.values()) == sorted(written)
        assert bounds[-1][0].numbers == len([*tmp_path.iterdir()])
        in_order = [*found.items()]
        for _ in range(8):
            i, j = sorted(rng.choices(range(len(bounds)), k=2))
            (begin, first), (end, last) = bounds[i], bounds[j]
            expected = dict(in_order[first:last])
            fresh = opened(tmp_path)
            assert begin.is_before(end) and all_of(fresh.between(begin, end)) == expected
            parts, joined = rng.randrange(1, 5), dict[int, bytes]()
            for left in range(parts, 0, -1):
                cut = fresh.divide(begin, end, left)
                assert begin.is_before(cut) and cut.is_before(end)
                assert len(cut.parts) <= 2 * newest + 2
                part = all_of(opened(tmp_path, cut).between(begin, cut))
                assert not joined.keys() & part.keys()
                joined |= part
                begin = cut
            assert joined == expected


def rest_is_new(log: FolderLog) -> bool:
    """Whether a log has something to read, so that files may be finished before they are looked at again."""
    return log.lag().records > 0
