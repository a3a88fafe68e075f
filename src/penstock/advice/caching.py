"""What to keep of images in a cache: their bytes as they are stored, or their pixels.

Source: the rule of Plumber (Kuchnik et al., MLSys 2022) and Cachew (Graur et al., ATC 2022), which put a cache
where it makes the slowest part of a cycle shorter; here for what comes before the first random step.
"""

from __future__ import annotations

from typing import NamedTuple


class ImageCosts(NamedTuple):
    """What an image takes, on average.

    Attributes:
        nbytes: Its size as it is stored.
        pixel_bytes: Its size when decoded.
        read_s: Time of a worker to read it where it lies, in seconds.
        decode_s: Time to decode what its crops need.
        finish_s: Time for all else.
    """

    nbytes: float
    pixel_bytes: float
    read_s: float
    decode_s: float
    finish_s: float


class CacheChoice(NamedTuple):
    """What to keep, and what is expected of it.

    Attributes:
        kind: ``"bytes"`` or ``"pixels"``.
        part: The part of the images for which there is room.
        images_per_s: Images that workers can prepare when the cache is full.
    """

    kind: str
    part: float
    images_per_s: float


def choose_kept(
    costs: ImageCosts,
    *,
    images: int,
    workers: int,
    memory_bytes: float,
    disk_bytes: float,
    disk_bytes_per_s: float,
) -> CacheChoice:
    """Choose what makes cycles shortest once the cache is full.

    An image takes a worker the mean of what it takes from the cache and from where it lies; what is read from the
    disk takes at least what the disk takes for it, whatever the number of workers.
    """
    choices: list[CacheChoice] = []
    for kind, nbytes, prepare_s in (
        ("bytes", costs.nbytes, costs.decode_s + costs.finish_s),
        ("pixels", costs.pixel_bytes, costs.finish_s),
    ):
        in_memory = min(1.0, memory_bytes / (images * nbytes))
        on_disk = min(1.0 - in_memory, disk_bytes / (images * nbytes))
        part, disk_s = in_memory + on_disk, on_disk * nbytes / disk_bytes_per_s
        missed_s = (1 - part) * (costs.read_s + costs.decode_s + costs.finish_s)
        image_s = max((missed_s + part * prepare_s + disk_s) / workers, disk_s)
        choices.append(CacheChoice(kind, part, 1 / image_s))
    return max(choices, key=lambda choice: choice.images_per_s)
