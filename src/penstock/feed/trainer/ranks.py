"""Data-parallel trainers: which of them belong together, and whether each names its rank."""

from __future__ import annotations

import os
import warnings

from penstock.packages import initialized_distributed
from penstock.tracebacks import users_stacklevel


def group_of_ranks() -> str:
    """Return a text that all ranks of one data-parallel run share, and no other run has."""
    return ":".join(os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"))


def warn_of_ranks(feed: str) -> None:
    """Warn a trainer that is one of several ranks and gave no ``shard``: every rank then gets all samples."""
    distributed = initialized_distributed()
    if distributed is None:
        return
    rank, world = distributed.get_rank(), distributed.get_world_size()
    if world > 1:
        warnings.warn(
            f"torch.distributed runs {world} ranks, and this Loader of feed {feed!r} was made without shard=: "
            f"each rank gets every sample. Pass shard=({rank}, {world}), or shard=(0, 1) if that is meant",
            stacklevel=users_stacklevel(),
        )
