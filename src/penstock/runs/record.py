"""Plans of runs and records of runs: plain values, as the store keeps them."""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

from penstock.autosharing.options import ShareOptions
from penstock.runs.command_options import options_of


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    command: tuple[str, ...]  # the program and its arguments, as they are started
    name: str  # what people call it; unique within its group
    parameters: dict[str, str] = {}  # what a grid filled in, by name
    devices: tuple[str, ...] = ()
    """GPUs that it may use, by UUID, or by number where they are simulated; empty for those that are seen."""
    directory: str  # its working directory, absolute
    time_limit_s: float | None = None  # seconds after which it is ended
    mps_threads: float | None = None  # percentage of a GPU's threads that it may use in mode mps; None for all
    mps_memory_bytes: int | None = None  # memory of each GPU that it may use in mode mps; None for all
    watch_dataloader: bool = False  # whether the waits for its plain DataLoaders are recorded
    watch_metrics: bool = False  # whether what it logs with other libraries is kept
    profile: tuple[str, ...] = ()
    """Profilers that look at it, each with its options: "torch 10-20", "nsys --trace=cuda"."""
    share: ShareOptions | None = None  # how its loaders are shared with other runs; None if they are not
    after: tuple[str, ...] = ()  # names of the runs and groups of its file that must have ended before it starts
    gpus: int | None = None  # how many GPUs it computes on; None where its file does not say
    memory_bytes: int | None = None
    """Memory that it needs on each of its GPUs, or of the host where there is none; None where its file does not
    say."""
    priority: float = 1.0  # its weight in a schedule's objective
    deadline_s: float | None = None  # seconds from a schedule's start by which it must have ended
    preempt: bool = False  # whether a scheduler may end it and start it again: it saves checkpoints and resumes
    feed: str = "auto"
    """What it reads: "auto" for what it turns out to; "none" for data that it shares with nobody; or
    FILE.py:FUNCTION, the function that makes its loader."""
    epochs: int | None = None  # how often it reads its data; None where its file does not say
    filled: tuple[str, ...] = ()  # options of its command whose values are those of a grid

    @property
    def settings(self) -> dict[str, str]:
        """What its script is asked for, by name: what a grid filled in, first, and its command's other options."""
        options = {name: value for name, value in options_of(self.command).items() if name not in self.filled}
        return {**self.parameters, **options, **self.parameters}


class MachinePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says of the machine that its runs share."""

    gpus: tuple[str, ...] | int | None = None  # GPUs by UUID, or how many; None for those that are there
    cores: float | None = None  # CPU cores that its runs may keep busy; None for those that this process may use
    memory_bytes: int | None = None
    """Memory of each GPU, or of the host where there is none; None for what is there."""
    objective: str = "makespan"  # what a schedule makes small: "makespan" or "jct"
    simulated: bool = False  # whether its GPUs are numbers only, whose locks the runs take themselves
    in_turn: bool = False  # whether its groups run one after the other


class GroupPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that belong together."""

    name: str  # what people call the group
    mode: str = "plain"
    """One after the other ("alone"), or all at once: in time slices ("plain"), by "mps", each in an instance of a
    profile ("mig:PROFILE"; several, joined by commas, are one for each run)."""
    runs: tuple[RunPlan, ...]  # its runs, in order
    listeners: tuple[str, ...] | None = None  # names of what is sampled; None for all that can run here


Status = Literal["waiting", "running", "finished", "failed", "out_of_memory", "timed_out", "killed", "lost"]
STATUSES: tuple[Status, ...] = get_args(Status)
ENDED = frozenset(STATUSES) - {"waiting", "running"}
"""Statuses of runs that have ended; they never change."""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    id: str  # its key in the store; short enough to type
    name: str
    group: str  # name of its group
    group_id: str  # key of its group: two groups may have one name
    mode: str  # mode of its group
    index: int  # its place in its group, from 0
    status: Status  # "lost" if its keeper died without recording an end
    exit_code: int | None = None
    """Its exit code, 128 + n for signal n; None until it has ended, or if nobody knows."""
    reason: str = ""  # why it was ended, or the last line that a crash printed; else empty
    began: float | None = None  # when it started, in seconds since 1970; None while it waits
    seconds: float | None = None  # how long it has run, or ran
    plan: RunPlan
    given: dict[str, str] = {}  # parameters that its script gives it
    keeper: tuple[int, int] | None = None
    """Its keeper's process, and when that started in clock ticks since boot; None while it waits."""
    pid: int | None = None  # process of its command; None while it waits
    note: str = ""  # what somebody wrote of it
    tags: tuple[str, ...] = ()  # words by which it is found again
    archived: bool = False  # whether lists leave it out unless they are asked for it

    @property
    def parameters(self) -> dict[str, str]:
        """Its parameters by name: its plan's, and what its script gives besides (``a_b`` is ``--a-b``)."""
        settings = self.plan.settings
        known = {name.replace("-", "_") for name in (*settings, *self.plan.filled)}
        return settings | {
            name: value for name, value in self.given.items() if name.replace("-", "_") not in known
        }

    @property
    def fields(self) -> dict[str, Any]:
        """What JSON has of it, by name: all but its plan, its keeper and what its script gives."""
        return {k: v for k, v in msgspec.structs.asdict(self).items() if k not in ("plan", "keeper", "given")}
