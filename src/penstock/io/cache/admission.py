"""What a cache admits: which part of the samples, and of images their bytes as they are stored or their pixels.

Source: the rule of Plumber (Kuchnik et al., MLSys 2022) and Cachew (Graur et al., ATC 2022), which put a cache
where it makes the slowest part of a cycle shorter; here for what comes before the first random step.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from penstock.io.cache.tiers import CacheLayout

LEAST_RECORDS = 8
"""A sample that takes more than this part of the room is not kept, so that there is room for others."""
_MORE, _SPREADS = 1.05, 4


class Admitted(NamedTuple):
    """Which part of the samples is kept in memory, and which part there or in the folder."""

    memory: float
    all: float

    @classmethod
    def of(cls, layout: CacheLayout, samples: int, sample_bytes: float) -> Admitted:
        """Return the parts that there is room for, and a little more, so that all of the room is used."""
        own = max(1.0, samples * sample_bytes / (1 + len(layout.others)))
        memory, both = layout.memory_bytes / own, (layout.memory_bytes + layout.limit) / own
        # Hashes do not admit that part exactly, but one that varies as a binomial share does.
        spread = _SPREADS * math.sqrt(max(0.0, 1 - both) / max(1e-9, both * samples))
        return cls(min(1.0, memory), min(1.0, both * (_MORE + spread)))


class ImageCosts(NamedTuple):
    """What an image takes, on average."""

    nbytes: float  # its size as it is stored
    pixel_bytes: float  # its size when decoded
    read_s: float  # time for which a worker waits for it where it lies, in seconds
    decode_s: float  # CPU time to decode what its crops need
    finish_s: float  # CPU time for all else


class CacheChoice(NamedTuple):
    """What to keep, and what is expected of it."""

    kind: str  # ``"bytes"`` or ``"pixels"``
    part: float  # the part of the images for which there is room
    images_per_s: float  # images that workers can prepare when the cache is full


def choose_kept(
    costs: ImageCosts,  # what was measured when nothing was kept
    *,
    images: int,  # images in a cycle
    workers: int,  # processes that prepare them
    cores: float,  # cores that they have
    reads_ahead: bool,  # whether workers decode while they wait for the store
    memory_bytes: float,  # room in memory
    disk_bytes: float,  # room on the disk
    disk_bytes_per_s: float,  # what the disk gives
) -> list[CacheChoice]:
    """Return what may be kept, first what makes cycles shortest once the cache is full.

    A cycle takes what the slowest of these takes: the workers, the cores, the disk, and the store, which gives no
    more than it gave when nothing was kept.
    """
    first_s = costs.read_s + costs.decode_s + costs.finish_s
    choices: list[CacheChoice] = []
    for kind, nbytes, prepare_s in (
        ("bytes", costs.nbytes, costs.decode_s + costs.finish_s),
        ("pixels", costs.pixel_bytes, costs.finish_s),
    ):
        in_memory = min(1.0, memory_bytes / (images * nbytes))
        on_disk = min(1.0 - in_memory, disk_bytes / (images * nbytes))
        part, disk_s = in_memory + on_disk, on_disk * nbytes / disk_bytes_per_s
        cpu_s = (1 - part) * (costs.decode_s + costs.finish_s) + part * prepare_s
        store_s = (1 - part) * (first_s if reads_ahead else costs.read_s)
        wait_s = 0.0 if reads_ahead else store_s
        image_s = max((cpu_s + wait_s + disk_s) / workers, cpu_s / cores, store_s / workers, disk_s)
        choices.append(CacheChoice(kind, part, 1 / image_s))
    return sorted(choices, key=lambda choice: choice.images_per_s, reverse=True)
