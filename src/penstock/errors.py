"""Every exception of Penstock: each says what, with numbers, whose doing it is, and the remedy."""

from __future__ import annotations


class PenstockError(Exception):
    """The base of every error that Penstock raises on purpose."""


class BadSetting(PenstockError, ValueError):
    """An argument, or a combination of arguments, that cannot be honoured."""


class SettingsDiffer(BadSetting):
    """The feed that runs under this name has other settings than the caller asked for."""


class UnsupportedLeaf(PenstockError, TypeError):
    """A leaf of a batch cannot travel; the message names its path."""


class SourceError(PenstockError):
    """The feed's source raised, in the feeder or in one of its workers.

    Attributes:
        traceback_text: The original traceback, as text.
    """

    def __init__(self, message: str, traceback_text: str = "") -> None:
        super().__init__(message)
        self.traceback_text = traceback_text


class BlockChanged(SourceError):
    """A block's structure, type or shape differs from those before; the message names the leaf."""


class BlockTooLarge(SourceError):
    """A block is larger than the window can ever hold."""


class PackageMissing(PenstockError):
    """A package that only an extra of Penstock brings is not installed; the message has the command for it."""


class DeviceUnavailable(PenstockError):
    """A GPU that was asked for is not there, or cannot be used; the message says why, and what is there."""


class PinningRefused(PenstockError):
    """Host memory cannot be registered with a GPU; a Loader then copies by way of a buffer, and says so."""


class ReaderUnavailable(PenstockError):
    """A way of reading that was asked for cannot be had here; the message says why, and what can.

    Attributes:
        why: What is missing.
        remedy: What to do, or what to read with instead; empty where nothing helps.
    """

    def __init__(self, why: str, remedy: str = "") -> None:
        super().__init__(f"{why}; {remedy}" if remedy else why)
        self.why = why
        self.remedy = remedy


class ReadFailed(PenstockError):
    """Bytes did not come from storage; other extents are not concerned.

    Attributes:
        path: The file or object.
        offset: Where the extent began, in bytes.
        errno: What the system said, as in ``errno.h``; 0 where the file ended too early.
    """

    def __init__(self, message: str, path: str = "", offset: int = 0, errno: int = 0) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset
        self.errno = errno


class PackDamaged(SourceError):
    """A packed data set is not what it was when it was packed: cut short, replaced, or a checksum is wrong."""


class PackStopped(PenstockError):
    """Packing could not go on (the disk is full); the rows that are safe are kept, and the same call goes on."""


class InsecureDirectory(PenstockError):
    """The directory for sockets belongs to someone else, or others may enter it."""


class DirectoryUnusable(PenstockError):
    """The directory for sockets cannot be made or written to: the disk is full, or read-only."""


class FeedNotFound(PenstockError):
    """No feed of this name runs; the message lists those that do."""


class FeedExists(PenstockError):
    """Another feeder already serves this name; the message names its process."""


class FeedEnded(PenstockError):
    """The feed has given this trainer all the epochs it was set to give."""


class FeederLost(PenstockError):
    """The feeder went away while this trainer still needed it: it died, unless this is a ``FeedStopped``."""


class FeedStopped(FeederLost):
    """Somebody ended the feed on purpose; the message says who. Start it again and load the last ``state_dict()``.

    ``stop``, Ctrl-C in the feeder and ``Feeder.close`` do so; no trainer under
    ``share`` then starts another feeder. It is a ``FeederLost``, because a
    script that saves its work when the feeder is gone does so in both cases.
    """


class WindowHeld(PenstockError):
    """The views that this trainer keeps leave no room for the block it waits for; let some go, and go on."""


class FeederSilent(PenstockError):
    """The feeder runs and does not answer: it is stopped, or too busy; the message names its process."""


class ProtocolError(PenstockError):
    """The other side of a connection said what makes no sense; the message names it and what it said."""


class TrainerEvicted(PenstockError):
    """This trainer held the feed back for longer than its stall_timeout."""


class Refused(PenstockError):
    """The feeder would not admit this trainer: another version, another user, a bad request."""


class VersionMismatch(Refused):
    """Trainer and feeder speak different versions of the protocol; both are named."""


class LoaderClosed(PenstockError):
    """The Loader was closed, or a newer iterator has replaced this one."""


class ForkedLoader(PenstockError):
    """A Loader was used in a forked child; a connection belongs to one process."""
