"""What a process asks of the kernel about others."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys

import pytest
from tests.forked import eventually

from penstock.linux.process import (
    children,
    children_cpu_s,
    descendants,
    private_bytes,
    start_ticks,
    stat_of,
    survives,
)


def test_a_process_survives_signals_that_it_handles_ignores_or_blocks():
    code = (
        "import signal; signal.signal(signal.SIGTERM, print); signal.signal(signal.SIGHUP, signal.SIG_IGN); "
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]); print(flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        survived = {number for number in signal.valid_signals() if number < 32 and survives(process.pid, number)}
        process.kill()
    assert {signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT} <= survived
    assert not survived & {signal.SIGKILL, signal.SIGUSR2, signal.SIGQUIT}
    assert not survives(os.getpid(), signal.SIGKILL)
    assert not survives(2**22 + 1, signal.SIGTERM)


WITHOUT_ITS_FIRST_THREAD = """
import ctypes, subprocess, threading, time
def work():
    print(subprocess.Popen(["sleep", "60"]).pid, flush=True)
    time.sleep(60)
threading.Thread(target=work).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_lives_and_has_its_children_until_its_last_thread_has_ended():
    """As while a killed process of many threads ends: its first thread may be the first to go."""
    program = [sys.executable, "-c", WITHOUT_ITS_FIRST_THREAD]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as process:
        assert process.stdout
        child = int(process.stdout.readline())
        try:
            eventually(lambda: (fields := stat_of(process.pid)) and fields[0] == b"Z")
            assert start_ticks(process.pid) is not None
            assert {process.pid, child} <= set(descendants(os.getpid()))
        finally:
            os.kill(child, signal.SIGKILL)
            process.kill()


def test_the_cpu_time_of_children_counts_that_of_those_who_have_ended_and_of_their_own():
    before_s = children_cpu_s(children(os.getpid()))
    work = "import time\nwhile time.process_time() < 0.3: pass\n"
    of_child = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {work!r}])\n{work}"
    program = [sys.executable, "-c", f"{of_child}print(1, flush=True)\ninput()"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdin
        process.stdout.readline()
        assert process.pid in children(os.getpid())
        assert children_cpu_s([process.pid]) - children_cpu_s([]) >= 0.5
        process.stdin.close()
    assert process.pid not in children(os.getpid())
    assert children_cpu_s(children(os.getpid())) - before_s >= 0.5


@pytest.mark.parametrize(("flags", "counts"), [(mmap.MAP_SHARED, False), (mmap.MAP_PRIVATE, True)])
def test_memory_that_a_process_shares_is_not_private(flags: int, counts: bool):
    before = private_bytes(os.getpid())
    with mmap.mmap(-1, 64 << 20, flags=flags | mmap.MAP_ANONYMOUS) as memory:  # shared: as a feed's ring
        for _ in range(64):
            memory.write(bytes(1 << 20))
        assert (private_bytes(os.getpid()) - before > 32 << 20) == counts


def test_what_is_below_a_process_that_has_just_ended_is_found(monkeypatch: pytest.MonkeyPatch):
    """A child that was read before its parent ended, as one with a lower number is, names that parent still."""
    of = {10: (b"S", 1), 11: (b"S", 12), 12: (b"Z", 10), 13: (b"S", 11)}
    fields = {pid: [state, b"%d" % parent, *[b"0"] * 15, b"1"] for pid, (state, parent) in of.items()}
    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", lambda _: [*map(str, of), "self"])
        patch.setattr("penstock.linux.process.stat_of", fields.get)
        found = descendants(10)
    assert found == [11, 13]
