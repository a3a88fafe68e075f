"""What follows from trials: answers in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from penstock.basics.results import short
from penstock.basics.sizes import size_text
from penstock.fit.search import CLOSE, RESERVE, Memory, Tried
from penstock.fit.trial import Trial
from penstock.runs.compare import MUCH_WAITING

_LIMITS = {
    "storage": "the disk is busy",
    "pack": "the cores are busy with preparing samples",
    "others": "other programs occupy the machine",
    "workers": "cores and disk are free: memory bandwidth, a lock or the network holds the workers up",
}


_FURTHER = 8
"""Memory is extrapolated to at most this many times the largest batch size that ran."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What was found."""

    chosen: int | None  # the setting to take; None if none works
    trials: tuple[Trial, ...]  # what each setting took, by rising settings
    failed: tuple[Trial, ...]  # those that failed
    sentences: tuple[str, ...]  # the answer, and what else follows
    largest: int | None = None
    """Of batch sizes, the largest that leaves a reserve of the memory; None if nobody knows, or any."""
    predicted_bytes: tuple[int, ...] = ()
    """Memory that the chosen batch size is predicted to take, and the largest."""
    share: bool = False  # of trainings at once, whether those that were chosen read one feed


class Limit(NamedTuple):
    """A memory that is to suffice."""

    nbytes: int
    whose: str  # what it is, in words


def of_batch_sizes(tried: Tried, limit: Limit, cost: str) -> Answer:
    """Choose a batch size."""
    fits = tried.within((1 - RESERVE) * limit.nbytes)
    best, chosen = fits.best, fits.chosen
    if best is None or chosen is None:
        return _none(tried, cost)
    sentences = [
        f"Take a batch size of {chosen.value:,}: {short(chosen.samples_per_s)} samples/s, "
        + (
            "the best of those tried."
            if chosen.value == best.value
            else f"within {CLOSE:.0%} of the best ({short(best.samples_per_s)}, at {best.value:,})."
        )
    ]
    memory, largest = Memory.of(tried.trials), None
    ran = tried.good[-1].value
    fails = next((each for each in sorted(tried.trials, key=_value) if each.failed and each.value > ran), None)
    room = f"{size_text(limit.nbytes)} of {limit.whose}"
    if fails is not None:
        sentences.append(f"{ran:,} ran, {fails.value:,} failed: {fails.failed}.")
    elif fits.good[-1].value < ran:
        sentences.append(f"{ran:,} ran, and takes more than {1 - RESERVE:.0%} of {room}.")
    else:
        sentences.append(f"All that were tried fit {room}, up to {ran:,}.")
    if memory is not None:
        most = min(_FURTHER * ran, fails.value - 1 if fails else _FURTHER * ran)
        full = memory.largest(limit.nbytes)
        largest = most if full is None else max(chosen.value, min(full, most))
        if full is not None and ran < full < most:
            sentences.append(
                f"As memory grows with the size, {room} is full, but for {RESERVE:.0%}, at about {full:,}, which "
                "was not tried."
            )
    elif fails is not None and fails.out_of_memory:
        largest = ran
    if chosen.memory_bytes:
        beside = int((1 - RESERVE) * limit.nbytes / chosen.memory_bytes)
        trainings = f"{beside:,} such trainings fit" if beside > 1 else "one such training fits"
        sentences.append(
            f"At {chosen.value:,} it takes {size_text(chosen.memory_bytes)}: {trainings} side by side, as far as "
            "memory goes."
        )
    else:
        sentences.append("What memory it takes is not known here, so nothing is said of how many fit.")
    if chosen.waiting >= MUCH_WAITING:
        sentences.append(
            f"It waits {chosen.waiting:.0%} of its time for data there: see `penstock advise workers` first."
        )
    sentences.append("The learning rate that suits another batch size is yours to find.")
    predicted = tuple(memory.at(size) for size in (chosen.value, largest) if size) if memory else ()
    return _answer(tried, chosen.value, sentences, cost, largest=largest, predicted_bytes=predicted)


def of_workers(tried: Tried, cores: float, cost: str) -> Answer:
    """Choose how many workers load."""
    best, chosen = tried.best, tried.chosen
    if best is None or chosen is None:
        return _none(tried, cost)
    most = tried.good[-1]
    if most.value > tried.good[0].value and 0 < most.processes == tried.good[0].processes:
        few, many = tried.good[0].value, most.value
        ignored = f"It has as many processes with {few} workers as with {many}: name the argument that sets them."
        return _answer(tried, None, [ignored], cost)
    sentences = [f"Take {_workers(chosen.value)}: {short(chosen.samples_per_s)} samples/s."]
    if chosen.value == most.value:
        sentences.append(
            f"That is the most that was tried, on {_cores(cores)}"
            + (f"; it still waits {chosen.waiting:.0%} of its time." if chosen.waiting >= MUCH_WAITING else ".")
        )
    more = [each for each in tried.good if each.value > chosen.value]
    if more and chosen.waiting < MUCH_WAITING:
        sentences.append(
            f"More bring nothing: it waits {chosen.waiting:.0%} of its time for data, and computes in the rest."
        )
    elif more:
        why = _LIMITS.get(
            more[-1].advice or chosen.advice, f"it waits for data with {_workers(more[-1].value)}, too"
        )
        sentences.append(f"More bring nothing, though it waits {chosen.waiting:.0%} of its time for data: {why}.")
    if chosen.value and mostly_sleeps(chosen, cores):
        sentences.append(
            f"Its workers mostly sleep: {_workers(chosen.value)} kept {chosen.busy_cores:.2g} of {_cores(cores)} "
            "busy. They wait for a disk, a network or each other, not for cores."
        )
    if chosen.value:
        for_four = 4 * chosen.value
        fits = "more than" if for_four > cores else "of"
        sentences.append(
            f"Four such trainings with loaders of their own want {for_four:,} workers, {fits} the {_cores(cores)} "
            f"here; one shared feed (`penstock run --share`) feeds all four with {chosen.value:,}, as each "
            "sample is prepared once."
        )
    return _answer(tried, chosen.value, sentences, cost)


