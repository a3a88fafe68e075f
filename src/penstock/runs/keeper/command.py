"""Starts a run's command: its descriptors, its terminal, its process group."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import termios
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from penstock.linux.process import die_with_parent
from penstock.runs.keeper.order import Order


class Started(NamedTuple):
    """A command that runs.

    Attributes:
        pid: Its process, which leads a process group.
        outputs: Descriptors of what it prints, each with the number of the descriptor that it prints to.
        terminal: The keeper's side of its terminal, if it has one.
    """

    pid: int
    outputs: dict[int, int]
    terminal: int | None


def start(order: Order) -> Started:
    """Start a run's command.

    Raises:
        OSError: the command cannot be executed, or not in its directory.
    """
    given, outputs = [0, 1, 2], dict[int, int]()
    terminal, theirs = os.openpty() if any(order.terminal) else (None, None)
    if terminal is not None:
        outputs[terminal] = 1
        resize(terminal, order.size)
    for number, wanted in enumerate(order.terminal):
        if wanted and theirs is not None:
            given[number] = theirs
        elif number == 2 and order.merged:
            given[2] = given[1]
        elif number > 0:
            reading, given[number] = os.pipe()
            outputs[reading] = number
    telling, told = os.pipe()
    keeper = os.getpid()
    if (pid := os.fork()) == 0:
        _become(order, given, theirs, told, keeper)
    for fd in {*given, told} - {0, 1, 2}:
        os.close(fd)
    for fd in outputs:
        os.set_blocking(fd, False)
    with open(telling) as report:
        error = report.read()
    if error:
        os.waitpid(pid, 0)
        for fd in outputs:
            os.close(fd)
        raise OSError(int(error), os.strerror(int(error)))
    return Started(pid, outputs, terminal)


def resize(terminal: int, size: Sequence[int]) -> None:
    """Give a terminal so many lines and columns; what runs there is told."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", *size, 0, 0))


def _become(order: Order, given: list[int], terminal: int | None, told: int, keeper: int) -> NoReturn:
    try:
        if terminal is None:
            os.setpgid(0, 0)
        else:
            os.setsid()
            fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        die_with_parent(keeper)
        for number, fd in enumerate(given):
            os.dup2(fd, number)
        for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(ignored_by_python, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.chdir(order.directory)
        os.execvpe(order.command[0], order.command, order.environment)
    except OSError as error:
        os.write(told, str(error.errno).encode())
    finally:
        os._exit(127)
