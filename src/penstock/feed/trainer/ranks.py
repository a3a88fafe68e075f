"""Data-parallel trainers: which of them belong together, and whether each names its rank."""

from __future__ import annotations

import os
import warnings

from penstock.basics.packages import data_loader_worker, initialized_distributed
from penstock.basics.tracebacks import users_stacklevel


def group_of_ranks() -> str:
    """Return a text that all ranks of one data-parallel run share, and no other run has."""
    return ":".join(os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"))


def warn_of_ranks(feed: str) -> None:
    """Warn a trainer that is one of several ranks or workers and gave no ``shard``: each gets all samples."""
    who, rank, world = "a DataLoader", 0, 1
    if (worker := data_loader_worker()) is not None:
        rank, world = worker.id, worker.num_workers
    elif (distributed := initialized_distributed()) is not None:
        who, rank, world = "torch.distributed", distributed.get_rank(), distributed.get_world_size()
    if world > 1:
        warnings.warn(
            f"{who} runs {world} processes, and this Loader of feed {feed!r} was made without shard=: "
            f"each gets every sample. Pass shard=({rank}, {world}), or shard=(0, 1) if that is meant",
            stacklevel=users_stacklevel(),
        )
