"""Measures what runs take: each is started once, and ended when that is known (``runs/inside/phases.py``)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from penstock.errors import PenstockError
from penstock.feed.launch.feeds import feeds
from penstock.runs.inside.phases import Phase, Stretch
from penstock.runs.keeper.keeper import FEEDER
from penstock.runs.record import RunPlan
from penstock.runs.store import Store
from penstock.runs.trial import TrialRunner
from penstock.schedule.jobs import SPARE
from penstock.schedule.profiles import Profile, data_of
from penstock.waits import PHASES

_ENDS_S = 2.0
_SM_ACTIVE = ".sm_active_percent"


class NotProfiled(PenstockError):
    """A run could not be measured."""


def profiled(
    store: Store,  # where it is a run for as long as it is measured
    plan: RunPlan,
    *,
    has_gpus: bool = False,  # whether there are GPUs to listen to
    variables: Mapping[str, str] = {},  # environment variables that it gets besides
    limit_s: float = 60.0,  # seconds after which it is ended in any case
    on_phase: Callable[[str], object] = lambda phase: None,  # called with the name of the phase, again and again
) -> Profile:
    """Start a run, and return what it takes; it is ended then, and nothing of it stays in the store.

    Its script runs as it is. Where it reads a feed, that is one of its own, which is ended, too.
    """
    if (plan.gpus or 1) > 1:
        raise NotProfiled(f"{plan.name}: only runs on one GPU are profiled, and it asks for {plan.gpus}")
    alone = replace(plan, watch_dataloader=True, profile=(), after=(), time_limit_s=None)
    runner = TrialRunner(
        store,
        [alone],
        group="profile",
        listeners=None if has_gpus else (),
        variables=variables,
        without=FEEDER,
    )
    measured = _Measured(store, runner)
    try:
        measured.run(limit_s, on_phase)
        return measured.profile(limit_s, has_gpus=has_gpus)
    finally:
        store.ended(runner.records[0].id, "failed", None, "never began")
        store.remove([runner.records[0].id])


class _Measured:
    """A run that is started to be measured."""

    def __init__(self, store: Store, runner: TrialRunner) -> None:
        self._store = store
        self._runner = runner
        self._record = runner.records[0]
        self._path = store.folder_of(self._record.id) / "phases"
        self._stretches: list[Stretch] = []
        self._data = ""
        self._samples_per_epoch: int | None = None

    def run(self, limit_s: float, on_phase: Callable[[str], object]) -> None:
        """Run it until all phases are over, it has ended, or its time is up."""
        deadline_s = time.monotonic() + limit_s
        self._runner.variables[PHASES] = f"{deadline_s - _ENDS_S}:{self._path}"

        def is_over() -> bool:
            self._look()
            on_phase(self._phase)
            return self._phase == "over" or time.monotonic() >= deadline_s

        self._runner.run(is_over)
        self._look()

    def profile(self, limit_s: float, *, has_gpus: bool) -> Profile:
        """Return what was measured."""
        ended, name = self._store.run(self._record.id), self._record.name
        if ended.status not in ("finished", "killed"):
            when = "while it was measured" if self._stretches else "before its first batch"
            raise NotProfiled(f"{name}: {ended.status} {when}: {ended.reason}")
        if not self._stretches:
            within = f" within {limit_s:g} s" if ended.status == "killed" else ""
            raise NotProfiled(f"{name}: no loop that trains got a batch of a DataLoader or a feed{within}")
        costs = costs_of(self._stretches)
        if costs is None:
            raise NotProfiled(f"{name}: it got too few batches to be measured")
        gpu_bytes, sm_share = self._of_gpu()
        return replace(
            costs,
            sm_share=sm_share,
            memory_bytes=int((gpu_bytes if has_gpus else self._runner.memory_bytes) / SPARE) or None,
            data=self._data,
            samples_per_epoch=self._samples_per_epoch or round(self._stretches[0].samples) or None,
        )

    @property
    def _phase(self) -> Phase:
        return self._stretches[-1].phase if self._stretches else "start"

    def _look(self) -> None:
        with suppress(FileNotFoundError):
            lines = self._path.read_bytes().split(b"\n")[:-1]
            try:
                self._stretches = [msgspec.json.decode(line, type=Stretch) for line in lines]
            except msgspec.ValidationError:  # a NaN
                why = (
                    "nobody can count its batches' samples: give its loader a batch_size, or schedule it as it is"
                )
                raise NotProfiled(f"{self._record.name}: {why}") from None
        if not self._data and (name := next((each.feed for each in self._stretches if each.feed), "")):
            self._data = data_of(name, self._runner.suffix)
            self._samples_per_epoch = next((each.samples_per_cycle for each in feeds() if each.name == name), None)

    def _of_gpu(self) -> tuple[float, float]:
        """Return the GPU memory that it took, and the part of the multiprocessors that its replay kept busy."""
        series = self._store.series(self._record.id)
        memory = series.get("gpu.memory_bytes")
        until_s = [time.time() - time.monotonic() + each.until_s for each in _of(self._stretches, "replay")]
        shares = [
            float(found.mean()) / 100
            for name, each in series.items()
            if name.endswith(_SM_ACTIVE)
            and (found := each.values[(each.times_s > until_s[0]) & (each.times_s <= until_s[-1])]).size
        ]
        return float(memory.values.max()) if memory else 0.0, max(shares, default=0.0) or 1.0


def costs_of(stretches: Sequence[Stretch]) -> Profile | None:
    """Return what a sample takes, from the stretches of a run; None if they are too few.

    Preparation is the CPU time of a feeder and its workers for a sample that it published, or that of a
    DataLoader's workers for one that came. Where the loader works in the script's own process, it is what that
    takes while the loader alone is asked. What a script does with a batch, its replay shows.
    """
    loader, as_it_is, replay = (_of(stretches, phase) for phase in ("loader", "as it is", "replay"))
    loads = next((each for each in (loader, as_it_is) if _tells(each)), None)
    if not replay or not loads:
        return None
    start, step_s = stretches[0], _a_sample(replay, "own_s")
    in_script_s = max(0.0, _a_sample(loads, "own_s") - (step_s if loads is as_it_is else 0.0))
    prepared_s = _a_sample(loads, "children_s")
    fed = [each for each in stretches if each.phase != "start" and each.feed]
    if published := sum(each.published for each in fed):  # also what was loaded ahead in a replay
        prepared_s = sum(each.feeder_s for each in fed) / published
        # Cores that all compute give less in a second of CPU time than one that does so alone, as in a replay.
        if as_it_is:
            in_script_s = max(in_script_s, _a_sample(as_it_is, "own_s") - step_s)
    elif prepared_s < in_script_s:
        prepared_s, in_script_s = prepared_s + in_script_s, 0.0
    return Profile(
        preparation_s=prepared_s,
        own_s=step_s + in_script_s,
        gpu_s=statistics.median(each.seconds / each.samples for each in replay),
        start_s=start.own_s,
        feed_start_s=max(0.0, start.feeder_s - start.published * prepared_s),
    )


def _of(stretches: Sequence[Stretch], phase: Phase) -> list[Stretch]:
    """Return the stretches of a phase: those in which it had settled, if there are any."""
    found = [each for each in stretches if each.phase == phase]
    return [each for each in found if not each.settles] or found


def _tells(stretches: Sequence[Stretch]) -> bool:
    """Return whether something was loaded, and not only taken out of a feed's window."""
    return any(each.published or not each.feed for each in stretches)


def _a_sample(stretches: Sequence[Stretch], figure: str) -> float:
    return sum(getattr(each, figure) for each in stretches) / sum(each.samples for each in stretches)
