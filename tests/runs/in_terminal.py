"""Runs the command line in a terminal, whose name is the first argument."""

import fcntl
import os
import sys
import termios

os.setsid()
terminal = os.open(sys.argv.pop(1), os.O_RDWR)
fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
for fd in (0, 1, 2):
    os.dup2(terminal, fd)
os.close(terminal)

from penstock.cli import main  # noqa: E402

main()
