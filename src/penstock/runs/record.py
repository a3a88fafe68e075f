"""Plans of runs and records of runs: plain values, as the store keeps them."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from penstock.autosharing.options import ShareOptions
from penstock.runs.words import options_of


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        command: The program and its arguments, as they are started.
        name: What people call it; unique within its group.
        parameters: What a grid filled in, by name.
        devices: GPUs that it may use, by UUID; empty for those that ``penstock run`` sees.
        directory: Its working directory, absolute.
        time_limit_s: Seconds after which it is ended.
        mps_threads: Percentage of a GPU's threads that it may use in mode mps; None for all.
        mps_memory_bytes: Memory of each GPU that it may use in mode mps; None for all.
        mig_changes: Whether mode mig may make instances for its group, as root, and take them back.
        watch_dataloader: Whether the waits for its plain DataLoaders are recorded.
        watch_metrics: Whether what it logs with other libraries is kept.
        profile: Profilers that look at it, each with its options: "torch 10-20", "nsys --trace=cuda".
        share: How its loaders are shared with other runs; None if they are not.
        after: Names of the runs and groups of its file that must have ended before it starts.
        gpus: How many GPUs it computes on; None where its file does not say.
        memory_bytes: Memory that it needs on each of its GPUs, or of the host where there is none; None where its
            file does not say.
        priority: Its weight in a schedule's objective.
        deadline_s: Seconds from a schedule's start by which it must have ended.
        preempt: Whether a scheduler may end it and start it again: it saves checkpoints and resumes.
        feed: What it reads: "auto" for what it turns out to; "none" for data that it shares with nobody; or
            FILE.py:FUNCTION, the function that makes its loader.
        epochs: How often it reads its data; None where its file does not say.
    """

    command: tuple[str, ...]
    name: str
    parameters: dict[str, str] = {}
    devices: tuple[str, ...] = ()
    directory: str
    time_limit_s: float | None = None
    mps_threads: float | None = None
    mps_memory_bytes: int | None = None
    mig_changes: bool = False
    watch_dataloader: bool = False
    watch_metrics: bool = False
    profile: tuple[str, ...] = ()
    share: ShareOptions | None = None
    after: tuple[str, ...] = ()
    gpus: int | None = None
    memory_bytes: int | None = None
    priority: float = 1.0
    deadline_s: float | None = None
    preempt: bool = False
    feed: str = "auto"
    epochs: int | None = None

    @property
    def settings(self) -> dict[str, str]:
        """What its script is asked for, by name: what a grid filled in, first, and the options of its command."""
        return {**self.parameters, **options_of(self.command), **self.parameters}


class MachinePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says of the machine that its runs share.

    Attributes:
        gpus: GPUs by UUID, or how many; None for those that are there.
        cores: CPU cores that its runs may keep busy; None for those that this process may use.
        memory_bytes: Memory of each GPU, or of the host where there is none; None for what is there.
        objective: What a schedule makes small: "makespan" or "jct".
        simulated: Whether its GPUs are numbers only, whose locks the runs take themselves.
        in_turn: Whether its groups run one after the other.
    """

    gpus: tuple[str, ...] | int | None = None
    cores: float | None = None
    memory_bytes: int | None = None
    objective: str = "makespan"
    simulated: bool = False
    in_turn: bool = False


class GroupPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that belong together.

    Attributes:
        name: What people call the group.
        mode: "alone" (one after the other), "plain" (all at once, sharing the GPU in time slices), "mps", or
            "mig:PROFILE" (all at once, each in an instance of this profile; joined by commas, one for each run).
        runs: Its runs, in order.
        listeners: Names of what is sampled; None for all that can run here.
    """

    name: str
    mode: str = "plain"
    runs: tuple[RunPlan, ...]
    listeners: tuple[str, ...] | None = None


Status = Literal["waiting", "running", "finished", "failed", "out_of_memory", "timed_out", "killed", "lost"]
STATUSES: tuple[Status, ...] = get_args(Status)
ENDED = frozenset(STATUSES) - {"waiting", "running"}
"""Statuses of runs that have ended; they never change."""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        id: Its key in the store; short enough to type.
        group: Name of its group.
        group_id: Key of its group: two groups may have one name.
        mode: Mode of its group.
        index: Its place in its group, from 0.
        status: "lost" if its keeper died without recording an end.
        exit_code: Its exit code, 128 + n for signal n; None until it has ended, or if nobody knows.
        reason: Why it was ended, or the last line that a crash printed; else empty.
        began: When it started, in seconds since 1970; None while it waits.
        seconds: How long it has run, or ran.
        keeper: Its keeper's process, and when that started in clock ticks since boot; None while it waits.
        pid: Process of its command; None while it waits.
        note: What somebody wrote of it.
        tags: Words by which it is found again.
        archived: Whether lists leave it out unless they are asked for it.
    """

    id: str
    name: str
    group: str
    group_id: str
    mode: str
    index: int
    status: Status
    exit_code: int | None = None
    reason: str = ""
    began: float | None = None
    seconds: float | None = None
    plan: RunPlan
    keeper: tuple[int, int] | None = None
    pid: int | None = None
    note: str = ""
    tags: tuple[str, ...] = ()
    archived: bool = False
