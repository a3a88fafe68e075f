"""Whether a script's DataLoader is shared, and as what: read off its samplers, without iterating anything."""

# torch's own annotations leave a loader's samples and settings unknown.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch.utils.data import (
    BatchSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)
from torch.utils.data.distributed import DistributedSampler

from penstock.basics.packages import initialized_distributed
from penstock.sources.plain import length
from penstock.sources.torch.compat import changed_collate_fn_map
from penstock.sources.torch.sampling import chain_of, samplers_of

_SHUFFLED = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_SHUFFLED_NAMES = ("LengthGroupedSampler", "RepeatAugSampler")
_STATE_NOT_ITS_OWN = ("accelerate", "torchdata")
"""Libraries whose loaders ask their samplers for a state."""
_ROW_WISE = {
    ("timm.data.loader", "fast_collate"),
    ("transformers.data.data_collator", "default_data_collator"),
    ("transformers.data.data_collator", "DefaultDataCollator"),
}
"""Functions and classes that collate each row by itself, as ``default_collate`` does."""


class Declined(Exception):
    """A loader is not shared; the message is the reason."""

    def __init__(self, why: str, *, expected: bool = False) -> None:
        super().__init__(why)
        self.expected = expected  # whether that needs no message, as for validation


class Ranks(NamedTuple):
    """This process's place among those that train one model."""

    rank: int = 0
    world: int = 1  # their number
    initialized: bool = False  # whether ``torch.distributed`` knows it; else the environment names the ranks
    one_node: bool = True  # whether all of them run on this machine
    named: bool = True  # whether all ranks of one job, and no others, have a name in common


class Plan(NamedTuple):
    """How a loader is shared."""

    kind: Literal["shuffled", "sampler", "batch sampler", "whole", "stream"]
    """What decides the order: "shuffled" (the feed), "sampler" or "batch sampler" (that of the script), "whole" (a
    sampler, over a data set of batches), or "stream" (an ``IterableDataset``)."""
    sampler: Any  # the script's sampler or batch sampler, where that decides
    drop_last: bool  # whether rows that fill no batch are left out
    whole: bool  # whether batches stay as the script's ``collate_fn`` makes them
    shard: tuple[int, int] | None  # ``(rank, world)`` of a data-parallel run
    pad: bool  # whether rows are repeated so that ranks get equally many
    batches: int | None  # batches of an epoch; None if only a pass shows it
    loader_batch_size: int | None  # rows of a batch in the feeder; None where a batch sampler decides
    full: bool = False  # whether the repeated rows fill the last batch of each rank
    pin_memory: bool = False  # whether batches are put into pinned memory

    @property
    def batch_size(self) -> int | None:
        """Rows of a batch, of one rank; None where batches stay whole."""
        return None if self.whole else self.loader_batch_size

    @property
    def reason(self) -> str:
        """In words, what the loader is taken for."""
        name = "IterableDataset" if self.kind == "stream" else type(self.sampler).__name__
        order = "it shuffles" if self.kind == "shuffled" else f"its {name} decides the order"
        cut = "batches stay whole" if self.whole else "batches of any size"
        return f"{order}; {cut}" + (f"; rank {self.shard[0]} of {self.shard[1]}" if self.shard else "")


def ranks_here(environment: Mapping[str, str] = os.environ) -> Ranks:
    """Return this process's place among its ranks."""
    local, world = environment.get("LOCAL_WORLD_SIZE"), environment.get("WORLD_SIZE", "1")
    one_node = local in (None, world) and environment.get("NODE_RANK", "0") == "0"
    named = all(environment.get(name) for name in ("MASTER_ADDR", "MASTER_PORT"))
    distributed = initialized_distributed()
    if distributed is None:
        return Ranks(0, int(world) if world.isdecimal() else 1, False, one_node, named)
    return Ranks(distributed.get_rank(), distributed.get_world_size(), True, one_node, named)


