"""Which feed each run reads: names that change as little as the plan's division allows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from penstock.schedule.jobs import GpuMachine, Job


def suffixes(parts: Sequence[Sequence[str]], now: Mapping[str, str], new: Callable[[], str]) -> dict[str, str]:
    """Return a suffix for each run: of a feed that most members of its part read now, if there is one.

    Each of ``parts`` names the runs of a feed. ``now`` is the suffix of the feed that a run reads now, empty of
    one that has yet to start; ``new`` returns one that no feed has had.
    """
    found, taken = dict[str, str](), set[str]()
    for part in sorted(parts, key=lambda part: -len(part)):
        used = Counter(now[name] for name in part if now[name] and now[name] not in taken)
        suffix = used.most_common(1)[0][0] if used else new()
        taken.add(suffix)
        found |= dict.fromkeys(part, suffix)
    return found


def feed_workers(members: Sequence[Job], machine: GpuMachine) -> int:
    """Return how many workers keep up with the members of a feed, of those that have a core."""
    prepared_s = max(job.preparation_s for job in members)
    cpu_s = prepared_s + sum(job.own_s for job in members)
    sample_s = max(*(max(job.gpu_s, job.own_s) for job in members), cpu_s / machine.cores)
    return max(1, min(math.floor(machine.cores), math.ceil(prepared_s / sample_s)))
