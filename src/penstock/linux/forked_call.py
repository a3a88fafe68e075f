"""Calls a function in a forked child, which leaves nothing of its parent's changed."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import mmap
import os
import resource
import signal
import stat
import sys
import time
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from penstock.linux.process import die_with_parent

_libc = ctypes.CDLL(None)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class ForkedCall:
    """A function that runs in a forked child, with the memory that this process has now.

    The child shares no open file with its parent. It reopens regular files at their offsets, for reading only: a
    lazily opened h5py or tar handle would share its offset, and the child's read would move the parent's. All
    others (sockets, pipes, terminals, event counters, what it may only write to) become ``/dev/null``; only
    devices stay. A write to memory that it shares ends it. The kernel kills the child when its parent ends, or
    after ``limit_s``. Python's exit handlers do not run in it.
    """

    def __init__(self, function: Callable[[], bytes], limit_s: float) -> None:
        self.cpu_s = 0.0  # CPU time of the child, once it has answered
        self._answers, answer = Pipe(duplex=False)
        parent = os.getpid()
        with (quiet := warnings.catch_warnings()):
            warnings.simplefilter("ignore")  # of Python 3.12 and of jax, that other threads run
            # Neither may a signal's handler run in the child, nor leave it unknown to this process.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            try:
                with _interrupts_held():
                    self._pid = os.fork()
                    if self._pid == 0:
                        quiet.__exit__(None, None, None)
                        _run(function, limit_s, parent, answer)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        answer.close()
        self._until_s = time.monotonic() + limit_s

    def answer(self, wait_s: float = 0.0) -> bytes | None:
        """Return what the function did; empty if it raised or was killed, None if it runs after ``wait_s``."""
        now = time.monotonic()
        if not self._answers.poll(max(0.0, min(wait_s, self._until_s - now))):
            if time.monotonic() < self._until_s:
                return None
            self.close()  # whoever the child has forked may hold its pipe
            return b""
        try:
            answer = self._answers.recv_bytes()
        except (EOFError, OSError):  # it was killed before, or amid a long answer
            answer = b""
        self.close()
        return answer

    def close(self) -> None:
        """End the child if it runs."""
        if self._answers.closed:
            return
        with suppress(ChildProcessError, ProcessLookupError):  # somebody else has waited for it
            os.kill(self._pid, signal.SIGKILL)
            used = os.wait4(self._pid, 0)[2]
            self.cpu_s = used.ru_utime + used.ru_stime
        self._answers.close()


@contextmanager
def _interrupts_held() -> Generator[None]:
    """Have an interrupt come again that Python prints and forgets, since it came in a hook of the fork.

    Another thread may get the signal that this one blocks; its handler runs here, in the next line of Python.
    """
    interrupts, shown, forking = list[BaseException](), sys.unraisablehook, True

    def hold(unraisable: sys.UnraisableHookArgs) -> None:
        # Of two threads that fork at once, one leaves the other's hook behind.
        if forking and isinstance(unraisable.exc_value, KeyboardInterrupt):
            interrupts.append(unraisable.exc_value)
        else:
            shown(unraisable)

    sys.unraisablehook = hold
    try:
        yield
    finally:
        forking = False
        if sys.unraisablehook is hold:
            sys.unraisablehook = shown
        if interrupts:
            signal.raise_signal(signal.SIGINT)  # once this thread no longer blocks it


def _run(function: Callable[[], bytes], limit_s: float, parent: int, answer: Connection) -> None:
    try:
        die_with_parent(parent)
        for number in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM, signal.SIGSEGV):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        gc.disable()  # what would be collected may belong to others, such as a loader's workers
        _detach_descriptors(answer.fileno())
        _protect_shared_memory()
        answer.send_bytes(function())
    finally:
        os._exit(0)


def _detach_descriptors(but: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # such as that of the list itself
            mode = os.fstat(fd).st_mode
            access = fcntl.fcntl(fd, fcntl.F_GETFL)
            if fd > 2 and (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                _reopen(fd, access, nothing)
            elif fd <= 2 or (fd != but and (not stat.S_ISCHR(mode) or os.isatty(fd))):
                os.dup2(nothing, fd)


def _reopen(fd: int, access: int, nothing: int) -> None:
    if access & os.O_ACCMODE == os.O_WRONLY:
        os.dup2(nothing, fd)
        return
    anew = os.open(f"/proc/self/fd/{fd}", access & os.O_DIRECT)
    os.lseek(anew, os.lseek(fd, 0, os.SEEK_CUR), os.SEEK_SET)
    os.dup2(anew, fd)
    os.close(anew)


def _protect_shared_memory() -> None:
    for begin, end in writable_shared_memory():
        _libc.mprotect(begin, end - begin, mmap.PROT_READ)


def writable_shared_memory() -> list[tuple[int, int]]:
    """Return the bounds of memory that this process may write to, and its children share."""
    with open("/proc/self/maps", "rb") as maps:
        found = [
            bounds.split(b"-")
            for bounds, access, *_ in map(bytes.split, maps)
            if access[:2] + access[3:] == b"rws"
        ]
    return [(int(begin, 16), int(end, 16)) for begin, end in found]
