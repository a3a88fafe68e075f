"""Measured processes: what they say is heard, how they end is told, and what they cost is counted."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from benchmarks.measure.pool import MemberFailed, ProcessPool
from tests.forked import eventually

from penstock.linux.process import cpu_s, pss_bytes, start_ticks, with_descendants
from penstock.memory.host_ring import WritableHostRing

SOON_S = 60.0

BURNS = """
import subprocess, sys
subprocess.run([sys.executable, "-c", sys.argv[1]])
print("{}", flush=True)
input()
"""

CHATTY = """
import sys
from benchmarks.measure.loop import failure, reserve_output, reply
reserve_output()
print("no line ends here", end="", flush=True)
reply({"answer": 1})
"""


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_an_answer_is_heard_whatever_the_process_prints_besides(tmp_path: Path):
    with ProcessPool(tmp_path) as pool:
        (member,) = pool.start(python(CHATTY))
        assert member.hear_of("answer", time.monotonic() + SOON_S) == {"answer": 1}
    assert "no line ends here" in pool.errors()


def test_an_error_comes_with_its_kind_and_traceback(tmp_path: Path):
    program = CHATTY + "error = KeyError('x'); error.traceback_text = 'File t.py'; reply(failure(error))"
    with ProcessPool(tmp_path) as pool:
        (member,) = pool.start(python(program))
        with pytest.raises(MemberFailed, match="KeyError: 'x'") as raised:
            member.hear_of("nothing", time.monotonic() + SOON_S)
    assert (raised.value.kind, raised.value.traceback_text) == ("KeyError", "File t.py")


def test_a_process_that_dies_is_told_by_its_signal(tmp_path: Path):
    with ProcessPool(tmp_path) as pool:
        (member,) = pool.start(python("import os; os.kill(os.getpid(), 9)"))
        with pytest.raises(MemberFailed, match=f"process {member.pid} died of SIGKILL"):
            member.hear(time.monotonic() + SOON_S)


def test_an_interrupted_measurement_leaves_no_process(tmp_path: Path):
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    with pytest.raises(KeyboardInterrupt), ProcessPool(tmp_path) as pool:
        (member,) = pool.start(python(program))
        while len(started := with_descendants([member.pid])) < 2:
            time.sleep(0.02)
        raise KeyboardInterrupt
    eventually(lambda: not [pid for pid in started if start_ticks(pid)])


def test_cpu_time_of_children_counts_also_when_they_have_ended(tmp_path: Path):
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    with ProcessPool(tmp_path) as pool:
        (member,) = pool.start([*python(BURNS), burn])
        assert member.hear(time.monotonic() + SOON_S) == {}
        # Of the process and of its children, user and system time are each rounded down to a tick.
        assert cpu_s(with_descendants([member.pid])) >= 0.5 - 4 / os.sysconf("SC_CLK_TCK")


def test_the_memory_of_a_window_counts():
    before = pss_bytes(os.getpid())
    ring = WritableHostRing.create(32 << 20)
    ring.write(0, np.ones(ring.capacity_bytes, np.uint8))
    assert pss_bytes(os.getpid()) >= before + (30 << 20)
    ring.close()


def test_what_has_ended_costs_nothing():
    ended = psutil.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert (pss_bytes(ended.pid), cpu_s([ended.pid])) == (0, 0)
    assert with_descendants([ended.pid]) == []
