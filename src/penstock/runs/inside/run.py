"""What a training script calls: it asks for its run, and logs metrics. Outside a run, nothing happens."""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock import waits
from penstock.errors import BadSetting, PenstockError, StoreUnusable
from penstock.linux.fork import importing
from penstock.runs.listeners import is_measured

if TYPE_CHECKING or (os.environ.get("PENSTOCK_RUN_ID") and os.environ.get("PENSTOCK_STORE")):
    # In a run at once, where forks wait for it (linux/fork.py).
    from penstock.runs.inside.media import Media, MediaFiles
    from penstock.runs.store import SeriesWriter

_EVERY_S = 0.5
_MOST_WAITING = 100_000
_MOST_WAITING_BYTES = 200_000_000
_LONGEST = 250
_MOST_WARNINGS = 20
_PATIENCE_S = 5.0


class Run(msgspec.Struct, frozen=True):
    """The run that a process belongs to.

    Attributes:
        id: Its key in the store.
        name: What people call it.
        index: Its place in its group, from 0.
        parameters: What a grid filled in, by name, as text.
        folder: Folder for its own output.
    """

    id: str
    name: str
    index: int
    parameters: dict[str, str]
    folder: Path


def current_run() -> Run | None:
    """Return the run that this process belongs to, or None if ``penstock run`` did not start it.

    Examples:
        >>> penstock.current_run() is None  # nothing started this process
        True
    """
    if (store := _store()) is None:
        return None
    id, index = os.environ["PENSTOCK_RUN_ID"], os.environ.get("PENSTOCK_RUN_INDEX", "")
    return Run(
        id=id,
        name=os.environ.get("PENSTOCK_RUN_NAME", id),
        index=int(index) if index.isdecimal() else 0,
        parameters=json.loads(os.environ.get("PENSTOCK_RUN_PARAMETERS", "{}")),
        folder=Path(os.environ.get("PENSTOCK_RUN_FOLDER") or store / id / "files"),
    )


def log(values: object = None, /, **more: object) -> None:
    """Record numbers of this moment in the run's series: ``penstock.log({"train/loss": loss}, step=100)``.

    A value is a number, or an array or tensor of one; NaN counts. A dict in
    place of a value has more of them, whose names begin with its own and a
    slash. An array or tensor of more than one becomes a histogram. A figure of
    matplotlib's, an image of PIL's, or an array or tensor of bytes (uint8)
    with the shape of an image, of up to 50 MB, becomes an image; a str a text.
    They are files of the run. Anything else is left out, with one warning on
    stderr. What has been logged with a ``step`` (or an ``epoch``) can be
    drawn against that. Points reach the store within a second. A call never
    fails and never waits for the disk; the value of a GPU's tensor is waited
    for, as by ``item()``. Threads and forked children may call it. Outside a run,
    nothing happens.

    Args:
        values: Numbers and others, by their names: a dict, which may hold others.
        more: More of them.

    Examples:
        >>> penstock.log(step=100, loss=0.25)
        >>> penstock.log({"train/loss": 0.25, "eval": {"loss": 0.5, "accuracy": 0.8}}, step=100)
        >>> penstock.log(sample="once upon a time", step=100)
    """
    recorder = _here.recorder
    if recorder is None and not _here.is_outside:
        recorder = _here.begin()
    if recorder is not None:
        recorder.add(more if values is None else {"": values, **more})


def watch_waits() -> None:
    """Record where the loops of this process and its forked children spend time, in their run's series."""
    waits.report(_here.begin)
    if "PENSTOCK_PROFILE_STEPS" in os.environ and _store():
        from penstock.runs.profilers import begin

        begin()
    if waits.PHASES in os.environ and _store():
        from penstock.runs.inside.phases import begin

        begin()


def _store() -> Path | None:
    folder = os.environ.get("PENSTOCK_STORE")
    return Path(folder) if folder and os.environ.get("PENSTOCK_RUN_ID") else None


