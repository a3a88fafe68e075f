"""What a forked child answers, and that its parent keeps what it has."""

from __future__ import annotations

import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.linux.forked_call import ForkedCall, _interrupts_held


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def answer_of(call: ForkedCall) -> bytes:
    answer = call.answer(60)
    assert answer is not None
    return answer


def check_reaped(call: ForkedCall) -> None:
    with pytest.raises(ChildProcessError):
        os.waitpid(call._pid, os.WNOHANG)  # pyright: ignore[reportPrivateUsage]


def test_it_answers_with_the_memory_of_its_parent_and_leaves_no_child_and_no_descriptor():
    before = descriptors()
    known = b"x" * 100_000
    call = ForkedCall(lambda: known, 60)
    assert answer_of(call) == known
    assert descriptors() == before
    check_reaped(call)


def test_what_warns_raises_in_a_child_if_it_does_in_its_parent():
    def warn() -> bytes:
        try:
            warnings.warn("odd", stacklevel=1)
        except UserWarning:
            return b"raised"
        return b"printed"

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert answer_of(ForkedCall(warn, 60)) == b"raised"
        before = list(warnings.filters)
        warnings.simplefilter("ignore")
        assert answer_of(ForkedCall(warn, 60)) == b"printed"
        assert warnings.filters[1:] == before


def test_a_function_that_raises_has_an_empty_answer():
    assert answer_of(ForkedCall(lambda: 1 / 0, 60)) == b""  # type: ignore[arg-type, return-value]


def test_a_child_that_takes_too_long_is_killed_also_if_nobody_looks():
    def sleep() -> bytes:
        time.sleep(1000)
        return b"late"

    call = ForkedCall(sleep, 0.2)
    pid = call._pid  # pyright: ignore[reportPrivateUsage]
    assert os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT) is not None  # by its own alarm
    assert answer_of(call) == b""
    check_reaped(call)


def test_a_child_that_is_killed_amid_a_long_answer_has_none():
    call = ForkedCall(lambda: b"x" * 90_000, 0.2)  # more than a pipe holds
    os.waitid(os.P_PID, call._pid, os.WEXITED | os.WNOWAIT)  # pyright: ignore[reportPrivateUsage]
    assert answer_of(call) == b""
    check_reaped(call)


def test_a_child_writes_nothing_to_its_parents_files(tmp_path: Path):
    with (tmp_path / "log").open("wb", 0) as file:
        answer_of(ForkedCall(lambda: b"%d" % file.write(b"from the child"), 60))
    assert (tmp_path / "log").read_bytes() == b""


@pytest.mark.parametrize("mode", ["rb", "r+b", "a+b"])
def test_a_child_reads_its_parents_files_moves_no_offset_and_cannot_write_there(tmp_path: Path, mode: str):
    (tmp_path / "log").write_bytes(b"0123")
    with (tmp_path / "log").open(mode, 0) as file:
        file.seek(1)
        assert answer_of(ForkedCall(lambda: file.read(2), 60)) == b"12"
        assert file.tell() == 1
        if mode != "rb":
            assert answer_of(ForkedCall(lambda: b"%d" % file.write(b"from the child"), 60)) == b""
    assert (tmp_path / "log").read_bytes() == b"0123"


def test_a_child_that_leaves_processes_behind_is_not_waited_for_longer():
    def leave() -> bytes:
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        time.sleep(1000)
        return b"late"

    began_s = time.monotonic()
    assert answer_of(ForkedCall(leave, 0.3)) == b""
    assert time.monotonic() - began_s < 15  # before the one left behind ends, which holds the pipe


def test_a_child_reads_nothing_of_its_parents_sockets_and_pipes():
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    with ours, theirs:
        ours.send(b"for the parent")
        os.write(writing, b"for the parent")
        call = ForkedCall(lambda: b"nothing" + os.read(theirs.fileno(), 9) + os.read(reading, 9), 60)
        assert answer_of(call) == b"nothing"
        assert theirs.recv(99) == os.read(reading, 99) == b"for the parent"
    os.close(reading)
    os.close(writing)


def test_a_child_changes_no_counter_poll_or_terminal_of_its_parents():
    counter, poll, (terminal, its_end) = os.eventfd(3, os.EFD_NONBLOCK), select.epoll(), os.openpty()
    reading, writing = os.pipe()
    os.write(writing, b"x")

    def touch() -> bytes:
        for do in (
            lambda: os.eventfd_read(counter),
            lambda: poll.register(reading, select.EPOLLIN),
            lambda: os.write(its_end, b"from the child"),
        ):
            with suppress(OSError):
                do()
        return b"done"

    assert answer_of(ForkedCall(touch, 60)) == b"done"
    assert os.eventfd_read(counter) == 3
    assert not poll.poll(0)
    assert not select.select([terminal], [], [], 0)[0]
    poll.close()
    for fd in (counter, terminal, its_end, reading, writing):
        os.close(fd)


def test_a_child_reads_the_memory_that_its_parent_shares_and_a_write_there_ends_it():
    with mmap.mmap(-1, 1 << 20) as shared:  # as tensors in shared memory, mapped arrays, a database's locks
        shared[7] = 1
        assert answer_of(ForkedCall(lambda: shared[7:8], 60)) == b"\1"

        def write() -> bytes:
            shared[7] = 2
            return b"done"

        assert answer_of(ForkedCall(write, 60)) == b""
        assert shared[7] == 1


def test_a_child_ends_with_its_parent():
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:
        try:
            call = ForkedCall(lambda: b"%d" % (time.sleep(1000) or 0), 500)
            os.write(writing, b"%d" % call._pid)  # pyright: ignore[reportPrivateUsage]
            time.sleep(1000)
        finally:
            os._exit(0)
    child = int(os.read(reading, 99))
    handle = os.pidfd_open(child)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert select.select([handle], [], [], 60)[0]
    for fd in (reading, writing, handle):
        os.close(fd)


def test_an_interrupt_that_another_thread_gets_in_a_hook_of_the_fork_is_not_lost():
    code = (
        "import os, signal, sys, threading\n"
        "from penstock.linux.forked_call import ForkedCall\n"
        "go, gone = threading.Event(), threading.Event()\n"
        "def other():\n"
        "    go.wait()\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "    gone.set()\n"
        "def hook():\n"
        "    if not gone.is_set():\n"
        "        go.set()\n"
        "        gone.wait()\n"
        "os.register_at_fork(after_in_parent=hook)\n"
        "threading.Thread(target=other, daemon=True).start()\n"
        "try:\n"
        "    ForkedCall(lambda: b'', 5.0)\n"
        "    print('lost')\n"
        "except KeyboardInterrupt:\n"
        "    print('came')\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("came\n", "")


def test_hooks_of_two_threads_that_fork_at_once_swallow_nothing_later(monkeypatch):
    shown: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", shown.append)
    first, second = _interrupts_held(), _interrupts_held()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    later = SimpleNamespace(exc_value=KeyboardInterrupt())
    sys.unraisablehook(later)  # type: ignore[arg-type]
    assert shown == [later]
