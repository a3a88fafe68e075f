"""Which loaders are shared, and as what: read off their samplers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from penstock import SelectionSampler
from penstock.autosharing.verdict import Declined, Plan, Ranks, judge, ranks_here
from penstock.select import RandomSubsets

DATA: Dataset[Any] = TensorDataset(torch.arange(15))
ONE = Ranks()


def of_library(name: str, module: str, base: type = object, **attributes: Any) -> Any:
    """A sampler of a library that is not installed here, as far as a verdict looks at it."""
    kind = type(name, (base,), {"__module__": module, "__len__": lambda self: attributes["length"]})
    made = kind.__new__(kind)
    vars(made).update(attributes)
    return made


def plan(ranks: Ranks = ONE, **given: Any) -> Plan:
    return judge(DataLoader(DATA, **given), ranks)


def pairs(samples: list[Any]) -> Any:
    return samples


def test_a_loader_that_shuffles_is_cut_to_any_size():
    assert plan(batch_size=4, shuffle=True) == Plan("shuffled", None, False, False, None, False, 4, 4)
    assert plan(batch_size=4, shuffle=True, drop_last=True).batches == 3


def test_batches_of_an_unknown_collation_stay_whole():
    found = plan(batch_size=4, shuffle=True, collate_fn=pairs)
    assert found == Plan("shuffled", None, False, True, None, False, 4, 4) and found.batch_size is None


@pytest.mark.parametrize(
    "sampler",
    [
        SubsetRandomSampler(range(5)),
        WeightedRandomSampler([1.0] * 15, 9),
        RandomSampler(DATA, replacement=True),  # type: ignore[arg-type]
        RandomSampler(DATA, num_samples=7),  # type: ignore[arg-type]
    ],
)
def test_other_random_samplers_travel(sampler: Any):
    found = plan(batch_size=4, sampler=sampler)
    assert (found.kind, found.sampler, found.batches) == ("sampler", sampler, -(-len(sampler) // 4))


@pytest.mark.parametrize(
    "given",
    [
        {"batch_size": 4},
        {"batch_sampler": BatchSampler(SequentialSampler(DATA), 4, False)},  # type: ignore[arg-type]
        {"sampler": DistributedSampler(DATA, 1, 0, shuffle=False)},
        {"sampler": [3, 2, 1]},
    ],
)
def test_what_reads_in_order_is_never_shared(given: dict[str, Any]):
    with pytest.raises(Declined, match="in order") as caught:
        plan(**given)
    assert caught.value.expected


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_nothing_is_shared(mode: Any):
    with mode(), pytest.raises(Declined, match="gradients are off"):
        plan(shuffle=True)


@pytest.mark.parametrize("selection", [[1, 2, 3], RandomSubsets(15, 0.5)])
def test_a_sampler_that_counts_what_it_has_given_is_never_shared(selection: Any):
    for asked in (True, False):
        with pytest.raises(Declined, match=r"its SelectionSampler counts what it has given \(state_dict\)"):
            judge(DataLoader(DATA, 4, sampler=SelectionSampler(selection)), ONE, asked=asked)
    with pytest.raises(Declined, match="in order: it validates") as caught:
        judge(DataLoader(DATA, 4, sampler=SelectionSampler(selection, shuffle=False)), ONE)
    assert caught.value.expected


def test_what_nobody_knows_is_shared_only_if_the_script_asks():
    class Own:
        def __iter__(self) -> Iterator[int]:
            return iter(range(15))

    loader = DataLoader(DATA, sampler=Own())
    with pytest.raises(Declined, match="Own shuffles"):
        judge(loader, ONE)
    assert judge(loader, ONE, asked=True).kind == "sampler"


def test_a_stream_is_shared_only_on_request():
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    with pytest.raises(Declined, match="--iterable"):
        judge(DataLoader(Stream()), ONE)
    assert judge(DataLoader(Stream(), 2), ONE, iterable=True).kind == "stream"


def test_ranks_of_a_distributed_sampler_are_padded_as_it_pads():
    found = plan(Ranks(1, 2, True), batch_size=4, sampler=DistributedSampler(DATA, 2, 1))
    assert (found.kind, found.shard, found.pad) == ("shuffled", (1, 2), True)
    assert (found.batch_size, found.batches) == (4, 2)
    dropping = DistributedSampler(DATA, 3, 1, drop_last=True)
    assert not plan(Ranks(1, 3, True), batch_size=4, sampler=dropping, drop_last=True).pad


def test_a_distributed_sampler_of_one_replica_shuffles_as_any_other():
    own = DistributedSampler(DATA, 1, 0)
    assert plan(batch_size=4, sampler=own) == plan(batch_size=4, shuffle=True)
    of_torchdata = of_library("StatefulDistributedSampler", "torchdata", DistributedSampler, length=15)
    DistributedSampler.__init__(of_torchdata, DATA, 1, 0)
    assert plan(batch_size=4, sampler=of_torchdata).kind == "shuffled"
    assert plan(batch_size=4, sampler=DistributedSampler(TensorDataset(torch.arange(9)), 1, 0)).kind == "sampler"


class ByEpoch(RandomSampler):
    """Has an order of its own for each epoch."""


@pytest.mark.parametrize(
    ("sampler", "shares"),
    [(ByEpoch(DATA), False), (SubsetRandomSampler(range(9)), True), (RandomSampler(DATA), True)],
)
def test_what_goes_on_in_the_middle_of_an_order_of_its_own_is_declined(sampler: Any, shares: bool):
    batches = BatchSampler(sampler, 4, False)
    module = "accelerate.data_loader"
    rest = of_library(
        "SkipBatchSampler", module, BatchSampler, batch_sampler=batches, skip_batches=1, sampler=sampler, length=2
    )
    if shares:
        assert plan(batch_sampler=rest).batches
    else:
        with pytest.raises(Declined, match="goes on in the middle of the order that its ByEpoch gives"):
            plan(batch_sampler=rest)
    rest.skip_batches = 0
    assert plan(batch_sampler=rest).batches


def test_a_distributed_sampler_that_keeps_the_order_is_declined_even_if_the_script_asks():
    loader = DataLoader(DATA, 4, sampler=DistributedSampler(DATA, 2, 1, shuffle=False))
    with pytest.raises(Declined, match="in order"):
        judge(loader, Ranks(1, 2, True), asked=True)


def test_samples_that_would_be_made_on_a_device_are_not_shared():
    with torch.device("meta"), pytest.raises(Declined, match="default device is meta"):
        plan(batch_size=4, shuffle=True, generator=torch.Generator("cpu"))


ONE_OF_TWO = DistributedSampler(DATA, 2, 1)
OF_MMENGINE = of_library("DefaultSampler", "mmengine.dataset", world_size=2, shuffle=True, length=8)


@pytest.mark.parametrize(
    ("ranks", "sampler", "why"),
    [
        (Ranks(0, 2, True), ONE_OF_TWO, "its sampler says rank 1 of 2, and torch.distributed says 0 of 2"),
        (Ranks(1, 4, True), ONE_OF_TWO, "its sampler says rank 1 of 2, and torch.distributed says 1 of 4"),
        (Ranks(), ONE_OF_TWO, "says none"),
        (Ranks(1, 2, True, one_node=False), ONE_OF_TWO, "several machines"),
        (Ranks(1, 2, True, named=False), ONE_OF_TWO, "MASTER_ADDR"),
        (Ranks(1, 2, True), DistributedSampler(DATA, 2, 1, drop_last=True), "leaves out 1 of 15 samples"),
        (Ranks(0, 2, True), RandomSampler(DATA), "2 ranks run and its sampler names none"),  # type: ignore[arg-type]
        (Ranks(0, 2, True), OF_MMENGINE, "divides it among ranks in its own way"),
    ],
)
def test_ranks_and_samplers_that_do_not_fit_are_declined(ranks: Ranks, sampler: Any, why: str):
    with pytest.raises(Declined, match=why):
        plan(ranks, batch_size=4, sampler=sampler)


def test_the_environment_tells_of_ranks_that_torch_does_not_know_yet():
    torchrun = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert ranks_here(torchrun) == Ranks(0, 4, False, False, True)
    assert ranks_here({}) == Ranks(0, 1, False, True, False)


def accelerated(split: bool = False, even: bool = True, **given: Any) -> DataLoader[Any]:
    inner = BatchSampler(RandomSampler(DATA), given.pop("batch_size", 4), False)  # type: ignore[arg-type]
    has = {"batch_sampler": inner, "num_processes": 2, "process_index": 1, "length": 2}
    has |= {"split_batches": split, "even_batches": even}
    shard = of_library("BatchSamplerShard", "accelerate.data_loader", **has)
    return DataLoader(DATA, batch_sampler=shard)


def test_batches_that_accelerate_deals_to_ranks_are_dealt_by_the_feed():
    found = judge(accelerated(), Ranks(1, 2, True))
    assert (found.shard, found.batch_size, found.pad, found.batches) == ((1, 2), 4, True, 2)
    assert judge(accelerated(split=True), Ranks(1, 2, True)).batch_size == 2
    assert found.full and not plan(Ranks(1, 2, True), sampler=DistributedSampler(DATA, 2, 1)).full
    uneven = judge(accelerated(even=False), Ranks(1, 2, True))
    assert not uneven.pad and not uneven.full


def test_what_is_put_round_a_batch_sampler_is_taken_off():
    inner = BatchSampler(RandomSampler(DATA), 4, False)  # type: ignore[arg-type]
    skip = of_library("SkipBatchSampler", "accelerate.data_loader", batch_sampler=inner, length=3)
    repeat = of_library("_RepeatSampler", "timm.data.loader", sampler=inner, length=4)
    for outer in (skip, repeat):
        assert judge(DataLoader(DATA, batch_sampler=outer), ONE).batches == 4
