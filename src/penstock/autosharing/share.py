"""``penstock.share``: a function that makes a loader is called in a feeder; a ``DataLoader`` is marked."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast, overload

import msgspec

from penstock.autosharing.options import ShareOptions, from_environment, share_all
from penstock.basics.sizes import whole_number
from penstock.errors import BadSetting
from penstock.feed.endpoint import checked_name
from penstock.feed.launch.function import missing_arguments
from penstock.feed.launch.shared import shared
from penstock.feed.settings import FeedSettings, check_keywords, checked
from penstock.feed.trainer.loader import Loader
from penstock.feed.trainer.options import TrainerOptions, loader_options
from penstock.fingerprint.functions import fingerprint_of
from penstock.inject import hook

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

_MODULES = {
    "torch.utils.data.dataloader": "DataLoader",
    "torchdata.stateful_dataloader.stateful_dataloader": "StatefulDataLoader",
}
_DataLoader = TypeVar("_DataLoader", bound="DataLoader[Any]")


class ShareSettings(TrainerOptions, FeedSettings, total=False):
    """What ``share`` takes besides: what a trainer asks, and settings of its feed."""


@overload
def share(
    make_loader: Callable[[], Any], name: str, batch_size: int | None = None, **settings: Unpack[ShareSettings]
) -> Loader: ...


@overload
def share(make_loader: _DataLoader, name: str = "") -> _DataLoader: ...


def share(
    make_loader: Any, name: str = "", batch_size: int | None = None, **settings: Unpack[ShareSettings]
) -> Any:
    """Join a feed, starting it first if nobody runs it, and return a ``Loader`` on it.

    The first caller starts the feeder in a separate process, which calls
    ``make_loader()`` there. The feed ends ``linger`` seconds after its last
    trainer. If the feeder dies, a trainer starts another one, and each trainer
    goes on with its next sample.

    ``PENSTOCK_FEED_WORKERS`` in the environment of the caller that starts the feeder is the number of workers of
    its torch loader, whatever ``make_loader`` sets, unless ``workers`` is given.

    A ``DataLoader`` may be given in place of ``make_loader``, and comes back as it is: its iterations read a
    feed from then on, as do those of a loader that a library makes anew of its data set. ``name`` is then the
    first part of the feed's name, whose rest is a digest of what decides the batches; other arguments are not
    taken.

    Settings of the feed that are left out are those of the running feed.

    Args:
        make_loader: Function without arguments that returns a ``DataLoader``, or whatever else ``Feeder`` takes.
            It may be a lambda, a partial, a method, or live in the main script, which is not run again: what the
            function uses of the script travels.
        name: Name of the feed. Whoever uses this name shares the loader. ``PENSTOCK_FEED_SUFFIX=x`` in the
            environment puts a run on the feed ``name-x`` instead, as a file with ``x`` does that
            ``PENSTOCK_FEED_FILE`` names; it may be replaced before any epoch.
        batch_size: Samples of a batch, whatever the source's; per rank under ``shard``. None for the source's.
        settings: What this trainer asks (``TrainerOptions``: ``shard``, ``device``, ``select``, …), and settings
            of the feed (``FeedSettings``: ``window``, ``epochs``, ``memory``, …).

    Example:
        ``penstock.share(make_loader, "imagenet", batch_size=256, window="4GiB")`` starts the feed "imagenet" with
        a window of 4 GiB, or joins it, and gives this trainer batches of 256.

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

    Examples:
        >>> def make_loader():
        ...     return penstock.ArraySource({"id": np.arange(100)}, batch_size=20)
        >>> with penstock.share(make_loader, "numbers", batch_size=30, linger=0.1) as loader:
        ...     [len(batch["id"]) for batch in loader]
        [30, 30, 30, 10]
    """
    check_keywords("share", settings, ShareSettings)
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(make_loader, torch.utils.data.DataLoader):
        if name:
            checked_name(name)
        others = {"batch_size": batch_size, **settings}
        if given := [key for key, value in others.items() if value is not None and value is not False]:
            raise BadSetting(
                f"share(loader) takes no other arguments than the name, and got {', '.join(given)}: they are the "
                "loader's own, or those of share(make_loader, ...) with the function that makes it"
            )
        from penstock.autosharing import guard

        guard.marks[id(make_loader.dataset)] = make_loader.dataset, name
        _hook()
        return make_loader
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
    of_feed = {key: value for key, value in settings.items() if key in FeedSettings.__annotations__}
    of_trainer = {key: value for key, value in settings.items() if key not in of_feed}
    asked = checked(**cast("FeedSettings", of_feed))
    options = loader_options(batch_size, **cast("TrainerOptions", of_trainer))
    return shared(make_loader, name, fingerprint_of(make_loader), asked, options, compares=True)


def autoshare(
    name: str = "",
    *,
    workers: int | None = None,
    only: str = "",
    iterable: bool = False,
    pace: str | None = None,
    explain: bool = False,
    strict: bool = False,
) -> None:
    """Have this script's training loaders read feeds from now on, as ``penstock run --share`` does.

    For scripts and notebooks that build no ``DataLoader`` of their own; those of libraries are found. A loader
    that cannot be shared runs as it is, and a line on stderr says why. Options of ``run --share`` come first.

    Args:
        name: First part of the feeds' names; the script's unless given.
        workers: Workers of a feed's loader; as many as the script's loader has unless given.
        only: Pattern (``*``, ``?``) of the data sets' classes, or of the places (``train.py:12``), to be shared.
        iterable: Share loaders over an ``IterableDataset``, too.
        pace: ``"together"``: keep all runs on one feed, even if a slow one holds others back.
        explain: Tell what each loader is taken for, and why.
        strict: Raise what hinders sharing.

    Examples:
        >>> penstock.autoshare("resnet", only="train.py:*")  # what train.py iterates

    Raises:
        BadSetting: ``workers`` is no whole number, or ``pace`` another word.
    """
    checked(pace=pace)
    if workers is not None:
        workers = whole_number("workers", workers, 0, 10_000)
    from penstock.autosharing import guard

    asked = ShareOptions(
        name=name, workers=workers, only=only, iterable=iterable, pace=pace or "", explain=explain, strict=strict
    )
    given = msgspec.to_builtins(from_environment() or ShareOptions())  # without defaults
    guard.options = msgspec.structs.replace(asked, **given)
    import_module("torch.utils.data")
    with suppress(ImportError):
        import_module("torchdata.stateful_dataloader")  # a library may import it later
    _hook()


def _hook() -> None:
    for module, kind in _MODULES.items():
        if module in sys.modules:
            hook.hook(getattr(sys.modules[module], kind))
    share_all()
