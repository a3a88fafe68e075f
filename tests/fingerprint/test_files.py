"""Fingerprints of files: every change is seen that the system tells, and share says so."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.fingerprint.file_versions import DataFingerprint, FileVersion, fingerprint_of_files
from penstock.fingerprint.functions import fingerprint_of


def rewritten_in_place(path: Path) -> None:
    """Other bytes, as many, with the time of writing set back."""
    before = path.stat()
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@contextmanager
def running(*words: str | Path) -> Iterator[Any]:
    """A Python that waits for its input to end, and has said something."""
    with subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()  # type: ignore[union-attr]
        yield process
        process.stdin.close()  # type: ignore[union-attr]


def replaced(path: Path) -> None:
    path.with_suffix(".new").write_bytes(path.read_bytes())
    path.with_suffix(".new").replace(path)


CHANGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"d"), "1,572,864 bytes then, 1,572,865 now"),
    "replaced by an equal one": (replaced, "replaced since"),
    "written to": (lambda path: os.utime(path, (1, 1)), "written to since, at 1970"),
}


@pytest.mark.parametrize(("change", "told"), CHANGES.values(), ids=list(CHANGES))
def test_a_change_of_a_file_is_seen(tmp_path: Path, change: Callable[[Path], Any], told: str) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(b"abc" * 2**19)
    before = fingerprint_of_files([str(path)])
    assert before == fingerprint_of_files([str(path)])
    assert before.difference(before) == ""
    change(path)
    assert f"{path} ({told}" in before.difference(fingerprint_of_files([str(path)]))


def test_a_small_file_is_what_its_bytes_are(tmp_path: Path) -> None:
    """Each run may write it anew."""
    path = tmp_path / "index.json"
    path.write_bytes(b"abc")
    before = fingerprint_of_files([str(path)])
    replaced(path)
    os.utime(path, (1, 1))
    assert before == fingerprint_of_files([str(path)])
    path.write_bytes(b"abd")
    assert f"{path} (replaced since" in before.difference(fingerprint_of_files([str(path)]))


def test_a_file_that_is_rewritten_with_its_time_set_back_has_another_version(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(b"abc")
    before = fingerprint_of_files([str(path)])
    rewritten_in_place(path)
    assert before != fingerprint_of_files([str(path)])


def test_a_change_of_permissions_is_no_change_of_data(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(b"abc")
    before = fingerprint_of_files([str(path)])
    path.chmod(0o600 if path.stat().st_mode & 0o777 != 0o600 else 0o644)
    assert before.difference(fingerprint_of_files([str(path)])) == ""


def test_a_path_counts_wherever_it_is_named_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data.csv").write_bytes(b"abc")
    monkeypatch.chdir(tmp_path)
    assert fingerprint_of_files(["data.csv"]) == fingerprint_of_files([str(tmp_path / "data.csv")])


def test_an_objects_tag_tells_its_versions_apart() -> None:
    one, other = (DataFingerprint({"s3://a/b": FileVersion(5, etag=tag)}) for tag in ("1", "2"))
    assert one.difference(other) == "s3://a/b (replaced since)"


def test_what_is_no_file_has_no_version(tmp_path: Path) -> None:
    assert fingerprint_of_files([str(tmp_path), "not there", "nul\0", "n" * 5000, ""]).files == {}


def test_a_file_has_no_version_while_a_process_has_it_open_for_writing_or_if_it_is_empty(tmp_path: Path) -> None:
    path, link = tmp_path / "run.log", tmp_path / "link"
    link.symlink_to(path)
    path.touch()
    assert fingerprint_of_files([str(path)]).files == {}
    with path.open("a") as log:
        log.write("a line")
        log.flush()
        assert fingerprint_of_files([str(path), str(link)]).files == {}
        script = "import sys; file = open(sys.argv[1], 'r+b'); print(flush=True); sys.stdin.read()"
        with running("-c", script, path):
            log.close()
            assert fingerprint_of_files([str(path)]).files == {}
    with path.open("rb"):
        assert list(fingerprint_of_files([str(path)]).files) == [str(path)]


REWRITES = """
import os, sys
from pathlib import Path

path = Path(sys.argv[1])
for order in sys.stdin:
    with path.open("w") as file:
        print("open", flush=True)
        if order == "slowly\\n":
            sys.stdin.readline()
        file.write("the same\\n")
