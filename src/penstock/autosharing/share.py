"""``penstock.share``: a function that makes a loader is called in a feeder; a ``DataLoader`` is marked."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from penstock.contracts import Gpu, Tree
from penstock.errors import BadSetting
from penstock.feed.endpoint import checked_name
from penstock.feed.launch.attach import options
from penstock.feed.launch.function import missing_arguments
from penstock.feed.launch.shared import shared
from penstock.feed.settings import checked
from penstock.feed.trainer.batch_builder import Framework
from penstock.feed.trainer.loader import Loader
from penstock.fingerprint.code import fingerprint_of

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

_DataLoader = TypeVar("_DataLoader", bound="DataLoader[Any]")


@overload
def share(
    make_loader: Callable[[], Any],
    name: str,
    batch_size: int | None = None,
    *,
    drop_last: bool | None = None,
    shard: tuple[int, int] | None = None,
    pad: bool = False,
    transform: Callable[[Tree], Tree] | None = None,
    borrow: bool = False,
    device: str | Gpu | None = None,
    framework: Framework | None = None,
    pin_memory: bool = False,
    select: Any = None,
    segments: int | None = None,
    seed: int | None = None,
    window: int | str | None = None,
    prefetch: int | None = None,
    epochs: int | None = None,
    linger: float | None = None,
    stall_timeout: float | None = None,
    whole_batches: bool | None = None,
    memory: str | None = None,
    expect: int | None = None,
) -> Loader: ...


@overload
def share(make_loader: _DataLoader, name: str = "") -> _DataLoader: ...


def share(
    make_loader: Any,
    name: str = "",
    batch_size: int | None = None,
    *,
    drop_last: bool | None = None,
    shard: tuple[int, int] | None = None,
    pad: bool = False,
    transform: Callable[[Tree], Tree] | None = None,
    borrow: bool = False,
    device: str | Gpu | None = None,
    framework: Framework | None = None,
    pin_memory: bool = False,
    select: Any = None,
    segments: int | None = None,
    seed: int | None = None,
    window: int | str | None = None,
    prefetch: int | None = None,
    epochs: int | None = None,
    linger: float | None = None,
    stall_timeout: float | None = None,
    whole_batches: bool | None = None,
    memory: str | None = None,
    expect: int | None = None,
) -> Any:
    """Join a feed, starting it first if nobody runs it, and return a ``Loader`` on it.

    The first caller starts the feeder in a separate process, which calls
    ``make_loader()`` there. The feed ends ``linger`` seconds after its last
    trainer. If the feeder dies, a trainer starts another one, and each trainer
    goes on with its next sample.

    ``PENSTOCK_FEED_WORKERS`` in the environment of the caller that starts the feeder is the number of workers of
    its torch loader, whatever ``make_loader`` says.

    A ``DataLoader`` may be given in place of ``make_loader``, and comes back as it is: its iterations read a
    feed from then on, as do those of a loader that a library makes anew of its data set. ``name`` is then the
    first part of the feed's name, whose rest is a digest of what decides the batches; other arguments are not
    taken.

    Settings of the feed (``segments`` to ``expect``) that are left out are those
    of the running feed.

    Args:
        make_loader: Function without arguments that returns a ``DataLoader``, or whatever else ``Feeder`` takes.
            It may be a lambda, a partial, a method, or live in the main script, which is not run again: what the
            function uses of the script travels.
        name: Name of the feed. Whoever uses this name shares the loader. ``PENSTOCK_FEED_SUFFIX=x`` in the
            environment puts a run on the feed ``name-x`` instead.
        batch_size: Samples of a batch, whatever the source's; per rank under ``shard``. None for the source's.
        drop_last: Leave out of each epoch the samples that fill no batch: the last ones of an epoch that
            begins with a pass of the feed, else some drawn afresh from all of it. None for what the source says.
        shard: ``(rank, world)`` of a data-parallel run. All ranks attach; each gets the same number of batches of
            one epoch.
        pad: Give each rank of ``shard`` as many rows as torch's ``DistributedSampler`` does, the number of samples
            divided by the ranks and rounded up: a few samples of the last step come twice, and all batches of a
            step are equally long. Of whole batches, the last one goes to every rank that would have none.
        transform: Function that takes and returns a batch; called in this process, on each batch.
        borrow: Hand out read-only views into the ring instead of private copies. NumPy refuses to write to one;
            writing to a torch view kills the process. A view that is kept holds its block's room.
        device: Where batches end: ``"cuda"``, ``"cuda:1"``, or the UUID of a GPU or MIG instance. Arrays then come
            as torch tensors, copied while the GPU computes. None for host memory.
        framework: Whose arrays batches hold: ``"torch"``, ``"numpy"``, ``"jax"`` or ``"cupy"``, without a copy
            where DLPack allows. None for the source's.
        pin_memory: Put private copies into pinned memory, from which ``tensor.to("cuda", non_blocking=True)`` does
            not wait. Without a GPU, and with ``borrow`` or ``device``, it has no effect.
        select: Take some samples only, each once an epoch: ids, a mask with a bool for each sample of the data
            set, the path of a ``.npy`` file with either, or a ``Selection``. The feed loads what its trainers take
            together, each sample once. What is loaded already lacks other samples: a trainer that comes late
            begins at the first block loaded with its own. None for all samples.
        segments: Parts of a cycle (one pass over the data) that are shuffled each by itself; with 1, and unless
            set, all of it is, in the ``DataLoader``'s own order. Whoever joins late needs none.
        seed: Random seed of the order, and of the loader's workers; 0 unless set.
        window: Size of the ring: bytes, or text such as ``"2GiB"``; 512 MiB unless set. The fastest trainer can be
            so far ahead of the slowest.
        prefetch: Batches that are kept ready for the fastest trainer; unless set two, or 8 MiB of smaller ones, at
            most a cycle.
        epochs: Epochs that each trainer gets; endless unless set.
        linger: Seconds from the last trainer's end to the feed's; 30 unless set.
        stall_timeout: Seconds for which a trainer may hold the feed back before it is evicted; no limit unless
            set.
        whole_batches: Give trainers the source's batches as they are; their shapes may then vary (dynamic padding,
            detection).
        memory: Where the ring lies: ``"host"`` (unless set), or the GPU on which trainers train (``"cuda:0"``, or
            a UUID), to which each block is copied once. Trainers that cannot map that GPU, or want batches on the
            host, read a twin of the ring in pinned host memory of the window's size.
        expect: Trainers for which the feed's first cycle waits, so that none of them joins it late: until so many
            read, one of them has ended, or the first has waited for 9 s. The ranks of one run count as one. 1
            unless set; without effect on a feed that runs.

    Returns:
        A loader whose batches have the tree (tuple, list, dict, ...) and types of the source's, and in each array
        one row per sample.

    Raises:
        SettingsDiffer: the feed runs with other settings than those given here, or was made by another
            ``make_loader``, or by this one before it was edited.
        BadSetting: an argument makes no sense, or ``make_loader`` cannot be pickled.
        SourceError: ``make_loader`` raised, or the feeder's process died three times before it served.
        BlockTooLarge: the window cannot hold a block, where its size is known before it is read.
        FeederSilent: the feeder is stopped, or does not answer within 10 s.
        DeviceUnavailable: this machine has no such GPU, or no room for the window on it.
        Refused: the feeder does not admit this trainer; ``VersionMismatch`` if it runs another protocol.

    Warns:
        UserWarning: a file that ``make_loader`` names has changed since the feed began.
    """
    arguments = locals().copy()
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(make_loader, torch.utils.data.DataLoader):
        if name:
            checked_name(name)
        defaults: dict[str, Any] = {"batch_size": None, **cast("Any", share).__kwdefaults__}
        if given := [key for key, value in defaults.items() if arguments[key] is not value]:
            raise BadSetting(
                f"share(loader) takes no other arguments than the name, and got {', '.join(given)}: they are the "
                "loader's own, or those of share(make_loader, ...) with the function that makes it"
            )
        from penstock.autosharing.marks import marked

        return marked(make_loader, name)
    _check_callable(make_loader)
    asked = checked(
        segments=segments,
        seed=seed,
        window=window,
        prefetch=prefetch,
        epochs=epochs,
        linger=linger,
        stall_timeout=stall_timeout,
        whole_batches=whole_batches,
        memory=memory,
        expect=expect,
    )

    given = options(batch_size, drop_last, shard, transform, borrow, device, framework, pad, pin_memory, select)
    return shared(make_loader, name, fingerprint_of(make_loader), asked, given, compares=True)


def _check_callable(make_loader: Any) -> None:
    if not callable(make_loader):
        raise BadSetting(
            f"share() takes the function that makes the loader, not its result (a {type(make_loader).__name__}): "
            "share(make_loader, ...), without the call"
        )
    if needs := missing_arguments(make_loader):
        raise BadSetting(
            f"make_loader is called without arguments, and this one needs some ({needs}): "
            "use a lambda, or functools.partial"
        )
