"""What each world must reach by pace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.claim import claim
from benchmarks.pace.worlds import Trial

Found = dict[str, list[dict[str, Trial]]]
FROM_S = {"images": 60, "validates": 100, "validates between": 100, "equal": 60}
"""From when rates are counted; else from the first second on."""
STOPPED_S = 180, 360


def claims(found: Found) -> Iterator[dict[str, Any]]:
    """Judge each repeat by its worst run."""
    for name, arms in found.items():
        from_s = FROM_S["images"] if name.startswith("1 : 2") else FROM_S.get(name, 0)
        pace = [each["pace"] for each in arms if "pace" in each]
        if name.endswith("computing"):
            ends = [[ratio[0], ratio[-1]] for each in arms for ratio in [ratios(each, "together", from_s)]]
            yield claim(f"{name}: slowest and fastest, of one feed", "×", [min(each) for each in ends], least=0.97)
            sums = [
                relative(each["pace"], from_s) / max(relative(each[arm], from_s) for arm in ("together", "own"))
                for each in arms
            ]
            yield claim(f"{name}: the sum of relative rates, of the best", "×", sums, least=0.95)
        elif name.startswith(("1 : 2", "validates")):
            worst = [min(ratios(each, "own", from_s)) for each in arms]
            yield claim(f"{name}: of feeds of their own", "×", worst, least=0.95)
        elif name.startswith(("lock", "equal")):
            least = 0.99 if name == "equal" else 0.95 if name == "lock later" else 0.98
            worst = [min(ratios(each, "together", from_s)) for each in arms]
            yield claim(f"{name}: of one feed", "×", worst, least=least)
        if name == "1 : 2":
            gaps = [leaving(each) for each in pace]
            yield claim("a fast run's longest wait as it leaves", "s", [gap for gap, _ in gaps], most=0.5)
            yield claim("the slow one, in the 10 s from then on", "×", [rate for _, rate in gaps], least=0.95)
            memory = [each["pace"].pss_bytes / each["own"].pss_bytes for each in arms]
            yield claim("1 : 2: memory (PSS), of feeds of their own", "×", memory, most=1.1)
        elif name == "equal":
            yield claim("equal: splits in 10 minutes", "", [each.splits() for each in pace], most=2)
            memory = [each["pace"].pss_bytes / each["together"].pss_bytes for each in arms]
            yield claim("equal: memory (PSS), of one feed", "×", memory, most=1.02)
        elif name in ("slow one ends", "as fast later"):
            yield claim(f"{name}: feeds at the end", "", [each.feeds_at_end for each in pace], most=1)
            shares = [each.prepared / (each.rates(400)[0] * each.counted_s) for each in pace]
            yield claim(f"{name}: samples prepared, of those that one run takes", "×", shares, most=1.05)
        elif name == "stopped":
            kept = [
                min(a / b for a, b in zip(each.rates(*STOPPED_S)[:-1], each.rates(60, STOPPED_S[0]), strict=False))
                for each in pace
            ]
            yield claim("one is stopped for 3 minutes: the others, of before", "×", kept, least=0.9)


def ratios(arms: dict[str, Trial], of: str, from_s: float) -> list[float]:
    """Return the rate of each run by pace, of that in another arm."""
    return [a / b for a, b in zip(arms["pace"].rates(from_s), arms[of].rates(from_s), strict=True)]


def relative(trial: Trial, from_s: float) -> float:
    """Return the sum of the runs' rates, each of what it could train."""
    pairs = zip(trial.rates(from_s), trial.world.runs, strict=True)
    return sum(rate * run.step_s / run.rows for rate, run in pairs)


def leaving(trial: Trial) -> tuple[float, float]:
    """Return the longest wait of the run that left, about then, and the other's rate after, of before."""
    fast, slow = trial.took
    feeds = fast.feeds
    at = next((i for i in range(1, len(feeds)) if "-pace-" in feeds[i] and feeds[i - 1] != feeds[i]), None)
    if at is None:
        return 999.0, 0.0  # it did not leave
    before = sum(slow.images[max(0, at - 10) : at]) / min(10, at) or 1.0
    return max(fast.longest_wait_s[at - 1 : at + 2]), sum(slow.images[at : at + 10]) / 10 / before


def claims_of_costs(costs: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Judge what pace costs runs that only take; arms of a repeat follow each other."""
    pairs = [*zip(costs[::2], costs[1::2], strict=True)]
    for trainers in sorted({pace["trainers"] for pace, _ in pairs}):
        mine = [(pace, one) for pace, one in pairs if pace["trainers"] == trainers]
        slowest = [pace["slowest"] / one["slowest"] for pace, one in mine]
        yield claim(f"{trainers} only take: the slowest, of together", "×", slowest, least=0.97)
        cpu = [pace["cpu_us"] / one["cpu_us"] for pace, one in mine]
        yield claim(f"{trainers} only take: CPU of a batch, of together", "×", cpu, most=1.01)
        thread = [pace["thread_cores"] for pace, _ in mine]
        yield claim(f"{trainers} only take: cores that pace's thread uses", "cores", thread, most=0.005)
