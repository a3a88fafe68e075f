"""Plans again at each event, with what was measured meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from penstock.schedule.jobs import Job
from penstock.schedule.planner import Planner
from penstock.schedule.simulate import JobStart, Running, State

Learn = Callable[[Job], Job]
"""What was measured of a job, in place of what was believed; the job itself, if nothing was."""


class Replanner:
    """A policy that follows the best plan, found anew at each event."""

    def __init__(self, believed: Sequence[Job], planner: Planner, learn: Learn) -> None:
        self._believed = [*believed]
        self._planner = planner  # finds the plans
        self._learn = learn  # asked of each job that runs, at each event
        self._at_s = -1.0
        self._planned: list[JobStart] = []

    def __call__(self, state: State) -> JobStart | None:
        if state.now_s > self._at_s:
            self._at_s = state.now_s
            self._planned = self._starts_now(state)
        return self._planned.pop(0) if self._planned else None

    def _starts_now(self, state: State) -> list[JobStart]:
        for i in state.placed:
            self._believed[i] = self._learn(self._believed[i])
        known = [*state.placed, *state.waiting]
        jobs = [replace(self._believed[i], arrives_s=0.0, after=()) for i in known]
        running = list[Running]()
        for k, i in enumerate(state.placed):
            jobs[k] = replace(jobs[k], samples=max(state.left[i], 1e-9), start_s=0.0)
            running.append(Running(k, state.placed[i].gpus, state.started_s[i] - state.now_s))
        runs = self._planner.plan(jobs, running).outcome.runs
        return [JobStart(known[k], runs[k].gpus) for k in range(len(running), len(known)) if runs[k].start_s <= 0]