class _Recorder:
    """Takes points from any thread, and writes them from one of its own."""

    def __init__(self, run_folder: Path) -> None:
        self._run_folder = run_folder  # the run's folder in the store
        # Not by the process alone: what it counted before an exec, or another of its number, is another counter.
        self._name = f"script-{os.getpid()}-{os.urandom(4).hex()}"
        # Appends need no lock, in signals neither.
        self._waiting: deque[tuple[float, Mapping[str, float | Media]]] = deque()
        self._waiting_bytes = 0  # of media; threads may miscount until all is written
        self._media: MediaFiles | None = None
        self._writer: SeriesWriter | None = None
        self.writing = threading.Lock()
        self._warned: set[str] = set()
        self._refused = deque[int]()  # how many values each call had that did not wait
        self._told = 0  # values of which it has been told that they are lost
        self._is_over = not threading.main_thread().is_alive()  # in an exit handler, where threads are too late
        if not self._is_over:
            try:
                threading.Thread(target=self._write_often, name="penstock-log", daemon=True).start()
            except RuntimeError as error:
                self._warn("thread", f"{error}: what is logged is written only when the process ends")
            atexit.register(self._end)
            if multiprocessing := sys.modules.get("multiprocessing.util"):  # whose children skip atexit
                multiprocessing.Finalize(None, self._end, exitpriority=0)

    def add(self, values: dict[str, Any]) -> None:
        now_s = time.time()
        found: dict[str, float | Media] = {}
        self._collect(values, "", found)
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.append((now_s, found))
        else:
            self._warn("many", f"more than {_MOST_WAITING:,} calls wait for the disk; some are left out")
            self._refused.append(len(found))
        if self._is_over:
            self._end()

    def _collect(self, values: Mapping[Any, Any], within: str, found: dict[str, float | Media]) -> None:
        """Collect what can be stored among values, and within those that are dicts."""
        for key, value in values.items():
            name = f"{within}/{key}" if within else f"{key}"
            if type(value) is float:
                number = value
            elif issubclass(type(value), Mapping) and len(name) < _LONGEST:  # one that holds itself has an end
                self._collect(value, name, found)
                continue
            elif (number := _number(value)) is None and (number := self._media_of(name, value)) is None:
                continue
            if is_measured(name):
                self._warn(name, f"{name!r} is left out: Penstock measures {name.partition('.')[0]}.… itself")
            else:
                found[name] = number

    def _media_of(self, name: str, value: Any) -> Media | None:
        try:
            with importing:
                from penstock.runs.inside.media import media_of

            media = media_of(value)
            if self._waiting_bytes + len(media.content) <= _MOST_WAITING_BYTES:
                self._waiting_bytes += len(media.content)
                return media
            why = f"{self._waiting_bytes / 1e6:.0f} MB already wait for the disk"
        except BadSetting as error:
            why = str(error)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        self._warn(name, f"{name!r} is left out: {why}")
        return None

    def write(self) -> None:
        """Write what waits; what the disk does not take is lost, with a warning."""
        if not self.writing.acquire(timeout=_PATIENCE_S):
            return
        try:
            self._append()
            try:
                self._waiting.extend(waits.points(is_last=self._is_over))
            except Exception as error:
                self._warn("waits", f"what loops wait for cannot be recorded: {type(error).__name__}: {error}")
            self._append()
            if self._writer:
                self._writer.flush()
        except PenstockError as error:
            self._warn("", f"{error}")
        finally:
            self.writing.release()

    def leave(self, nothing_is_half_written: bool) -> None:
        """In a forked child: let go of everything. What waits is the parent's to write."""
        atexit.unregister(self._end)
        self._waiting.clear()
        if nothing_is_half_written and self._writer:
            self._writer.close()

    def _append(self) -> None:
        if self._waiting and self._writer is None:
            from penstock.runs.store import SeriesWriter, points_file

            self._writer = SeriesWriter(points_file(self._run_folder, self._name))
        while self._waiting and self._writer:
            time_s, values = self._waiting.popleft()
            for name, value in values.items():
                try:
                    if isinstance(value, tuple):
                        self._waiting_bytes -= len(value.content)
                        self._write_media(name, value, values.get("step", values.get("epoch")), time_s)
                    else:
                        self._writer.add(name, value, time_s)
                except BadSetting as error:
                    self._warn(name, f"{error}; it is left out")
                except StoreUnusable as error:  # the writer counts what is lost, and may find room for the others
                    self._warn("", f"{error}")
        if not self._waiting:
            self._waiting_bytes = 0

    def _write_media(self, name: str, media: Media, step: float | Media | None, time_s: float) -> None:
        if self._media is None:
            from penstock.runs.inside.media import MediaFiles

            self._media = MediaFiles(self._run_folder, self._name.rpartition("-")[2])
        try:
            if self._media.add(name, media, step if isinstance(step, float) else None, time_s):
                self._warn(
                    f"{name} thinned",
                    f"{name!r} was logged more than 1,000 times: every second of the older ones is removed",
                )
        except StoreUnusable as error:
            self._warn(name, f"{name!r} is left out: {error}")

    def _write_often(self) -> None:
        while not self._is_over:
            time.sleep(_EVERY_S)
            self.write()

    def _end(self) -> None:
        self._is_over = True
        self.write()
        lost = sum(self._refused) + sum(len(values) for _, values in self._waiting)
        lost += self._writer.dropped if self._writer else 0
        if lost > self._told:
            self._told = lost
            _say(f"the disk did not take {lost:,} points; they are lost")

    def _warn(self, what: str, sentence: str) -> None:
        if what not in self._warned and len(self._warned) <= _MOST_WARNINGS:
            self._warned.add(what)
            if len(self._warned) > _MOST_WARNINGS:
                sentence = "further warnings are not printed"
            _say(sentence)


def _say(sentence: str) -> None:
    with suppress(Exception):
        print(f"penstock.log: {sentence}", file=sys.stderr, flush=True)


def _number(value: Any) -> float | None:
    try:
        if hasattr(value, "item"):
            value = value.item()
        return float(value) if hasattr(value, "__float__") or hasattr(value, "__index__") else None
    except Exception:
        return None


class _Here:
    """What this process has of its run; nothing of that is half written when it forks."""

    recorder: _Recorder | None = None
    is_outside = False
    _beginning = threading.RLock()
    _is_held = False

    def begin(self) -> _Recorder | None:
        with self._beginning:
            store = _store()
            self.is_outside = store is None
            if store is not None and self.recorder is None:
                self.recorder = _Recorder(store / os.environ["PENSTOCK_RUN_ID"])
            return self.recorder

    def hold(self) -> None:
        self._is_held = self.recorder is not None and self.recorder.writing.acquire(timeout=_PATIENCE_S)

    def release(self) -> None:
        if self.recorder and self._is_held:
            self.recorder.writing.release()

    def leave(self) -> None:
        if self.recorder:
            self.recorder.leave(self._is_held)
        self.recorder = None
        self._beginning = threading.RLock()


_here = _Here()
os.register_at_fork(before=_here.hold, after_in_parent=_here.release, after_in_child=_here.leave)
