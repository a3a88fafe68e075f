"""A feeder's end of the bridge to a cluster: asks for blocks, and finds out that nobody makes them any more."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import struct
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from penstock.basics.terminal import say
from penstock.contracts import Cursor, Tree
from penstock.errors import BadSetting
from penstock.linux.files import memory_file
from penstock.memory.slots import Filled, Slots
from penstock.sources.remote import bridge
from penstock.sources.remote.bridge import (
    FORGET,
    Answer,
    BlockTask,
    Connected,
    InSlot,
    NotSafe,
    Setup,
    Unmade,
    Whole,
)
from penstock.sources.remote.maker import MadeBlock, MakerSpec
from penstock.sources.remote.nodes import QUEUED
from penstock.sources.remote.status import ClusterStanding
from penstock.sources.samples.worker import MemoryFile
from penstock.sources.workers.process import start_process

_AGAIN_S = 10.0
_CONNECTS_S = 15.0
_MOST_CONNECTING_S = 60.0
"""Ray itself may try for minutes; on a busy machine, importing it alone takes over 10 s."""
_ALONE_S = 0.5
"""No worker can be asked: the feeder waits this long for another one."""
_SETTLE_S = 5.0
_SILENT_S = 3.0
"""A bridge that says nothing for this long, or takes nothing, hangs: it is ended."""
_SEND_TIMEOUT = struct.pack("ll", int(_SILENT_S), 0)
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_NUM_REDIS_GET_RETRIES": "3"}
_CONNECTING = "it is being connected"


class NodesLost(Exception):
    """Nobody in the cluster makes blocks."""


class NotMade(Exception):
    """A block could not be made in the cluster; the message has what went wrong there."""


class NodeWorkers:
    """The workers of a cluster, as one feeder asks them.

    They are ``most`` at most, None for one on each core. Feeds of the name ``across`` on other machines share the
    blocks; None if none does.
    """

    def __init__(self, maker_spec: MakerSpec, most: int | None, across: str | None) -> None:
        self._maker_spec = pickle.dumps(maker_spec)
        self._most, self._across = most, across
        self._slots: Slots | None = None
        self.pid = 0  # process of the bridge; 0 before the first
        self._connection: Connection[Any, Any] | None = None
        self._answers: dict[int, InSlot | Whole | Unmade] = {}
        self._tasks: dict[int, BlockTask] = {}
        self._started_s = self._heard_s = 0.0
        self._alone_since_s: float | None = None
        self._settled = True
        self._said: tuple[bool, str] | None = None  # whether nodes make blocks, and why the cluster is refused
        self.standing = ClusterStanding(0, why=_CONNECTING)  # how the nodes stand
        self.frontier: Cursor | None = None
        """The furthest block that other feeds of the name had asked for; None if there were none."""
        self.received_bytes = 0  # size of the blocks that came, but for those whose leaves are not all arrays
        self.fills_slots = True  # whether blocks may lie in slots, as far as is known: all their leaves are arrays
        self._refused = ""

    @property
    def capacity(self) -> int:
        """Blocks that can be under way without one waiting for a worker."""
        return self.standing.workers * QUEUED

    def use(self, slots: Slots) -> None:
        """Have blocks written to these slots from now on."""
        self.close()
        self._slots = slots

    def wait(self) -> None:
        """Connect to the cluster, and wait until it is known whether there is one."""
        until_s = time.monotonic() + _CONNECTS_S
        while not self.usable() and self.standing.why == _CONNECTING and time.monotonic() < until_s:
            self._hear(0.1)

    def usable(self) -> bool:
        """Whether blocks can be asked for; connects to the cluster anew where that is due."""
        since_s = time.monotonic() - self._started_s
        is_connecting = self._connection is not None and self.standing.why == _CONNECTING
        if is_connecting and since_s >= _MOST_CONNECTING_S:
            self._lose_bridge(f"it has not answered for {_MOST_CONNECTING_S:.0f} s")
            self._say()
        if self._connection is None and since_s >= _AGAIN_S:
            self._start()
        self._hear(0.0)
        if self._refused and self._said is None:
            raise BadSetting(f'workers="ray": {self._refused}')
        usable = self._connection is not None and self.standing.workers > 0
        if usable or self.standing.why not in {"", _CONNECTING}:
            self._say()
        return usable

    def submit(self, task: BlockTask) -> None:
        """Have a block made, whose result is asked for by its number."""
        self._tasks[task.number] = task
        self._send(task)

    def result(self, number: int) -> Tree | Filled:
        """Wait for a block."""
        while number not in self._answers:
            if self._connection is None:
                self._lose()
            if self.standing.workers:
                self._alone_since_s = None
            elif self._alone_since_s is None:
                self._alone_since_s = time.monotonic()
            elif time.monotonic() >= self._alone_since_s + _ALONE_S:
                self._lose()
            self._hear(_ALONE_S / 5)
        answer, task = self._answers.pop(number), self._tasks.pop(number)
        if isinstance(answer, Unmade):
            raise NotMade(answer.why)
        if isinstance(answer, InSlot):
            assert task.slot is not None
            self.received_bytes += answer.placement.nbytes
            return Filled(task.slot, len(task.plan.ids), answer.placement)
        made = answer.made
        if not isinstance(made, MadeBlock):
            self.fills_slots = False
            return made
        self.received_bytes += made.placement.nbytes
        return made.placement.copied(made.memory, made.rows)

    def settle(self) -> None:
        """Give up all blocks; after that nothing is written to their slots."""
        if self._tasks and self._connection is not None:
            self._settled = False
            self._send(FORGET)
            until_s = time.monotonic() + _SETTLE_S
            while not self._settled:
                if time.monotonic() >= until_s:
                    self._lose_bridge(f"its process here did not settle within {_SETTLE_S:.0f} s")
                if not self._hear(0.1):
                    break
        self._tasks.clear()
        self._answers.clear()

    def close(self) -> None:
        """End the bridge; what is asked for later begins with a new one."""
        self._end()
        self._tasks.clear()
        self._answers.clear()
        self._started_s = 0.0

    def _start(self) -> None:
        self._started_s = self._heard_s = time.monotonic()
        ring = None if self._slots is None else MemoryFile(*self._slots.ring_file)
        with memory_file("penstock-maker spec") as file:
            left = memoryview(self._maker_spec)
            while left:
                left = left[file.write(left) :]
            maker_spec = MemoryFile(file.fileno(), len(self._maker_spec))
            files = [maker_spec.fd] if ring is None else [maker_spec.fd, ring.fd]
            self.pid, self._connection = start_process(bridge.__name__, files, _ENVIRONMENT)
        with socket.socket(fileno=os.dup(self._connection.fileno())) as same:
            same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT)
        self.standing = ClusterStanding(0, why=_CONNECTING)
        self._send(Setup(maker_spec, self._most, self._across, ring))

    def _send(self, message: Any) -> None:
        """Send the bridge something; one that takes nothing is lost."""
        if self._connection is not None:
            try:
                self._connection.send(message)
            except OSError:  # it has died, or hangs
                self._lose_bridge("its process here takes no messages")

    def _hear(self, most_s: float | None) -> bool:
        """Take in what the bridge has sent; wait for that, if nothing is there. Return whether it is connected."""
        while self._connection is not None and self._connection.poll(most_s):
            try:
                answer: Answer | str = self._connection.recv()
            except (EOFError, OSError):
                self._lose_bridge(self.standing.why or "the connection to the cluster has ended")
                break
            self._heard_s = time.monotonic()
            if isinstance(answer, NotSafe):
                self._refused = answer.why
                self._lose_bridge(answer.why)
                break
            if isinstance(answer, Connected):
                self.standing, self.frontier, self._refused = ClusterStanding(0), answer.frontier, ""
            elif isinstance(answer, ClusterStanding):
                self.standing = answer
            elif isinstance(answer, str):
                self._settled = True
            elif answer.number in self._tasks:
                self._answers[answer.number] = answer
            most_s = 0.0
        hangs = self.standing.why != _CONNECTING and time.monotonic() >= self._heard_s + _SILENT_S
        if self._connection is not None and hangs:
            self._lose_bridge(f"its process {self.pid} here has said nothing for {_SILENT_S:.0f} s")
        return self._connection is not None

    def _lose_bridge(self, why: str) -> None:
        self._end()
        self.standing = ClusterStanding(0, why=why)

    def _lose(self) -> None:
        self._alone_since_s = None
        self._say()
        raise NodesLost

    def _say(self) -> None:
        """Print who makes the blocks, where that has changed."""
        makes = self.standing.workers > 0
        if self._said == (makes, self._refused):
            return
        self._said = makes, self._refused
        if makes:
            say(f"the Ray cluster makes the blocks: {self.standing.in_words}")
        else:
            say(
                f"no node of the Ray cluster makes blocks ({self.standing.why}): this feeder loads by itself, and "
                f"looks again every {_AGAIN_S:.0f} s"
            )

    def _end(self) -> None:
        if self._connection is None:
            return
        self._connection.close()
        self._connection = None
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):  # somebody else has waited for it
            os.waitpid(self.pid, 0)