def of_together(own: Tried, shared: Tried, fit: int, limit: Limit, cost: str) -> Answer:
    """Choose how many trainings run at once, and whether they share.

    Args:
        own: What those with loaders of their own took.
        shared: What those on one feed took.
        fit: How many fit the memory, as one alone takes it.
        cost: What the trials took, in words.
    """
    arms = [(each.chosen, each) for each in (own, shared) if each.chosen is not None]
    if not arms:
        return _none(own, cost)
    best = max((arm.best.samples_per_s for _, arm in arms if arm.best), default=0.0)
    close = [chosen for chosen, _ in arms if chosen and chosen.samples_per_s >= (1 - CLOSE) * best]
    chosen = close[0]
    alone = next((each for each in own.good if each.value == 1), chosen)
    how = "with --share" if chosen.share else "with loaders of their own"
    tried_more = any(each.value > 1 for each in (*own.good, *shared.good))
    sentences = [
        f"Run {chosen.value:,} at once {how}: {short(chosen.samples_per_s)} samples/s together, "
        f"{chosen.samples_per_s / alone.samples_per_s:.2f} times one alone."
        if chosen.value > 1
        else f"Run one after the other: one alone gets {short(alone.samples_per_s)} samples/s"
        + (f", and more together no more than {CLOSE:.0%} above that." if tried_more else ".")
    ]
    if chosen.value > 1:
        slower = chosen.value * alone.samples_per_s / chosen.samples_per_s
        sentences.append(f"Each of them takes {slower:.2f} times as long for an epoch as one alone.")
    if chosen.value >= fit:
        sentences.append(f"More do not fit {size_text(limit.nbytes)} of {limit.whose}.")
    for tried, words in ((own, "loaders of their own"), (shared, "one shared feed")):
        if tried.best is not None and tried.best.value > 1:
            sentences.append(
                f"The most with {words}: {short(tried.best.samples_per_s)} samples/s, {tried.best.value:,} at "
                f"once, waiting {tried.best.waiting:.0%} of their time."
            )
    both = Tried([*own.trials, *shared.trials])
    return _answer(both, chosen.value, sentences, cost, trials=(*own.good, *shared.good), share=chosen.share)


def mostly_sleeps(trial: Trial, cores: float) -> bool:
    """Return whether workers left at least half of the cores idle that they could have used."""
    return 0 < trial.busy_cores < min(trial.value, cores) / 2


def _value(trial: Trial) -> int:
    return trial.value


def _cores(count: float) -> str:
    return "one core" if count == 1 else f"{count:g} cores"


def _workers(count: int) -> str:
    return "no workers" if count == 0 else "one worker" if count == 1 else f"{count:,} workers"


def _none(tried: Tried, cost: str) -> Answer:
    lacked = all(each.out_of_memory for each in tried.trials if each.failed)
    last = next((each for each in reversed(tried.trials) if each.failed), None)
    if last is None:
        why = f"{tried.good[0].name} takes {size_text(tried.good[0].memory_bytes)}" if tried.good else "no time"
    else:
        why = f"at {last.name}: {last.failed}"
    sentences = [f"Nothing {'fits the memory' if lacked else 'was measured'} ({why})."]
    if last is not None and last.run_id:
        sentences.append(f"What it printed: penstock runs logs {last.run_id}")
    return _answer(tried, None, sentences, cost)


def _answer(
    tried: Tried,
    chosen: int | None,
    sentences: Sequence[str],
    cost: str,
    trials: Sequence[Trial] = (),
    **more: object,
) -> Answer:
    good = {(each.value, each.share) for each in tried.trials if not each.failed}
    failed = {(each.value, each.share): each for each in tried.trials if each.failed}
    told = [each for key, each in failed.items() if key not in good]
    found = list(sentences)
    reasons = dict.fromkeys(each.failed for each in told)
    found += [
        f"At {', '.join(each.name for each in told if each.failed == why)}: {why}."
        for why in reasons
        if not any(why in sentence for sentence in sentences)
    ]
    return Answer(
        chosen=chosen,
        trials=tuple(trials or tried.good),
        failed=tuple(told),
        sentences=(*found, cost),
        **more,  # pyright: ignore[reportArgumentType]
    )
