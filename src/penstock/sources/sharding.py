"""How an epoch's rows become batches, also for trainers that are themselves data-parallel."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from penstock.basics.sizes import whole_number
from penstock.errors import BadSetting


class RankSlice(NamedTuple):
    """Rows [start, stop) of what remains are this rank's next batch; ``taken`` rows go to all ranks."""

    start: int
    stop: int
    taken: int


def rank_of(shard: Any) -> tuple[int, int] | None:
    """Return ``shard=`` as (rank, world); None for a trainer that is not data-parallel.

    Raises:
        BadSetting: it is none.
    """
    if shard is None:
        return None
    try:
        rank, world = shard
    except (TypeError, ValueError):
        raise BadSetting(f"shard={shard!r}: it must be (rank, world), such as (0, 4)") from None
    world = whole_number(f"shard={shard!r}: world", world, 1, 2**31 - 1)
    return whole_number(f"shard={shard!r}: rank", rank, 0, world - 1), world


def next_slice(
    remaining: int, batch_size: int, rank: int, world: int, *, pad: bool = False, full: bool = False
) -> RankSlice | None:
    """Return a rank's next batch when ``remaining`` rows of the epoch are left; None at its end.

    Every rank gets the same number of batches. The rows left at the end are
    split evenly; if they are fewer than the ranks, the step before them is
    ``world`` rows shorter, so that every rank gets some. With ``pad`` all
    batches of a step are equally long: the last one's overlap; with ``full`` too, as far as the rows that are left
    can fill them.
    """
    taken = min(remaining, batch_size * world)
    if pad:
        each = min(taken, batch_size) if full else -(-taken // world)
        gaps = max(1, world - 1)
        start = (rank * (taken - each) + gaps // 2) // gaps
        return RankSlice(start, start + each, taken) if taken else None
    if 0 < remaining - taken < world:
        taken = remaining - world
    if taken < world:
        return None
    each, extra = divmod(taken, world)
    start = rank * each + min(rank, extra)
    return RankSlice(start, start + each + (rank < extra), taken)


def batches(samples: int, batch_size: int, world: int, *, drop_last: bool, pad: bool = False) -> int:
    """Return how many batches ``next_slice`` gives each rank in an epoch.

    With ``pad`` they are those of a ``DataLoader`` over torch's ``DistributedSampler``.

    Raises:
        BadSetting: these samples cannot be split evenly.
    """
    if pad:
        samples, world = -(-samples // world), 1
    step = batch_size * world
    if world > 1 and not drop_last and (samples < world or (batch_size == 1 and samples % world)):
        raise BadSetting(
            f"{samples} samples cannot be split among {world} ranks into equally many batches of at most "
            f"{batch_size}: {samples % world} are left over. Pass drop_last=True (or pad=True, to share() or "
            "attach()), or use another batch_size"
        )
    return samples // step if drop_last else -(-samples // step)


def drawn(count: int, start: int, stop: int, *words: int) -> tuple[int, ...]:
    """Draw ``count`` different positions in [start, stop), sorted; which ones depends on ``words`` alone.

    Each set of positions is equally likely (R. Floyd, in J. Bentley,
    "Programming pearls: a sample of brilliance", CACM 30:9, 1987). The raw
    words of PCG64 are fixed across versions of NumPy (NEP 19).
    """
    generator = np.random.PCG64(np.random.SeedSequence(words))
    raw = [int(generator.random_raw()) for _ in range(count)]
    chosen: set[int] = set()
    for last, word in zip(range(stop - start - count, stop - start), raw, strict=True):
        position = word * (last + 1) >> 64
        chosen.add(last if position in chosen else position)
    return tuple(start + position for position in sorted(chosen))