def judge(loader: Any, ranks: Ranks, *, iterable: bool = False, asked: bool = False) -> Plan:
    """Decide how a ``DataLoader`` that is about to be iterated is shared.

    With ``iterable``, one over an ``IterableDataset`` may be. ``asked`` says that the script asked for it by
    ``penstock.share(loader)``: then also one whose sampler is not known to shuffle.
    """
    if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        raise Declined("gradients are off: it validates", expected=True)
    if (device := torch.get_default_device()).type != "cpu":
        raise Declined(f"torch's default device is {device}: its data set would make its tensors there")
    dataset = loader.dataset
    if any(kind.__name__ in {"IterDataPipe", "MapDataPipe"} for kind in type(dataset).__mro__):
        raise Declined("it reads a data pipe, which divides itself among workers and ranks")
    plan = (
        _stream(loader, iterable or asked) if isinstance(dataset, IterableDataset) else _map_style(loader, asked)
    )
    _check_no_state(loader)
    _check_ranks(plan, ranks)
    return plan._replace(pin_memory=bool(loader.pin_memory))


def _stream(loader: Any, allowed: bool) -> Plan:
    if not allowed:
        raise Declined("nothing shows whether an IterableDataset is for training; --iterable shares it")
    for name in ("num_replicas", "world_size", "num_processes"):
        if isinstance(parts := getattr(loader.dataset, name, None), int) and parts > 1:
            raise Declined(f"{type(loader.dataset).__name__} ({name}={parts}) gives one rank's part of a stream")
    whole = loader.batch_size is None or not _row_wise(loader.collate_fn)
    return Plan("stream", None, loader.drop_last, whole, None, False, None, loader.batch_size)


def _map_style(loader: Any, asked: bool) -> Plan:
    if loader.batch_sampler is None:
        _check_shuffled(loader.sampler, asked)
        _check_no_part(loader.sampler)
        return Plan("whole", loader.sampler, False, True, None, False, length(loader), None)
    outer, shard, split, even = _unwrapped(loader.batch_sampler)
    if not _is(outer, BatchSampler):
        _check_shuffled(outer, asked)
        _check_no_part(loader.batch_sampler)
        _check_begins(loader.batch_sampler, outer)
        return Plan("batch sampler", outer, False, True, None, False, length(outer), None)
    sampler, size, drop_last = outer.sampler, outer.batch_size, outer.drop_last
    whole = not _row_wise(loader.collate_fn)
    _check_shuffled(sampler, asked)
    batches = length(outer)
    pad = full = even and shard is not None and not drop_last
    if type(sampler) is DistributedSampler and sampler.num_replicas > 1:
        if shard is not None:
            raise Declined("both its sampler and its batch sampler divide it among ranks")
        if not sampler.shuffle:
            raise Declined("its DistributedSampler(shuffle=False) deals the samples in order")
        if len(sampler.dataset) != len(loader.dataset):  # type: ignore[arg-type]
            raise Declined("its DistributedSampler is of another data set")
        if sampler.drop_last and (left := len(loader.dataset) % sampler.num_replicas):
            raise Declined(
                f"its DistributedSampler(drop_last=True) leaves out {left} of {len(loader.dataset):,} samples, "
                "which a feed deals out: without drop_last there it is shared"
            )
        shard, pad = (sampler.rank, sampler.num_replicas), not sampler.drop_last
        kind = "shuffled"
    else:
        _check_no_part(sampler)
        kind = "shuffled" if _is_plain_shuffle(sampler, loader.dataset) else "sampler"
        if shard is not None:
            chain = chain_of(loader.batch_sampler)
            shards = (each for each in chain if type(each).__name__ == "BatchSamplerShard")
            batches = length(outer if outer is loader.batch_sampler else next(shards))
    if split and shard is not None:
        size //= shard[1]
    if shard is not None and kind != "shuffled":
        raise Declined(f"its {type(sampler).__name__} and its ranks together: only shuffling is divided by a feed")
    if kind == "sampler":
        _check_begins(loader.batch_sampler, sampler)
    decides = None if kind == "shuffled" else sampler
    return Plan(kind, decides, drop_last, whole, shard, pad, batches, size, full)


def _unwrapped(batch_sampler: Any) -> tuple[Any, tuple[int, int] | None, bool, bool]:
    """Take off what Accelerate and timm put round a batch sampler.

    Returns that, the ranks, whether a batch is split among them, and whether all of them get full batches.
    """
    shard, split, even = None, False, False
    while True:
        kind = type(batch_sampler)
        if kind.__name__ == "BatchSamplerShard" and kind.__module__.startswith("accelerate."):
            if batch_sampler.num_processes > 1:
                shard = batch_sampler.process_index, batch_sampler.num_processes
                split, even = batch_sampler.split_batches, batch_sampler.even_batches
            batch_sampler = batch_sampler.batch_sampler
        elif kind.__name__ == "SkipBatchSampler" and kind.__module__.startswith("accelerate."):
            batch_sampler = batch_sampler.batch_sampler
        elif kind.__name__ == "_RepeatSampler":  # of timm, Ultralytics and those who copied it
            batch_sampler = batch_sampler.sampler
        else:
            return batch_sampler, shard, split, even


