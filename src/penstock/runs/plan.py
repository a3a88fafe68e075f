"""What is to be run: commands, in groups that start together. Plain values, made from a command line or a file."""

from __future__ import annotations

import msgspec

from penstock.autosharing.hook import ShareOptions


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
        watch_dataloader: Whether the waits for its plain DataLoaders are kept.
        profile: Profilers that look at it, each with its options: "torch 10-20", "nsys --trace=cuda".
        share: How its loaders are shared with other runs; None if they are not.
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
    profile: tuple[str, ...] = ()
    share: ShareOptions | None = None


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
