"""What a trainer asks of its feed: how batches are made, which rank it is, which samples it takes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, TypedDict, Unpack, cast

import numpy as np

from penstock.basics.packages import data_loader_worker, initialized_distributed
from penstock.basics.sizes import whole_number
from penstock.basics.tracebacks import users_stacklevel
from penstock.contracts import Gpu, Tree
from penstock.errors import BadSetting
from penstock.feed import wire
from penstock.feed.named_rows import decode_ids
from penstock.feed.settings import flag
from penstock.feed.trainer.batch_builder import Framework, check_framework
from penstock.feed.trainer.destination import Destination, OnGpu, on_host
from penstock.feed.trainer.holdings import Mine, ReceivedBlock
from penstock.linux.files import memory_file
from penstock.linux.fork import close_in_children
from penstock.memory.cuda import gpu_of, is_host, of_rank
from penstock.sources.sharding import rank_of
from penstock.subsets.policy import Policy, selected_at
from penstock.subsets.selection import Selection


class TrainerOptions(TypedDict, total=False):
    """What a trainer may ask of its ``Loader``: keyword arguments of ``share`` and ``attach``.

    Attributes:
        drop_last: Leave out of each epoch the samples that fill no batch: the last ones of an epoch that
            begins with a pass of the feed, else some drawn afresh from all of it. None to do as the source.
        shard: ``(rank, world)`` of a data-parallel run. All ranks attach; each gets the same number of batches of
            one epoch.
        pad: Give each rank of ``shard`` as many rows as torch's ``DistributedSampler`` does, the number of samples
            divided by the ranks and rounded up: a few samples of the last step come twice, and all batches of a
            step are equally long. Of whole batches, the last one goes to every rank that would have none.
        transform: Function that takes and returns a batch; called in this process, on each batch.
        borrow: Hand out read-only views into the ring instead of private copies. NumPy refuses to write to one;
            writing to a torch view kills the process. A live view holds its block's room.
            On a GPU, hold a view until what reads it has run: when its last reference dies, only the
            work of the current stream is waited for. ``record_stream`` has no effect on a view; have the
            current stream wait for a side stream that read it, then let the view go. Writing to a view on a
            GPU is a fault of the device; under MPS it may end the other processes on that GPU too. Where a
            feed goes on from the host, as its GPU is full or has failed, batches are copies from then on.
        device: Where batches end: ``"cuda"``, ``"cuda:1"``, or the UUID of a GPU or MIG instance. Arrays then come
            as torch tensors: from a ring on the host copied while the GPU computes, from one on that GPU in order
            with it, on the current stream. Take batches on the stream that uses them, and none while a CUDA graph
            is captured. ``"cuda"`` is the current GPU; under ``torchrun``, that of ``LOCAL_RANK`` where none has
            been chosen. None for host memory.
        framework: Whose arrays batches hold: ``"torch"``, ``"numpy"``, ``"jax"`` or ``"cupy"``, without a copy
            where DLPack allows. None for the source's.
        pin_memory: Put private copies into pinned memory, from which ``tensor.to("cuda", non_blocking=True)`` does
            not wait. Without a GPU, and with ``borrow`` or ``device``, it has no effect.
        select: Take some samples only, each once an epoch: ids, a mask with a bool for each sample of the data
            set, the path of a ``.npy`` file with either, or a ``Selection``. The feed loads what its trainers take
            together, each sample once. What is loaded already lacks other samples: a trainer that comes late
            begins at the first block loaded with its own. None for all samples.
    """

    drop_last: bool | None
    shard: tuple[int, int] | None
    pad: bool
    transform: Callable[[Tree], Tree] | None
    borrow: bool
    device: str | Gpu | None
    framework: Framework | None
    pin_memory: bool
    select: Any


class LoaderOptions(NamedTuple):
    """What a trainer asks, checked; ``full`` is for batches that ``pad`` makes."""

    batch_size: int | None = None
    drop_last: bool | None = None
    shard: tuple[int, int] | None = None
    transform: Callable[[Tree], Tree] | None = None
    borrow: bool = False
    device: str | Gpu | None = None
    framework: Framework | None = None
    pad: bool = False
    pin_memory: bool = False
    select: Selection | None = None
    policy: Policy | None = None
    full: bool = False

    @property
    def rank(self) -> int:
        return self.shard[0] if self.shard else 0

    @property
    def world(self) -> int:
        return self.shard[1] if self.shard else 1

    @property
    def digest(self) -> str | None:
        """That of the samples taken; None for all."""
        return None if self.select is None else self.select.digest

    def drops_last(self, welcome: wire.Welcome) -> bool:
        """Whether samples that fill no batch are left out of each epoch of a feed."""
        return welcome.drop_last if self.drop_last is None else self.drop_last

    def check_fills(self, size: int) -> None:
        """Raise BadSetting if the samples taken fill no batch of this size for each rank."""
        if self.select is not None and len(self.select) < size * self.world:
            of_ranks = f" on each of {self.world:,} ranks" if self.world > 1 else ""
            raise BadSetting(
                f"select: {len(self.select):,} samples fill no batch of {size:,}{of_ranks}, and drop_last leaves "
                "all of them out: select more, or use another batch_size, or drop_last=False"
            )

    def destination(self) -> Destination:
        """Return where batches go."""
        gpu = gpu_of(of_rank(self.device))
        return on_host(pinned=self.pin_memory) if gpu is None else OnGpu(gpu, views=self.borrow)


def loader_options(batch_size: int | None, **given: Unpack[TrainerOptions]) -> LoaderOptions:
    """Check what a trainer asks."""
    asked = LoaderOptions(batch_size, **given)
    if batch_size is not None:
        batch_size = whole_number("batch_size", batch_size, 1, 2**31 - 1)
    shard = rank_of(asked.shard)
    if asked.transform is not None and not callable(cast("object", asked.transform)):
        raise BadSetting(f"transform={asked.transform!r}: it must be a function that takes a batch")
    if asked.drop_last is not None:
        flag("drop_last", asked.drop_last)
    flag("borrow", asked.borrow)
    flag("pad", asked.pad)
    flag("pin_memory", asked.pin_memory)
    check_framework(framework := asked.framework)
    if asked.borrow and not is_host(asked.device) and framework in {"jax", "cupy"}:
        raise BadSetting(
            f"borrow=True with framework={framework!r} on a GPU: on which streams {framework} reads a view is not "
            "known here, so its bytes could be reused too early. Leave borrow out, and batches are copies"
        )
    chosen, policy = selected_at(asked.select, 0)
    return asked._replace(batch_size=batch_size, shard=shard, select=chosen, policy=policy)


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


class SelectedSamples:
    """A trainer's selection: as a feeder receives it, and as blocks are read by it."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self._file = memory_file("penstock-selection")
        close_in_children(self._file)
        self._bitmap = selection.bitmap()
        self._file.write(self._bitmap.packed.data)
        self.message = wire.Selected(selection.digest, self._file.fileno())
        """What a feeder receives; the bits' descriptor travels beside it."""

    def check(self, welcome: wire.Welcome) -> None:
        """Check that the samples are in a feed."""
        assert welcome.samples is not None, "the feeder admits no selection otherwise"
        try:
            self._bitmap = self.selection.bitmap(welcome.samples)
        except BadSetting as error:
            raise BadSetting(f"feed {welcome.name!r}: {error}") from None

    def mine(self, block: ReceivedBlock) -> Mine:
        """Return which rows of a block the trainer takes."""
        if block.mine is None:
            mask = self._bitmap.holds(decode_ids(block.ids, block.stored))
            lie = np.flatnonzero(mask)
            block.mine = Mine(lie if block.kept is None else block.kept[mask], lie)
        return block.mine

    def close(self) -> None:
        self._file.close()
