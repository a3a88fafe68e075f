"""The loop of every measured process: takes batches, and counts those of one interval of time.

A process reads one order per line on its standard input and answers with one
line of JSON. It warms up, answers ``ready``, goes on taking batches, and gets
the interval in the machine's monotonic clock, so all processes count in one
interval. Then it goes on until ``stop``, so that none measures while others
already end. Only the standard library: peers run this in other environments.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import IO, Any, NamedTuple

_GRACE_S = 10.0
_PROBE_EVERY_S = 0.005
_MOST_PROBES = 4000


class Batches(NamedTuple):
    """A source of batches for a measured trainer."""

    batches: Iterator[Any]  # batches without end
    rows: Callable[[Any], int]  # returns the samples of a batch
    latency_s: Callable[[], float] | None
    """Returns the newest block's time from publishing to receipt; None if not known."""
    close: Callable[[], None]  # closes the source
    copied_bytes: Callable[[], int] = lambda: 0
    """Returns the bytes that this process has copied to its device so far; 0 if not counted."""


class CommandReader:
    """Reads orders from standard input in a thread, while the process takes batches."""

    def __init__(self) -> None:
        self.interval = math.inf, math.inf
        self.stopped = False
        self.tally = [0, 0]  # batches and samples of this order so far
        self.reported = False
        self._orders = SimpleQueue[dict[str, Any]]()
        self._reporting = threading.Lock()
        threading.Thread(target=self._hear, daemon=True).start()

    def order(self) -> dict[str, Any] | None:
        """Wait for the next order; None when standard input has ended."""
        order = self._orders.get()
        self.interval = math.inf, math.inf
        self.stopped = self.reported = False
        self.tally = [0, 0]
        return None if order["do"] == "exit" else order

    def report(self, answer: dict[str, Any]) -> None:
        """Answer once for this interval."""
        with self._reporting:
            if not self.reported:
                self.reported = True
                reply(answer)

    def _hear(self) -> None:
        for line in heard_lines():
            message = json.loads(line)
            if message["do"] == "measure":
                self.interval = message["start"], message["stop"]
                watch = self._fixed if message.get("fixed") else self._overdue
                threading.Thread(target=watch, args=self.interval, daemon=True).start()
            elif message["do"] == "stop":
                self.stopped = True
            else:
                self._orders.put(message)
        self.stopped = True
        self._orders.put({"do": "exit"})

    def _fixed(self, start: float, stop: float) -> None:
        """Report at the interval's end, whenever batches come: for rare and large batches."""
        self.interval = math.inf, math.inf
        time.sleep(max(0.0, start - time.monotonic()))
        before, cpu = list(self.tally), time.process_time()
        time.sleep(max(0.0, stop - time.monotonic()))
        batches, samples = (now - was for now, was in zip(self.tally, before, strict=True))
        self.report(_counted(batches, samples, stop - start, time.process_time() - cpu, []))

    def _overdue(self, _: float, stop: float) -> None:
        """Report how many batches came if the trainer still waits for one long after the interval."""
        time.sleep(max(0.0, stop - time.monotonic()) + _GRACE_S)
        if self.interval[1] == stop:
            self.report({"finished": False, "taken": self.tally[0], "pid": os.getpid()})


def heard_lines() -> Iterator[bytes]:
    """Yield the lines of standard input, until it ends.

    Reads the descriptor, not ``sys.stdin``: a worker that is forked while a
    thread waits there would inherit its lock, held, and hang when it closes it.
    """
    unread = b""
    while chunk := os.read(0, 1 << 16):
        *lines, unread = (unread + chunk).split(b"\n")
        yield from lines


def reply(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), file=_answers, flush=True)


_answers: IO[str] = sys.stdout


def reserve_output() -> None:
    """Reserve standard output for answers; other prints go to standard error, for a loader may print anything."""
    global _answers  # noqa: PLW0603
    _answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)


def failure(error: Exception) -> dict[str, Any]:
    """Make the answer that reports an error."""
    return {
        "error": str(error),
        "kind": type(error).__name__,
        "traceback_text": getattr(error, "traceback_text", ""),
    }


def _counted(
    batches: int, samples: int, seconds: float, cpu_s: float, latencies_s: list[float], copied_bytes: int = 0
) -> dict[str, Any]:
    return {
        "finished": batches > 0,
        "taken": batches,
        "pid": os.getpid(),
        "batches": batches,
        "samples": samples,
        "seconds": seconds,
        "cpu_s": cpu_s,
        "latencies_s": latencies_s,
        "copied_bytes": copied_bytes,
    }


def take(source: Batches, commands: CommandReader, *, warm_up: int, step_s: float) -> None:
    """Take batches until ``stop``, and report on those of the interval."""
    latencies: list[float] = []
    counted = samples = copied = 0
    began = cpu = probed = last = 0.0
    counting = done = False
    for batch in source.batches:
        commands.tally[0] += 1
        if commands.tally[0] == warm_up:
            reply({"ready": True, "pid": os.getpid()})
        now = time.monotonic()
        start, stop = commands.interval
        rows = source.rows(batch)
        commands.tally[1] += rows
        if counting:
            counted += 1
            samples += rows
            if source.latency_s is not None and now - probed > _PROBE_EVERY_S and len(latencies) < _MOST_PROBES:
                probed, latency = now, source.latency_s()
                if latency != last:
                    latencies.append(latency)
                    last = latency
            if now >= stop:
                counting, done = False, True
                cpu = time.process_time() - cpu
                copied = source.copied_bytes() - copied
                commands.report(_counted(counted, samples, now - began, cpu, latencies, copied))
        elif not done and now >= start:
            counting, began, cpu, copied = True, now, time.process_time(), source.copied_bytes()
        if commands.stopped:
            break
        if step_s:
            time.sleep(step_s)
    source.close()
    reply({"closed": True})


def serve(open_source: Callable[[dict[str, Any]], Batches], others: dict[str, Callable[..., Any]]) -> None:
    """Follow orders until standard input ends; handlers of others than ``take``, by name, return the answer."""
    reserve_output()
    commands = CommandReader()
    reply({"pid": os.getpid()})
    while (order := commands.order()) is not None:
        try:
            if order["do"] == "take":
                take(open_source(order), commands, warm_up=order["warm_up"], step_s=order["step_s"])
            else:
                reply(others[order["do"]](order))
        except Exception as error:
            reply(failure(error))
