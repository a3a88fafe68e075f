"""What a process asks of the kernel about its descendants, its parent and its signals.

Imports little: a run's keeper starts in some tens of milliseconds."""

from __future__ import annotations

import ctypes
import mmap
import os
import pwd
import signal
import struct
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import NamedTuple

_ENDED = (b"Z", b"X")
"""States of a thread that has ended, and may still have to be waited for."""
_FIRST_NAMESPACE = "pid:[4026531836]"
"""The first namespace of processes (PROC_PID_INIT_INO of Linux)."""
_SHARED_MEMORY = "/dev/shm"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_SIGINFO_BYTES = 128
NOTICES = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGIO)
"""Signals by which others tell a process something; it may get each more than once."""
SENT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, *NOTICES)
"""Those, and the signals by which others end a process, such as Slurm all of a job."""
CLOCK_TICK_S, PAGE_BYTES = 1 / os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
_libc = ctypes.CDLL(None, use_errno=True)


class Received(NamedTuple):
    """A signal that came."""

    number: int
    pid: int  # process that sent it; 0 for the kernel


def numbers_are_the_machines() -> bool:
    """Return whether process numbers mean here what they mean to the kernel's drivers; in most containers not."""
    return os.readlink("/proc/self/ns/pid") == _FIRST_NAMESPACE


def adopt_orphans(*, adopt: bool = True) -> bool:
    """Become the parent of every descendant whose parent ends, or no more; return whether it was so before."""
    before = ctypes.c_int()
    _libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)
    return bool(before.value)


def die_with_parent(parent: int | None) -> None:
    """Have the kernel kill this process when its parent ends; ``parent`` is its pid, None if that is not known."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent not in (None, os.getppid()):  # it ended before prctl
        os.kill(os.getpid(), signal.SIGKILL)


def signals_as_file(numbers: Collection[int]) -> int:
    """Block these signals; return a descriptor that is readable when one has come (``read_signals``)."""
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    mask = (ctypes.c_uint64 * 16)(sum(1 << (number - 1) for number in numbers))
    return _libc.signalfd(-1, mask, os.O_CLOEXEC | os.O_NONBLOCK)


def read_signals(fd: int) -> list[Received]:
    """Return the signals that have come; a descriptor of ``signals_as_file``'s."""
    data = b""
    with suppress(BlockingIOError):
        data = os.read(fd, _SIGINFO_BYTES * 16)
    return [
        Received(number, pid)
        for number, pid in (struct.unpack_from("=I8xI", data, at) for at in range(0, len(data), _SIGINFO_BYTES))
    ]


def stat_fields(stat: bytes) -> list[bytes]:
    """Split ``/proc/PID/stat`` (proc(5)): the state, and what follows it. The name before it may hold anything."""
    return stat[stat.rindex(b")") + 2 :].split()


def stat_of(pid: int) -> list[bytes] | None:
    """Return the ``stat_fields`` of a process; None if there is none of this number, or it is hidden."""
    try:
        with open(f"/proc/{pid}/stat", "rb", 0) as file:
            return stat_fields(file.read())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def has_ended(fields: list[bytes]) -> bool:
    """Return whether a process has ended, by its ``stat_fields``: all its threads, not only the first of them."""
    return fields[0] in _ENDED and int(fields[17]) <= 1


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it does not live."""
    fields = stat_of(pid)
    return None if fields is None or has_ended(fields) else int(fields[19])


def ignore_sent() -> None:
    """Have this process, and those that it starts, ignore what others send to all."""
    for number in SENT:
        signal.signal(number, signal.SIG_IGN)


def survives(pid: int, number: int) -> bool:
    """Return whether a process handles, ignores or blocks a signal; else it would die of it at once."""
    return _has(pid, number, b"SigBlk", b"SigIgn", b"SigCgt")


def handles(pid: int, number: int) -> bool:
    """Return whether a process does something of its own at a signal, now or once it waits for it."""
    return _has(pid, number, b"SigBlk", b"SigCgt")


def _has(pid: int, number: int, *masks: bytes) -> bool:
    with suppress(OSError), open(f"/proc/{pid}/status", "rb") as file:  # it has ended
        found = (int(line.split()[1], 16) for line in file if line.startswith(masks))
        return any(mask >> (number - 1) & 1 for mask in found)
    return False


def addressed(pid: int, number: int, without: bytes = b"") -> list[int]:
    """List the processes that get a signal which is meant for one and what it has started.

    A notice is for the topmost that handle it, in whatever group: others would die of it. Ctrl-C is for the whole
    process group. Other signals are, too, but what is below a process that handles one is left to that.
    """
    own = os.getpid()  # whose child is what has lost its parent
    known = {each: fields for each in {pid, *descendants(own, without)} if (fields := stat_of(each))}
    below: dict[int, list[int]] = {}
    for each, fields in known.items():
        below.setdefault(int(fields[1]), []).append(each)
    orphans = [each for each in below.get(own, []) if each != pid and int(known[each][2]) == pid]
    found, looked = list[int](), [pid, *orphans]
    while looked:
        one = looked.pop()
        stops = number != signal.SIGINT and handles(one, number)
        if number not in NOTICES:
            found.append(one)
            looked += [] if stops else [each for each in below.get(one, []) if int(known[each][2]) == pid]
        elif stops:
            found.append(one)
        else:
            looked += below.get(one, [])
    return found or [pid]


def pss_bytes(pid: int) -> int:
    """Return the memory of a process, where a page that n processes map counts 1/n; 0 if it is hidden."""
    with suppress(OSError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:  # ended, or another user's
        for line in file:
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) << 10
    return 0


def private_bytes(pid: int) -> int:
    """Return the memory of a process that is no file's and not shared; pages that a fork left in common count."""
    with suppress(OSError), open(f"/proc/{pid}/statm", "rb") as file:
        _, resident, shared, *_ = map(int, file.read().split())
        return (resident - shared) * mmap.PAGESIZE
    return 0