"""


@pytest.fixture
def rewriter(tmp_path: Path) -> Iterator[Any]:
    """A process that truncates a file and writes the same again, each time that it is told to."""
    (tmp_path / "index").write_text("the same\n")
    words: list[Any] = [sys.executable, "-c", REWRITES, tmp_path / "index"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        yield process
        process.stdin.close()  # type: ignore[union-attr]


@pytest.mark.whole
def test_a_file_that_another_process_writes_as_it_was_counts_as_it_was_at_every_moment(tmp_path, rewriter):
    """As it was found: of two runs that each write an index, one saw it empty, or open, and read another feed."""
    before = fingerprint_of_files([str(tmp_path / "index")])
    for _ in range(100):
        rewriter.stdin.write("now\n")
        assert fingerprint_of_files([str(tmp_path / "index")]) == before
    rewriter.stdin.close()
    rewriter.wait()
    (tmp_path / "index").write_text("not same\n")
    assert "replaced since" in before.difference(fingerprint_of_files([str(tmp_path / "index")]))


def test_a_file_is_waited_for_that_another_process_has_truncated(tmp_path, rewriter, monkeypatch):
    before = fingerprint_of_files([str(tmp_path / "index")])
    rewriter.stdin.write("slowly\n")
    assert rewriter.stdout.readline() == "open\n"
    asked: list[float] = []

    def sleep(s: float) -> None:
        if not asked:
            rewriter.stdin.write("go on\n")
        asked.append(s)
        time.sleep(s)

    monkeypatch.setattr("penstock.fingerprint.file_versions.sleep", sleep)
    assert fingerprint_of_files([str(tmp_path / "index")]) == before
    assert asked


@pytest.mark.whole
def test_a_log_of_another_process_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    def sleep(s: float) -> None:
        nonlocal now_s
        now_s += s

    monkeypatch.setattr("penstock.fingerprint.file_versions.sleep", sleep)
    monkeypatch.setattr("penstock.fingerprint.file_versions.monotonic", lambda: now_s)
    script = "import sys; file = open(sys.argv[1], 'w', 1); file.write('a line\\n'); print(); sys.stdin.read()"
    with running("-uc", script, tmp_path / "log"):
        for _ in range(2):
            assert fingerprint_of_files([str(tmp_path / "log")]).files == {}
            assert 2 <= now_s < 2.1


def lines_of(path: str, *_: str) -> Any:
    return penstock.ArraySource({"line": np.arange(len(Path(path).read_text().split()))}, batch_size=2)


@pytest.fixture
def lines(tmp_path: Path) -> tuple[Path, Callable[[], Any]]:
    """A file of four lines, and what makes a loader of it."""
    path = tmp_path / "lines.txt"
    path.write_text("a b c d")
    return path, functools.partial(lines_of, str(path))


def test_the_files_that_a_function_is_given_are_told_and_decide_nothing(lines: Any) -> None:
    path, make = lines
    before = fingerprint_of(make)
    assert list(before.data.files) == [str(path)]
    path.write_text("a b c d e")
    now = fingerprint_of(make)
    assert now.digest == before.digest
    assert now.data != before.data


@pytest.mark.usefixtures("forks_feeders")
def test_who_shares_a_feed_whose_data_have_changed_is_warned_and_goes_on(lines: Any) -> None:
    path, make = lines
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = penstock.share(make, "lines", linger=0.2)
        second = penstock.share(make, "lines")
    path.write_text("a b c d e f")
    told = r"feed .lines. \(feeder \d+\) began with other data.*lines.txt \(7 bytes then, 11 now\).*stop lines"
    with pytest.warns(UserWarning, match=told):
        late = penstock.share(make, "lines")
    with first, second, late:
        assert sorted(i for batch in late for i in batch["line"]) == [0, 1, 2, 3]


def noted(path: str) -> Any:
    with open(path, "a") as file:
        file.write("made\n")
    return penstock.ArraySource({"line": np.arange(4)}, batch_size=2)


@pytest.mark.usefixtures("forks_feeders")
def test_a_file_that_make_loader_writes_is_not_its_data(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.touch()
    make = functools.partial(noted, str(path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with penstock.share(make, "lines", linger=0.2), penstock.share(make, "lines"):
            assert path.read_text() == "made\n"


@pytest.mark.usefixtures("forks_feeders")
def test_a_path_that_is_no_text_is_shared(tmp_path: Path) -> None:
    path = os.fsdecode(bytes(tmp_path) + b"/\xff.txt")
    Path(path).write_text("a b c d")
    with penstock.share(functools.partial(lines_of, path), "lines", linger=0.2) as loader:
        assert sorted(i for batch in loader for i in batch["line"]) == [0, 1, 2, 3]


def test_a_file_is_found_among_many_other_words(tmp_path: Path) -> None:
    path = tmp_path / "zebra.txt"
    path.write_text("a b")
    make = functools.partial(lines_of, str(path), *[f"word {i}" for i in range(200)])
    assert list(fingerprint_of(make).data.files) == [str(path)]


@pytest.mark.usefixtures("forks_feeders")
def test_who_goes_on_with_other_data_after_a_failover_is_warned_and_who_comes_then_is_not(lines: Any) -> None:
    path, make = lines
    path.write_text("a " * 1000)
    with penstock.share(make, "lines", linger=1.0, window=4096) as loader:
        batches = iter(loader)
        next(batches)
        path.write_text("b " * 1000)
        os.kill(loader.statistics().feeder_pid, signal.SIGKILL)
        told = r"died, and the one in its place reads other data: .*lines.txt \(replaced"
        with pytest.warns(UserWarning, match=told) as caught:
            rest = list(batches)
        assert len(rest) + 1 == len(loader) == 500
        assert caught[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            penstock.share(make, "lines").close()


@pytest.mark.usefixtures("forks_feeders")
def test_a_warning_that_is_made_an_error_loses_no_batch(lines: Any) -> None:
    path, make = lines
    path.write_text("a " * 1000)
    with penstock.share(make, "lines", linger=1.0, window=4096) as loader:
        batches = iter(loader)
        seen = list(next(batches)["line"])
        path.write_text("b " * 1000)
        os.kill(loader.statistics().feeder_pid, signal.SIGKILL)
        raised = 0
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            while len(seen) < 1000:
                try:
                    seen += list(next(batches)["line"])
                except UserWarning:
                    raised += 1
        assert raised == 1
        assert sorted(seen) == list(range(1000))
