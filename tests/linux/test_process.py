"""What a process asks of the kernel about others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from penstock.linux.process import survives


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
