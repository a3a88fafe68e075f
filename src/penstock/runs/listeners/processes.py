"""Follows the process trees of runs by reading /proc, cheaply, and adds up what they use.

The kernel moves the CPU time and I/O of a process that has ended to the parent that waits for it; orphans are
waited for by the keeper, which is a subreaper. So a tree's CPU time is the own time of its living processes and
the children's time of each of them and of the keeper. Parents are read before their children: one that ends
meanwhile may be missed until the next tick, and is never counted twice. A feeder that descends from the keeper
serves other runs, too: it and its workers are left out, and a part of what they use counts (``feed.FeedParts``);
but whether they find a free CPU counts, for the run that started them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from penstock.inject import FEEDER_NAME
from penstock.linux.cgroups import machine_cpu_s
from penstock.linux.process import CLOCK_TICK_S, PAGE_BYTES, has_ended, io_bytes, stat_fields, stat_of
from penstock.runs.listeners.contract import Tick, Tree, WatchedRun

_LOOK_AT_ALL_EVERY = 60
_GONE = (FileNotFoundError, ProcessLookupError)
_Used = tuple[int, int, int]
"""CPU time in ticks, bytes read and written."""


class Processes:
    """The process trees of runs.

    Each look lists the machine's processes by number, and reads only those that are new or in a tree. A thousand
    neighbours cost little.
    """

    def __init__(self) -> None:
        self._trees: dict[str, _Tree] = {}
        self._others: set[int] = set()  # processes that are in no tree
        self._looks = 0

    def look(self, time_s: float, runs: Iterable[WatchedRun]) -> Tick:
        """Read the trees of these runs at this time, in seconds since 1970.

        A run whose keeper has ended is left out, and stays out.
        """
        by_id = {run.id: run for run in runs}
        for id in self._trees.keys() - by_id.keys():
            self._trees.pop(id).close()
        for id in by_id.keys() - self._trees.keys():
            with suppress(*_GONE):
                self._trees[id] = _Tree(by_id[id].keeper)
                self._others.clear()
        self._find()
        found: dict[str, Tree] = {}
        for id, tree in list(self._trees.items()):
            try:
                found[id] = tree.read()
            except _GONE:
                self._trees.pop(id).close()
        going = tuple(run for run in by_id.values() if run.id in found)
        return Tick(time_s, going, found, machine_cpu_s())

    def close(self) -> None:
        """Close the processes' files."""
        for tree in self._trees.values():
            tree.close()
        self._trees.clear()

    def _find(self) -> None:
        """Find the processes that are new in each tree: a parent before its children."""
        if self._looks % _LOOK_AT_ALL_EVERY == 0:  # a number may have been given to another process meanwhile
            self._others.clear()
        self._looks += 1
        tree_of = {pid: tree for tree in self._trees.values() for pid in (tree.keeper.pid, *tree.members)}
        pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        self._others &= pids
        # A process whose parent ends just now has another parent at the next look.
        parents = {pid: parent for pid in sorted(pids - self._others - tree_of.keys()) if (parent := _parent(pid))}
        self._others |= {pid for pid, parent in parents.items() if parent < 0}
        placed = True
        while placed:
            placed = [pid for pid, parent in parents.items() if parent in tree_of or parent in self._others]
            for pid in placed:
                if tree := tree_of.get(parent := parents.pop(pid)):
                    with suppress(*_GONE):
                        tree.members[pid] = _Process(pid, tree.members.get(parent))
                        tree_of[pid] = tree
                else:
                    self._others.add(pid)


class _Process:
    """A process, by files that never become another's, even if its number is given again."""

    def __init__(self, pid: int, parent: _Process | None = None) -> None:
        self.pid = pid
        self.parent = parent
        self.feeds = False  # whether it is a feeder or descends from one
        self.used: _Used = 0, 0, 0  # as read last
        self.missed: _Used = 0, 0, 0  # of children that it has waited for since
        self._waited_ticks = self._new_ticks = 0  # CPU time of its ended children: all, and since the last look
        self._stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        self._io = _opened(f"/proc/{pid}/io")
        self._schedstat = _opened(f"/proc/{pid}/schedstat")
        self._seen_ns = 0, 0

    def stat(self) -> list[bytes]:
        """Read its state, and what follows that in /proc/PID/stat (proc(5))."""
        stat = os.pread(self._stat, 1024, 0)
        is_feeder = stat[stat.index(b"(") + 1 : stat.rindex(b")")] == FEEDER_NAME
        self.feeds = is_feeder or (self.parent is not None and self.parent.feeds)
        return stat_fields(stat)

    def io_bytes(self) -> tuple[int, int]:
        """Read how much it, and the children that it has waited for, read and wrote."""
        return io_bytes(self._io)

    def use(self, stat: list[bytes]) -> None:
        """Take note of what it, and the children that it has waited for, used."""
        waited = int(stat[13]) + int(stat[14])
        self._waited_ticks, self._new_ticks = waited, max(0, waited - self._waited_ticks - self.missed[0])
        self.used, self.missed = (sum(map(int, stat[11:15])), *self.io_bytes()), (0, 0, 0)

    def has_waited_for(self, used: _Used) -> None:
        """Take note that it has waited for a child: before it was read, which tells of that time, or after it."""
        self._new_ticks -= used[0]
        if self._new_ticks < 0:
            self.missed, self._new_ticks = _sums(self.missed, used), self._new_ticks + used[0]

    def ready_ns(self) -> tuple[int, int]:
        """Read how long its first thread has run, and been ready to, since the last call (sched-stats.rst)."""
        if self._schedstat is None:
            return 0, 0
        ran, delayed = map(int, os.pread(self._schedstat, 128, 0).split()[:2])
        (ran_before, delayed_before), self._seen_ns = self._seen_ns, (ran, delayed)
        return ran - ran_before, delayed - delayed_before

    def close(self) -> None:
        for file in (self._stat, self._io, self._schedstat):
            if file is not None:
                os.close(file)


