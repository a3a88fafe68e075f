"""Runs the command line in a terminal, whose name is the first argument whose session another process leads."""

import fcntl
import os
import signal
import sys
import termios

os.setsid()
terminal = os.open(sys.argv.pop(1), os.O_RDWR)
fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
if child := os.fork():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.write(1, b"%d\n" % child)
    if (status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])) < 0:
        signal.pause()  # the terminal would be closed with its session
    sys.exit(status)
for fd in (0, 1, 2):
    os.dup2(terminal, fd)
os.close(terminal)
sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115

from penstock.cli import main  # noqa: E402

main()
