"""What is loaded: JPEGs through a torch ``DataLoader``, or blocks that lie ready in memory."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from benchmarks.share.blocks import ROWS, Blocks

from penstock.errors import BadSetting
from penstock.feed.settings import bytes_from

_LARGEST_BYTES = 256 << 20


class Workload(msgspec.Struct, frozen=True):
    """One thing to load, as plain values that can be sent to processes."""

    name: str  # "JPEG", or the requested size of the blocks
    kind: Literal["jpeg", "blocks"]
    block_bytes: int  # size of a block, or of a batch of decoded images
    blocks_per_pass: int = 0  # blocks after which a synthetic source starts afresh, where trainers join
    folder: str = ""  # folder of the JPEGs
    workers: int = 2  # workers of the shared or lone ``DataLoader``

    def source(self) -> Any:
        """Make the source of a feeder."""
        return self.loader(self.workers) if self.kind == "jpeg" else Blocks(self.block_bytes, self.blocks_per_pass)

    def loader(self, workers: int, *, pin: bool = False) -> Any:
        """Make the ``DataLoader`` of one trainer."""
        if self.kind == "jpeg":
            from benchmarks.share.jpeg import make_loader

            return make_loader(self.folder, workers=workers, batch_size=ROWS, pin=pin)
        from benchmarks.share.loaders import samples_loader

        return samples_loader(self.block_bytes, workers=workers)


def jpegs(folder: str, workers: int) -> Workload:
    """Describe the JPEGs below a folder."""
    from benchmarks.share.jpeg import SIDE

    return Workload("JPEG", "jpeg", ROWS * SIDE * SIDE * 3, folder=folder, workers=workers)


def synthetic(size: str, workers: int) -> Workload:
    """Describe blocks of a size such as ``"1MB"``."""
    nbytes = bytes_from(size)
    if nbytes > _LARGEST_BYTES:
        raise BadSetting(f"blocks of {size}: they may have up to {_LARGEST_BYTES >> 20} MiB")
    passes = max(8, min(256, _LARGEST_BYTES // nbytes))
    return Workload(size, "blocks", nbytes, blocks_per_pass=passes, workers=workers)
