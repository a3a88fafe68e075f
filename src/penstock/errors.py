"""Every exception of Penstock. A message has what happened, with numbers, who caused it, and the remedy."""

from __future__ import annotations


class PenstockError(Exception):
    """Base of every error that Penstock raises on purpose."""


class BadSetting(PenstockError, ValueError):
    """An argument, or a combination of arguments, cannot be honoured; the message names what can."""


class SettingsDiffer(BadSetting):
    """The running feed has other settings, or another ``make_loader``, than yours; the message names them."""


class Untravelled(BadSetting):
    """Something in a data set cannot go to another process; the message names it, and why."""


class UnsupportedLeaf(PenstockError, TypeError):
    """A leaf of a batch cannot travel to trainers; the message names its path in the tree."""


class SourceError(PenstockError):
    """The source of the feed failed, in the feeder or in one of its workers.

    Attributes:
        traceback_text: Traceback of what it raised; empty if there is none.
    """

    def __init__(self, message: str, traceback_text: str = "") -> None:
        super().__init__(message)
        self.traceback_text = traceback_text


class BlockChanged(SourceError):
    """A block's structure, type or shape differs from the blocks before it; the message names the leaf."""


class BlockTooLarge(SourceError):
    """A block is larger than the window can ever hold; the message names a window that would do."""


class GpuLost(SourceError):
    """The GPU that a feed's ring lies on failed its feeder; trainers of ``share`` go on with one on the host."""


class StreamTruncated(SourceError):
    """Records of a stream that are yet to be read are gone, or changed; the message names partition and offsets.

    ``on_loss="skip"`` of a ``StreamSource`` counts them, and goes on with the next that is there.
    """


class PackageMissing(PenstockError):
    """A package that an extra brings is not installed; the message has the command that installs it."""


class DeviceUnavailable(PenstockError):
    """The GPU that was asked for is missing or cannot be used; the message has the reason and the GPUs."""


class GpuMissing(PenstockError):
    """NVML, which reports on NVIDIA GPUs, cannot be used, or shows none; the message names what is missing.

    Attributes:
        why: What is missing.
        remedy: Command that installs it; empty if none does.
    """

    def __init__(self, why: str, remedy: str = "") -> None:
        super().__init__(f"{why}: {remedy}" if remedy else why)
        self.why = why
        self.remedy = remedy


class PinningRefused(PenstockError):
    """Host memory cannot be registered with a GPU; a ``Loader`` then copies by way of a buffer, and warns."""


class ReaderUnavailable(PenstockError):
    """This machine cannot read in the way that was asked for; the message has the reason, and another way.

    Attributes:
        why: What is missing.
        remedy: What to install or set, or what to read with instead; empty if nothing helps.
    """

    def __init__(self, why: str, remedy: str = "") -> None:
        super().__init__(f"{why}; {remedy}" if remedy else why)
        self.why = why
        self.remedy = remedy


class ReadFailed(PenstockError):
    """Storage did not give the bytes of one extent; reads of other extents go on.

    Attributes:
        path: File or object.
        offset: First byte of the extent in it.
        errno: Number of the system's error (``errno.h``); 0 if the file ended too early.
    """

    def __init__(self, message: str, path: str = "", offset: int = 0, errno: int = 0) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset
        self.errno = errno


class PackDamaged(SourceError):
    """A packed data set is not as it was packed: a file was cut short or replaced, or a checksum is wrong."""


class PackStopped(PenstockError):
    """Packing cannot go on, mostly because the disk is full. Written rows stay: repeat the call to go on."""


class InsecureDirectory(PenstockError):
    """The directory of the sockets, or the store of runs, belongs to another user, or others may enter it."""


class DirectoryUnusable(PenstockError):
    """The directory of the sockets cannot be made or written to: its disk is full, or read-only."""


class FeedNotFound(PenstockError):
    """No feed of this name runs; the message lists those that do."""


class FeedExists(PenstockError):
    """Another feeder serves this name; the message names its process."""


class FeedEnded(PenstockError):
    """The feed has given this trainer all its epochs (``epochs=``); there is nothing left to read."""


class FeederLost(PenstockError):
    """The feeder is gone while this trainer still needs it: it died, unless this is a ``FeedStopped``."""


class FeedStopped(FeederLost):
    """Somebody ended the feed on purpose; the message says who. Start it again and load the last ``state_dict()``.

    ``stop``, Ctrl-C in the feeder and ``Feeder.close`` do so; no trainer under
    ``share`` then starts another feeder. It is a ``FeederLost``, because a
    script that saves its work when the feeder is gone does so in both cases.
    """


class WindowHeld(PenstockError):
    """This process holds views, or a Loader that it does not read, and they leave no room for the next block.

    Drop some views, or close the Loader, and go on.
    """


class FeederSilent(PenstockError):
    """The feeder runs, but does not answer or end: it is stopped, or busy. The message names its process."""


class ProtocolError(PenstockError):
    """The other side of a connection sent nonsense; the message names it and what it sent."""


class TrainerEvicted(PenstockError):
    """This trainer held the feed back for longer than ``stall_timeout``; its last state loads into a new one."""


class Refused(PenstockError):
    """The feeder does not admit this trainer: it runs another version, has another uid, or asked for nonsense."""


class VersionMismatch(Refused):
    """Trainer and feeder speak different versions of the protocol; the message names both."""


class LoaderClosed(PenstockError):
    """The ``Loader`` was closed, or a newer iterator has taken this one's place."""


class ForkedLoader(PenstockError):
    """A forked child used its parent's ``Loader``. A connection belongs to one process: attach in the child."""


class LocksRefused(PenstockError, OSError):
    """A file system locks no files, or not in this way; the message names it."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}" if self.filename else super().__str__()


class StoreUnusable(PenstockError):
    """The store of runs cannot be opened or written to: its disk is full, or a newer Penstock has written it."""


class NoSuchRun(PenstockError):
    """The store has no run of this id, or several whose ids begin so; the message names some."""


class PushFailed(PenstockError):
    """A server did not take all of some runs; the message names it. The store has them: push them again."""