class _Tree:
    """A keeper, and all that descends from it."""

    def __init__(self, keeper: tuple[int, int]) -> None:
        pid, started = keeper
        self.keeper = _Process(pid)
        self.members: dict[int, _Process] = {}  # a parent before its children
        self._ran_ns = self._delayed_ns = 0
        self._fed: _Used = 0, 0, 0  # of feeders that have ended, among what the keeper has of its children
        self._cpu_ticks, self._read_bytes, self._write_bytes = NeverFalling(), NeverFalling(), NeverFalling()
        if int(self.keeper.stat()[19]) != started:
            self.keeper.close()
            raise ProcessLookupError
        self._thread_io = _opened(f"/proc/{pid}/task/{pid}/io")

    def read(self) -> Tree:
        """Add up what it uses and has used."""
        keeper = self.keeper.stat()
        if has_ended(keeper):  # and nobody has waited for it yet
            raise ProcessLookupError
        # The keeper's own time is not the run's, nor is what it wrote itself: the run's output.
        own = io_bytes(self._thread_io)
        used = [
            int(keeper[13]) + int(keeper[14]),
            *(max(0, a - b) for a, b in zip(self.keeper.io_bytes(), own, strict=True)),
        ]
        pids: list[int] = []
        rss_pages = threads = 0
        for pid, process in list(self.members.items()):
            try:
                stat = process.stat()
                ran_ns, delayed_ns = process.ready_ns()
            except ProcessLookupError:
                self.members.pop(pid).close()
                ended, parent = _sums(process.used, process.missed), process.parent
                while parent is not None and parent.feeds and parent not in self.members.values():
                    parent = parent.parent
                if process.feeds and parent is not None and parent.feeds:
                    parent.has_waited_for(ended)
                elif process.feeds:
                    self._fed = _sums(self._fed, ended)
                continue
            process.use(stat)
            self._ran_ns += ran_ns
            self._delayed_ns += delayed_ns
            if process.feeds:
                continue
            used = _sums(used, process.used)
            if not has_ended(stat):
                pids.append(pid)
                threads += int(stat[17])
                rss_pages += int(stat[21])
        cpu_ticks, read_bytes, write_bytes = (max(0, a - b) for a, b in zip(used, self._fed, strict=True))
        return Tree(
            pids=tuple(pids),
            cpu_s=self._cpu_ticks.of(cpu_ticks) * CLOCK_TICK_S,
            read_bytes=self._read_bytes.of(read_bytes),
            write_bytes=self._write_bytes.of(write_bytes),
            rss_bytes=rss_pages * PAGE_BYTES,
            threads=threads,
            ready_s=(self._ran_ns + self._delayed_ns) / 1e9 if self._ran_ns else None,
            delayed_s=self._delayed_ns / 1e9,
        )

    def close(self) -> None:
        for process in (self.keeper, *self.members.values()):
            process.close()
        if self._thread_io is not None:
            os.close(self._thread_io)


class NeverFalling:
    """A sum that goes on from where it was when parts of it are lost.

    What a process used is missing once if it ends between its parent's reading and its own. It is missing for
    good if its parent ignores SIGCHLD. So what is missing twice is taken for lost, and stays in the sum.
    """

    def __init__(self) -> None:
        self._shown = self._lost = 0
        self._was_short = False

    def of(self, counted: int) -> int:
        """Return the sum, from what is counted now and what was lost."""
        short = self._shown - self._lost - counted
        if short > 0 and self._was_short:
            self._lost += short
        self._was_short = short > 0 and not self._was_short
        self._shown = max(self._shown, counted + self._lost)
        return self._shown


def _parent(pid: int) -> int | None:
    """Return a process's parent: -1 if it has none, None if the process has ended."""
    fields = stat_of(pid)
    return None if fields is None else int(fields[1]) or -1


def _opened(path: str) -> int | None:
    """Open figures of a process, which the kernel may refuse: for a program that is setuid."""
    with suppress(OSError):
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return None


def _sums(one: Iterable[int], other: Iterable[int]) -> _Used:
    cpu_ticks, read_bytes, write_bytes = map(sum, zip(one, other, strict=True))
    return cpu_ticks, read_bytes, write_bytes