def _is(thing: Any, kind: type, *names: str) -> bool:
    """Whether a sampler is of torch's own class, or of Accelerate's or torchdata's replacement."""
    own, module = type(thing), type(thing).__module__.partition(".")[0]
    return own is kind or (own.__name__ in {kind.__name__, *names} and module in {"accelerate", "torchdata"})


def _is_plain_shuffle(sampler: Any, dataset: Any) -> bool:
    """Whether a sampler gives each sample once, in random order."""
    if _is(sampler, DistributedSampler, "StatefulDistributedSampler"):  # whose part, if it is one, was declined
        return sampler.shuffle and len(sampler.dataset) == len(dataset)
    return (
        _is(sampler, RandomSampler, "SeedableRandomSampler")
        and not sampler.replacement
        and sampler.num_samples == len(sampler.data_source) == len(dataset)
    )


def _check_shuffled(sampler: Any, asked: bool) -> None:
    """Check that a loader with this sampler is for training."""
    chain = chain_of(sampler)
    shuffles = [each.shuffle for each in chain if isinstance(getattr(each, "shuffle", None), bool)]
    if asked or any(shuffles) or any(isinstance(each, _SHUFFLED) or _is(each, RandomSampler) for each in chain):
        return
    if any(type(each).__name__ in _SHUFFLED_NAMES for each in chain):
        return
    listed = any(isinstance(each, (list, tuple, range)) for each in chain)
    if shuffles or listed or any(isinstance(each, SequentialSampler) for each in chain):
        order = "it reads in order of its sampler, the same in each epoch" if listed else "it reads in order"
        raise Declined(f"{order}: it validates", expected=True)
    raise Declined(
        f"nothing shows whether its {type(sampler).__name__} shuffles; penstock.share(loader) in the script shares"
    )


def _check_no_state(loader: Any) -> None:
    for each in samplers_of(loader):
        if hasattr(each, "state_dict") and type(each).__module__.partition(".")[0] not in _STATE_NOT_ITS_OWN:
            raise Declined(
                f"its {type(each).__name__} counts what it has given (state_dict), and under a feed it would not"
            )


def _check_no_part(sampler: Any) -> None:
    for each in chain_of(sampler):
        for name in ("num_replicas", "num_processes", "world_size", "_world_size"):
            if isinstance(parts := getattr(each, name, None), int) and parts > 1:
                raise Declined(f"its {type(each).__name__} ({name}={parts}) divides it among ranks in its own way")


def _check_begins(batch_sampler: Any, sampler: Any) -> None:
    skips = any(getattr(each, "skip_batches", 0) for each in chain_of(batch_sampler))
    if skips and type(sampler) not in _SHUFFLED:
        raise Declined(f"it goes on in the middle of the order that its {type(sampler).__name__} gives")


def _check_ranks(plan: Plan, ranks: Ranks) -> None:
    if plan.shard is None:
        if ranks.world > 1:
            raise Declined(
                f"{ranks.world} ranks run and its sampler names none: whether they want the same batches or "
                "different ones is not known"
            )
        return
    if not ranks.initialized or plan.shard != (ranks.rank, ranks.world):
        rank, world = plan.shard
        here = f"{ranks.rank} of {ranks.world}" if ranks.initialized else "none"
        raise Declined(f"its sampler says rank {rank} of {world}, and torch.distributed says {here}")
    if not ranks.one_node:
        raise Declined("its ranks run on several machines: each would have a feed of its own")
    if not ranks.named:
        raise Declined("MASTER_ADDR and MASTER_PORT are not set, by which ranks of one job find each other")


def _row_wise(collate_fn: Any) -> bool:
    """Whether a function collates rows one by one, so that its batches can be cut."""
    if collate_fn is default_collate:
        return changed_collate_fn_map() is None
    named = collate_fn if hasattr(collate_fn, "__qualname__") else type(collate_fn)
    return (named.__module__, named.__qualname__) in _ROW_WISE
