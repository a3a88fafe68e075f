"""What the demo shows while it runs."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from penstock.bench.demo.arm import OnEvent
from penstock.bench.demo.job import Event, Job

_RATE_OVER_S = 3.0
_MAKING = "Making images, once"


class Bars:
    """A bar for each run, arm below arm."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[rate]}", style="bold"),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(Column(no_wrap=True, min_width=7)),
            console=console,
        )

    def __enter__(self) -> Self:
        self._progress.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.__exit__(kind, error, trace)

    def making(self, done: int, of: int) -> None:
        """Show how many of the demo's own images have been made."""
        if not self._progress.tasks:
            self._progress.add_task(_MAKING, total=of, rate="", state="")
        self._progress.update(self._progress.tasks[0].id, completed=done, state=f"{done:,} of {of:,}")

    def arm(self, name: str, jobs: list[Job]) -> OnEvent:
        """Begin an arm; return what is called with its trainers' reports."""
        about = Text.assemble((f"{name[0].upper()}{name[1:]}", "bold"), f": {len(jobs)} training runs")
        for run in (job.run for job in jobs):
            about.append(f"\n  {run.name}: width {run.width}, lr {run.learning_rate:g}, batch {run.batch_size}")
        self._progress.console.print(about)
        for task in self._progress.tasks:
            if task.description == _MAKING:
                self._progress.update(task.id, visible=False)
        # "each 1", "feed 1": a terminal of 80 columns has no room for the arm's whole name.
        label = name.rpartition(" ")[2]
        followers = {job.run.name: _Follower(self._progress, job, label) for job in jobs}
        return lambda job, event: followers[job.run.name].follow(event)


class _Follower:
    """The bar of one run."""

    def __init__(self, progress: Progress, job: Job, label: str) -> None:
        self._progress = progress
        self._epochs = job.epochs
        self._task: TaskID = progress.add_task(
            f"  {label} {job.run.name}",
            total=job.epochs * len(job.train),
            rate="",
            state="starts",
        )
        self._recent: deque[tuple[float, int]] = deque()

    def follow(self, event: Event) -> None:
        """Show a report of the run."""
        if event.kind in ("progress", "trained"):
            self._recent.append((event.at_s, event.images))
            while self._recent[0][0] < event.at_s - _RATE_OVER_S:
                self._recent.popleft()
            (from_s, images), spent_s = self._recent[0], event.at_s - self._recent[0][0]
            rate = f"{(event.images - images) / spent_s:6,.0f} images/s" if from_s < event.at_s else ""
            state = f"epoch {min(event.epoch + 1, self._epochs)}/{self._epochs}, loss {event.loss:.2f}"
            if event.kind == "trained":
                state = "done"
                self._progress.stop_task(self._task)
            self._progress.update(self._task, completed=event.images, rate=rate, state=state)
