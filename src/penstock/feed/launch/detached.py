"""Detaches a feeder's process from its starter, and reports it if it ends too early.

Imports the standard library only: it runs before the feeder has imported anything.
"""

from __future__ import annotations

import json
import os
import select
import signal
from contextlib import suppress

from penstock.inject import FEEDER_NAME


def detach(lock_fd: int, answer_fd: int) -> int:
    """Go on in a child process with a new session; return the descriptor for the child's report, one line.

    The calling process never returns: it waits for the report, hands it on to
    ``answer_fd`` and ends, which leaves the child without a parent. A child
    that ends without a report is reported as ``{"died": …}``, with what ended
    it. A child whose report nobody waits for any more (its starter was killed
    or interrupted) is killed.
    """
    low, high = sorted((lock_fd, answer_fd))
    for first, beyond in ((3, low), (low + 1, high), (high + 1, os.sysconf("SC_OPEN_MAX"))):
        os.closerange(first, beyond)  # whatever else was inherited from the starter
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else waitpid fails where the starter ignores it
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.close(answer_fd)
        os.setsid()
        with suppress(OSError), open("/proc/self/comm", "wb", 0) as name:
            name.write(FEEDER_NAME)
        return writing
    os.close(writing)
    os.close(lock_fd)
    with suppress(BrokenPipeError):
        write_all(answer_fd, _report(child, reading, answer_fd))
    os._exit(0)


def _report(child: int, reading: int, answer_fd: int) -> bytes:
    """Return the child's report, or how it ended without one; it is then dead."""
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    poll.register(answer_fd, 0)  # reports an error once nobody reads there
    report = b""
    if reading in dict(poll.poll()):
        with open(reading, "rb") as file:
            report = file.readline()
    if report.endswith(b"\n"):
        return report
    os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    how = f"ended with status {status}" if status >= 0 else f"was killed by {_name(-status)}"
    return json.dumps({"died": how}).encode() + b"\n"


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write data to a descriptor that may take only a part at once."""
    while data:
        data = data[os.write(fd, data) :]


def _name(number: int) -> str:
    """Return a signal's name; a real-time signal has only a number."""
    known = {each.value: each.name for each in signal.Signals}
    return known.get(number, f"signal {number}")