def io_bytes(fd: int | None) -> tuple[int, int]:
    """Return the bytes that an open ``/proc/PID/io`` shows as read from storage, and sent there; 0 if hidden."""
    if fd is None:
        return 0, 0
    try:
        lines = os.pread(fd, 512, 0).split()
    except OSError:  # not allowed any more, or ended
        return 0, 0
    return int(lines[9]), int(lines[11])


def io_bytes_of(pid: int) -> tuple[int, int]:
    """Return the ``io_bytes`` of a process, and of the children that it has waited for."""
    with suppress(OSError), open(f"/proc/{pid}/io", "rb") as file:
        return io_bytes(file.fileno())
    return 0, 0


def descendants(of: int, without: bytes = b"") -> list[int]:
    """List the processes below one that have not ended, parents before children.

    A process whose command line has the words ``without`` is left out, with what is below it.
    """
    children: dict[int, list[int]] = {}
    ended = set[int]()  # their children may have been seen while they were theirs
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        if fields := stat_of(pid):
            children.setdefault(int(fields[1]), []).append(pid)
            if has_ended(fields):
                ended.add(pid)
    found, parents = list[int](), [of]
    while parents:
        below = [pid for parent in parents for pid in children.get(parent, ())]
        parents = [pid for pid in below if not (without and without in command_line(pid))]
        found += parents
    return [pid for pid in found if pid not in ended]


def yield_to_others(nice: int) -> None:
    """Let this process and its children take less of busy CPUs: a quarter with ``nice`` 5; never taken back."""
    os.nice(nice)
    with suppress(OSError), open("/proc/self/autogroup", "w") as file:  # sched(7): between sessions this counts
        file.write(str(nice))


def children(pid: int) -> list[int]:
    """List the children of a process and theirs, without a look at all processes."""
    found: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += map(int, file.read().split())
    return found + [each for child in found for each in children(child)]


def with_descendants(pids: Iterable[int]) -> list[int]:
    """List those of these processes that live, and all their descendants."""
    return [each for pid in pids if stat_of(pid) for each in (pid, *children(pid))]


def cpu_s(pids: Iterable[int]) -> float:
    """Return the CPU time of processes until now, with that of their children that have ended."""
    return CLOCK_TICK_S * sum(sum(map(int, fields[11:15])) for pid in pids if (fields := stat_of(pid)))


def children_cpu_s(pids: Iterable[int]) -> float:
    """Return the CPU time of this process's children, these and those that have ended, with their own."""
    ended = os.times()
    return ended.children_user + ended.children_system + cpu_s(pids)


def kill_descendants(without: bytes = b"") -> None:
    """Kill and reap all ``descendants`` of this process, which adopts orphans."""
    looks = 2  # one look may miss what was forked during it, by a process that has ended since
    while looks:
        left = descendants(os.getpid(), without)
        looks = 2 if left else looks - 1
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    reap()


def reap() -> dict[int, int]:
    """Reap the children of this process that have ended; return their statuses, as ``os.waitpid`` gives them."""
    reaped: dict[int, int] = {}
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            reaped[pid] = status
    return reaped


def unlink_shared_memory(pids: Iterable[int]) -> None:
    """Remove shared memory that torch's processes of these numbers had not unlinked yet when they were killed."""
    begins = tuple(f"torch_{pid}_" for pid in pids)
    for name in os.listdir(_SHARED_MEMORY):
        if name.startswith(begins):
            with suppress(FileNotFoundError):
                os.unlink(f"{_SHARED_MEMORY}/{name}")


def who(pid: int) -> str:
    """Describe a process that sent a signal: its user, and its command as far as it can be seen."""
    if pid == 0:
        return "the kernel"
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return f"process {pid}, which has ended"
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:  # as in a container
        user = f"user {uid}"
    words = command_line(pid).rstrip(b"\0").split(b"\0")
    command = b" ".join(word.rpartition(b"/")[2] for word in words).decode(errors="replace")
    return f"{user} with process {pid}: {command[:200]}"


def lineage(pid: int) -> list[int]:
    """List a process and those above it, up to the first of its namespace, or to one that has ended."""
    found = list[int]()
    while pid:
        found.append(pid)
        fields = stat_of(pid)
        pid = int(fields[1]) if fields else 0
    return found


def command_line(pid: int) -> bytes:
    """Return the words of a process, each with a zero byte after it; empty if it has ended."""
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()
    return b""


def in_words(status: int) -> str:
    """Describe an exit status other than 0, as ``subprocess`` gives it."""
    return f"died of {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
