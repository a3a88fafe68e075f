"""One arm of the demo: starts its trainers together, follows them, and measures what they take."""

from __future__ import annotations

import selectors
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import IO

import msgspec
import numpy as np

from penstock.bench.demo.job import Event, Job
from penstock.bench.demo.results import ArmResult, RunResult
from penstock.bench.measure.family import Family, family
from penstock.bench.measure.pool import ONE_THREAD, Member
from penstock.errors import BadSetting, PenstockError
from penstock.linux.cgroups import machine_cpu_s

OnEvent = Callable[[Job, Event], None]

_MEMORY_EVERY_S = 1.0


class Trainer:
    """A trainer's process, followed by its arm."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.events: list[Event] = []  # "progress" and "trained"
        self.failure: Event | None = None
        self.ready_s: float | None = None
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        # One thread: the trainers share the cores.
        self.process = Member([sys.executable, "-m", "penstock.bench.demo.trainer"], ONE_THREAD, self._errors)

    def read(self) -> Iterator[Event]:
        """Yield the reports that have come."""
        for line in self.process.lines():
            event = msgspec.json.decode(line, type=Event)
            if event.kind in ("progress", "trained"):
                self.events.append(event)
            elif event.kind == "ready":
                self.ready_s = event.at_s
            elif event.kind == "failed":
                self.failure = event
            yield event

    @property
    def trained(self) -> bool:
        return bool(self.events) and self.events[-1].kind == "trained"

    def check(self) -> None:
        """Raise what made the trainer fail, if it did.

        Raises:
            BadSetting: one of the user's files cannot be used.
            PenstockError: it failed otherwise, or died.
        """
        if self.failure is not None:
            kind = BadSetting if self.failure.bad_data else PenstockError
            raise kind(self.failure.message)
        if self.process.over and not self.trained:
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip()
            raise PenstockError(f"run {self.job.run.name} died{': ' + said[-2000:] if said else ''}")

    def close(self) -> None:
        """End the process, if it still runs."""
        self.process.let_go()
        self._errors.close()


@contextmanager
def _started(jobs: list[Job]) -> Generator[list[Trainer]]:
    with ExitStack() as stack:
        trainers = [stack.enter_context(closing(Trainer(job))) for job in jobs]
        for trainer in trainers:
            trainer.process.tell(msgspec.to_builtins(trainer.job))
        yield trainers


def run_arm(loader: str, jobs: list[Job], on_event: OnEvent) -> tuple[ArmResult, str, str]:
    """Run these jobs side by side.

    Returns:
        What the arm took; the path of the batches, and the device, in words.

    Raises:
        BadSetting: one of the user's files cannot be used.
        PenstockError: a run failed.
    """
    with family() as members:
        began_s = time.monotonic()
        machine_before_s = machine_cpu_s()
        with _started(jobs) as trainers:
            cpu_at_start_s = _follow(trainers, members, on_event)
            wall_s = time.monotonic() - began_s
        members.end()
        others_cpu_s = max(0.0, machine_cpu_s() - machine_before_s - members.cpu_s())
        last = trainers[0].events[-1]
        result = _result(loader, trainers, members, cpu_at_start_s, wall_s, others_cpu_s)
        return result, last.sharing, last.device


def _follow(trainers: list[Trainer], members: Family, on_event: OnEvent) -> float:
    """Start the trainers together, and read their reports to the last.

    Returns:
        CPU time of all trainers when the last had its first batch.
    """
    cpu_at_start_s: float | None = None
    started = False
    sampled_s = 0.0
    with selectors.DefaultSelector() as selector:
        for trainer in trainers:
            selector.register(trainer.process, selectors.EVENT_READ, trainer)
        while selector.get_map():
            for key, _ in selector.select(_MEMORY_EVERY_S):
                trainer: Trainer = key.data
                for event in trainer.read():
                    on_event(trainer.job, event)
                trainer.check()
                if trainer.process.over:
                    selector.unregister(key.fileobj)
            if not started and all(trainer.ready_s is not None for trainer in trainers):
                started = True
                for trainer in trainers:
                    trainer.process.tell("start")
            if cpu_at_start_s is None and all(trainer.events for trainer in trainers):
                cpu_at_start_s = members.cpu_s()
            if time.monotonic() - sampled_s >= _MEMORY_EVERY_S:
                members.sample_memory()
                sampled_s = time.monotonic()
    assert cpu_at_start_s is not None
    return cpu_at_start_s


def _result(
    loader: str,
    trainers: list[Trainer],
    members: Family,
    cpu_at_start_s: float,
    wall_s: float,
    others_cpu_s: float,
) -> ArmResult:
    firsts = [trainer.events[0].at_s for trainer in trainers]
    lasts = [trainer.events[-1].at_s for trainer in trainers]
    start_s = max(firsts)
    cpu_s = members.cpu_s()
    counted = [_since(trainer, start_s) for trainer in trainers]
    if not all(counted):  # such a short job that one had all its images before another had its first
        start_s, cpu_at_start_s = min(trainer.ready_s or 0.0 for trainer in trainers), 0.0
        counted = [float(trainer.events[-1].images) for trainer in trainers]
    return ArmResult(
        loader=loader,
        workers=trainers[0].job.workers * (1 if trainers[0].job.feed else len(trainers)),
        images=sum(trainer.events[-1].images for trainer in trainers),
        images_per_s=sum(counted) / (max(lasts) - start_s),
        wall_s=wall_s,
        cpu_s=cpu_s,
        cpu_s_per_1000_images=1000 * (cpu_s - cpu_at_start_s) / sum(counted),
        peak_pss_bytes=members.peak_pss_bytes,
        peak_processes=members.peak_processes,
        others_cpu_s=others_cpu_s,
        runs=[_run_result(trainer, start_s, images) for trainer, images in zip(trainers, counted, strict=True)],
    )


def _since(trainer: Trainer, start_s: float) -> float:
    """Return how many images a trainer received after this moment."""
    times = [trainer.ready_s or 0.0, *(event.at_s for event in trainer.events)]
    images = [0, *(event.images for event in trainer.events)]
    return images[-1] - float(np.interp(start_s, times, images))


def _run_result(trainer: Trainer, start_s: float, images: float) -> RunResult:
    run, first, last = trainer.job.run, trainer.events[0], trainer.events[-1]
    return RunResult(
        name=run.name,
        width=run.width,
        learning_rate=run.learning_rate,
        batch_size=run.batch_size,
        images=last.images,
        images_per_s=images / (last.at_s - start_s),
        waiting=(last.waited_s - first.waited_s) / (last.at_s - first.at_s),
        final_loss=last.loss,
    )
