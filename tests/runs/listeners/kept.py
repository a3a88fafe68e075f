"""A keeper, and what the runs that it keeps do: programs of their own, whose CPU time is compared."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress

import psutil

from penstock.linux.process import start_ticks
from penstock.runs.listeners.contract import WatchedRun

KEEPER = """
import ctypes, os, resource, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
run = subprocess.Popen([sys.executable, "-ISc", sys.argv[1]])
print(run.pid, flush=True)
ended = 0
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, flush=True)
sys.stdin.read()
"""

BURN = """
import os, resource, signal, subprocess, sys, time
def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
"""

SHORT_CHILDREN = """
for _ in range({count}):
    if os.fork() == 0:
        burn(0.004)
        os._exit(0)
    os.wait()
    time.sleep({pause_s})
"""

NEW_WORKERS = """
for epoch in range({epochs}):
    workers = []
    for _ in range(2):
        if (pid := os.fork()) == 0:
            burn({seconds})
            os._exit(0)
        workers.append(pid)
    for pid in workers:
        os.waitpid(pid, 0)
"""

DOUBLE_FORKS = """
for _ in range({count}):
    if os.fork() == 0:
        if os.fork() == 0:
            burn({seconds})
        os._exit(0)
    os.wait()
    time.sleep({seconds})
"""

FEEDS = """
if os.fork() == 0:
    if os.fork() == 0:
        import ctypes
        ctypes.CDLL(None).prctl(15, b"penstock-feed", 0, 0, 0)  # PR_SET_NAME
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(15, b"pt_data_worker", 0, 0, 0)
            burn({seconds})
            os._exit(0)
        burn({seconds})
        {ends}
    os._exit(0)
os.wait()
burn(0.2)
time.sleep(1.0)
"""


class Kept:
    """A run of Python code under a keeper, until it is closed; the keeper stays when the run has ended."""

    def __init__(self, code: str, id: str = "a", index: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-ISc", KEEPER, BURN + code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout
        pid = int(self.process.stdout.readline())
        started = start_ticks(self.process.pid)
        assert started is not None
        self.watched = WatchedRun(id, index, (self.process.pid, started), pid)

    def used_s(self) -> float:
        """Wait until all of the run has ended; return its CPU time as getrusage tells it."""
        assert self.process.stdout
        return float(self.process.stdout.readline())

    def close(self) -> None:
        while self.process.poll() is None and (left := psutil.Process(self.process.pid).children(recursive=True)):
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self.process.kill()
        self.process.communicate()
