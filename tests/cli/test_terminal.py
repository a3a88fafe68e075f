"""The command line as it is seen: on 80 columns, in a pipe, in ASCII, interrupted, without extras."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import sys
import termios
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import environment, refused, without
from tests.forked import eventually

import penstock
from penstock.feed.endpoint import Endpoint

pytestmark = pytest.mark.whole

COMMAND = [sys.executable, "-m", "penstock"]
NASTY = "[red]x[/red] :smile: \x1b[2J\n\u202eabc"
MARK = b"\x1e\x1e"
SHOWN = r"[red]x[/red] :smile: \x1b[2J\n\u202eabc"


def started(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_anew(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run it in a new Python, whose encodings are those of its environment."""
    env = environment(**more)
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=100, check=False, env=env)


def in_terminal(*words: str, **more: str) -> str:
    """What a terminal of 80 columns is sent, without colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    env = environment(TERM="xterm", **more)
    with ThreadPoolExecutor(1) as reader:
        # The end is a mark: whatever was written before it has come.
        sent = reader.submit(until, ours, MARK)
        subprocess.run([*COMMAND, *words], stdin=theirs, stdout=theirs, stderr=theirs, env=env, check=False)
        os.write(theirs, MARK)
    os.close(theirs)
    os.close(ours)
    return re.sub(r"\x1b\[[0-9;]*m", "", sent.result().decode()).replace("\r\n", "\n")


def until(terminal: int, mark: bytes) -> bytes:
    """Read what comes before a mark."""
    sent = b""
    while not sent.endswith(mark):
        sent += os.read(terminal, 65536)
    return sent.removesuffix(mark)


def rows() -> penstock.ArraySource:
    return penstock.ArraySource({"id": np.arange(2000)}, batch_size=1)


@pytest.mark.parametrize("place", ["terminal", "pipe"])
def test_status_fits_80_columns_and_shows_a_name_that_would_command_the_terminal(serve, piped, place):
    serve(rows(), NASTY, window="1GiB")
    serve(rows(), "ranks")
    with penstock.attach(NASTY, borrow=True) as loader, penstock.attach("ranks", 8, shard=(0, 2)) as rank:
        next(iter(loader))
        waiting = threading.Thread(target=lambda: wait_for_ranks(rank))
        waiting.start()
        eventually(lambda: "waiting" in [t.state for f in penstock.feeds() for t in f.trainers])
        eventually(lambda: any(each.blocks_held == each.most_blocks for each in penstock.feeds()))
        shown = in_terminal("status") if place == "terminal" else piped("status").stdout
        assert piped("stop", "ranks").returncode == 0
        waiting.join()
    assert SHOWN in shown
    assert not [c for c in shown if not c.isprintable() and c != "\n"]
    assert all(len(line) <= 80 for line in shown.splitlines())
    for phrase in (
        f"feeder {os.getpid()}, host memfd, 0 MiB\n",
        "window 100%: 1,024 of 1,024 blocks, the loader is faster than the trainers\n",
        "nobody reads\n",
        "reading, views",
    ):
        assert phrase in shown, shown
    assert "waits for the other ranks" in " ".join(shown.split())


def wait_for_ranks(loader: penstock.Loader) -> None:
    with suppress(penstock.errors.FeederLost):
        next(iter(loader))


def test_an_error_shows_a_name_and_obeys_none_of_it(serve, piped):
    serve(rows(), NASTY)
    failed = piped("stop", "\x1b[2Jnobody")
    assert failed.returncode == 2
    assert "\x1b" not in failed.stderr
    assert "\u202e" not in failed.stderr
    assert SHOWN in failed.stderr


def test_a_feeder_in_a_terminal_shows_its_name_and_a_line_to_paste(tmp_path: Path):
    tmp_path.joinpath("one.py").write_text(
        "import numpy as np, penstock\ndef make():\n    return penstock.ArraySource({'id': np.arange(9)})\n"
    )
    name = NASTY + "x" * 80
    thread = threading.Thread(target=read_once, args=(name,))
    thread.start()
    shown = in_terminal("feed", f"{tmp_path}/one.py:make", "--name", name, "--epochs", "1")
    thread.join()
    assert f"\n    penstock.attach({name!r})\n" in shown
    assert f"Feeding {SHOWN}" in shown


def read_once(name: str) -> None:
    with penstock.attach(name, wait_s=60) as loader:
        list(loader)


def test_doctor_breaks_no_command_and_loses_no_extra(piped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def remedies() -> set[str]:
        return {each["remedy"] for each in json.loads(piped("doctor", "--json").stdout) if each["remedy"]}

    feeds = tmp_path / ("feeds of mine, " * 5)
    feeds.mkdir(mode=0o755)
    monkeypatch.setenv("PENSTOCK_DIR", str(feeds))
    before = remedies()
    shown = in_terminal("doctor", **without(tmp_path, "simplejpeg", "pynvml"))
    after = remedies()
    feeds.chmod(0o700)
    assert f"chmod 700 {shlex.quote(str(feeds))}\n" in shown
    assert '\n    pip install "penstock[images]"\n' in shown
    assert '\n    pip install "penstock[gpu]"\n' in shown
    # Memory, huge pages and io_uring may be short for a moment while other tests run.
    lasting = {remedy for remedy in before & after if "libjpeg-turbo" not in remedy}  # which needs simplejpeg
    assert lasting <= {line.strip() for line in shown.splitlines() if line.startswith("    ")}, shown


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("bench share t.py:make", 't.py needs torch: pip install "penstock[torch]"'),
        ("bench share t.py:make --plot x.png", '--plot needs matplotlib: pip install "penstock[paper]"'),
        ("bench io . --plot x.png", '--plot needs matplotlib: pip install "penstock[paper]"'),
        ("demo", 'needs torch, simplejpeg, cv2, matplotlib: pip install "penstock[demo]"'),
        ("bench load .", 'bench load needs simplejpeg, cv2: pip install "penstock[images]"'),
        ("feed t.py:make --name x", 't.py needs torch: pip install "penstock[torch]"'),
    ],
)
def test_what_an_extra_brings_is_asked_for_in_one_line(piped, tmp_path: Path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    tmp_path.joinpath("t.py").write_text("import torch\ndef make(): ...\n")
    tmp_path.joinpath("a.jpg").touch()
    failed = piped(*words.split(), **without(tmp_path, "torch", "simplejpeg", "cv2", "matplotlib"))
    assert (failed.returncode, failed.stdout) == (1, "")
    (line,) = failed.stderr.splitlines()
    assert line.endswith(says)


VERBS = "feed,pack,cache,cache check,status,stop,doctor,advise,demo,bench,bench share,bench io"


@pytest.mark.parametrize("verb", ["", *VERBS.split(",")])
def test_help_fits_80_columns_and_gives_a_flag_no_type(piped, verb):
    ran = piped(*verb.split(), "--help", COLUMNS="80")
    shown = ran.stdout
    assert ran.returncode == 0
    assert f"Usage: penstock {verb}".rstrip() in shown
    assert "python -m" not in shown
    assert "<bool>" not in shown
    assert all(len(line.rstrip()) <= 80 for line in shown.splitlines())


def test_without_a_verb_the_help_is_shown(piped):
    shown = piped()
    assert "doctor" in shown.stdout + shown.stderr
    assert shown.returncode == 2


@pytest.mark.parametrize("words", [["status"], ["doctor"]], ids=" ".join)
def test_ctrl_c_ends_a_command_that_waits_for_a_feeder(words):
    endpoint = Endpoint("silent")
    lock = endpoint.acquire()
    assert lock is not None
    with endpoint.listen() as listener:
        process = started(*words)
        with closing(listener.accept()[0]):
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 130
    endpoint.remove(lock)


def test_ctrl_c_ends_a_feeder_that_makes_its_loader(tmp_path: Path):
    tmp_path.joinpath("slow.py").write_text(
        "import pathlib, time\ndef make():\n"
        "    pathlib.Path(__file__).with_name('made').touch()\n    time.sleep(60)\n"
    )
    process = started("feed", f"{tmp_path}/slow.py:make", "--name", "slow")
    eventually(lambda: tmp_path.joinpath("made").exists() or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 130


@pytest.mark.parametrize("words", ["status", "doctor", "--help"])
def test_a_reader_that_has_gone_gets_no_traceback(words):
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as closed:
        command = [*COMMAND, *words.split()]
        ended = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, timeout=60, check=False)
    assert ended.stderr == b""


@pytest.mark.parametrize("words", ["status --json", "doctor", "--version"])
def test_a_full_disk_is_one_line(words):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, *words.split()], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    said = "penstock: standard output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)


def test_a_working_directory_that_is_gone_is_one_line(tmp_path: Path):
    gone = tmp_path / "gone"
    gone.mkdir()
    words = ["sh", "-c", 'cd "$0" && rmdir "$0" && exec "$@"', str(gone), *COMMAND, "run", "true"]
    environ = environment(PENSTOCK_STORE=str(tmp_path))
    done = subprocess.run(words, capture_output=True, text=True, env=environ, check=False)
    assert done.returncode == 2
    assert done.stderr.endswith("penstock: the working directory is not there any more: change to one that is\n")
    assert "Traceback" not in done.stderr


def test_a_terminal_of_ascii_is_told_in_ascii(serve):
    serve(rows(), "größe")
    for words in (["status"], ["doctor"], ["feed", "--help"]):
        told = run_anew(*words, PYTHONIOENCODING="ascii")
        assert told.returncode == 0, told.stderr
        assert told.stdout.isascii()
    assert r"gr\xf6\xdfe" in run_anew("status", LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0").stdout
    failed = run_anew("stop", "größe", PYTHONIOENCODING="ascii")
    assert failed.stderr.isascii()
    assert "Traceback" not in failed.stderr


def test_a_watched_status_in_a_dumb_terminal_prints_one_look_after_another(serve):
    serve(rows(), "here")
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "dumb"}
    process = subprocess.Popen(
        [*COMMAND, "status", "--watch", "--interval", "0.1"], stdout=theirs, stderr=theirs, env=env
    )
    os.close(theirs)
    seen = b""
    while seen.count(b"here") < 3:
        seen += os.read(ours, 65536)
    assert b"\x1b" not in seen
    process.send_signal(signal.SIGINT)
    with suppress(OSError):
        while os.read(ours, 65536):
            pass
    assert process.wait(60) == 130
    os.close(ours)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        *((f"status --watch --interval {interval}", "--interval=") for interval in ("nan", "0", "inf")),
        *((f"{verb} --watch --json", "--json: not with --watch") for verb in ("status", "runs ls")),
    ],
)
def test_what_cannot_be_watched_is_refused(command, words, says):
    assert says in refused(command(*words.split()))
