"""Files and objects as records: those of a folder, or below a prefix of a store; and how a record is read."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from errno import ENOENT
from functools import cache
from pathlib import Path

from penstock.contracts import Ids, Place
from penstock.errors import BadSetting, ReadFailed
from penstock.fingerprint.file_versions import FileVersion
from penstock.io.files import refuse_what_is_no_file
from penstock.io.object_store import ObjectStores

_AHEAD_BYTES = 16 << 10


@cache
def stores() -> ObjectStores:
    """Return this process's connections to object stores."""
    return ObjectStores()


def is_remote(path: str) -> bool:
    """Whether a path is the URL of an object."""
    return "://" in path


def is_outage(error: Exception) -> bool:
    """Whether a store does not answer, which is no fault of a sample."""
    return isinstance(error, ReadFailed) and is_remote(error.path) and error.errno != ENOENT


def check_once(paths: Sequence[str]) -> None:
    """Raise BadSetting if a file is named twice, by another path too."""
    real = Counter(map(os.path.realpath, paths))
    if twice := [path for path in paths if real[os.path.realpath(path)] > 1]:
        raise BadSetting(f"{twice[0]} is named twice, so its samples would come twice in each epoch")


def objects_like(pattern: str) -> list[str]:
    """Return the URLs of objects that a pattern names, sorted; ``*`` stands for anything but a slash."""
    fixed = pattern[: pattern.index("*")].rpartition("/")[0]
    parts = ("[^/]*".join(map(re.escape, part.split("*"))) for part in pattern.split("**"))
    like = re.compile(".*".join(parts))
    try:
        found = sorted(each.url for each in stores().listed(f"{fixed}/") if like.fullmatch(each.url))
    except OSError as error:
        raise BadSetting(f"{pattern} cannot be listed: {error.strerror}") from None
    if not found:
        raise BadSetting(f"{pattern}: there is no such object")
    return found


def version_of(path: str) -> FileVersion:
    """Return the version of a file or an object as it is now."""
    try:
        if is_remote(path):
            found = stores().head(path)
            return FileVersion(found.nbytes, etag=found.etag)
        refuse_what_is_no_file((status := os.stat(path)).st_mode)
        return FileVersion.of(status)
    except OSError as error:
        raise ReadFailed(f"{path} cannot be read: {error.strerror}", path, 0, error.errno or 0) from None


def read(place: Place) -> bytes:
    """Return the bytes of a place."""
    path, offset, nbytes, etag, _ = place
    try:
        if is_remote(path):
            return stores().read(path, offset, nbytes or 0, etag)
        with open(path, "rb", buffering=0, opener=_open_at_once) as file:
            refuse_what_is_no_file(os.fstat(file.fileno()).st_mode)
            if nbytes is None:
                return file.read()
            data = os.pread(file.fileno(), nbytes, offset)
    except OSError as error:
        raise ReadFailed(f"{path} cannot be read: {error.strerror}", path, offset, error.errno or 0) from None
    if len(data) < nbytes:
        raise ReadFailed(f"{path} ended {nbytes - len(data):,} bytes too early", path, offset)
    return data


def _open_at_once(path: str, flags: int) -> int:
    """Open a file; of a pipe without waiting for who writes to it."""
    return os.open(path, flags | os.O_NONBLOCK)


def read_ahead(whole: Place) -> Callable[[int, int], bytes]:
    """Return a function of (size, offset) that reads parts of an object, one after another, with few requests."""
    assert whole.nbytes is not None
    end, held, start = whole.nbytes, b"", 0

    def pread(nbytes: int, at: int) -> bytes:
        nonlocal held, start
        if not start <= at <= at + nbytes <= start + len(held):
            start = at
            held = read(whole._replace(offset=at, nbytes=min(max(nbytes, _AHEAD_BYTES), end - at)))
        return held[at - start : at - start + nbytes]

    return pread


class FolderRecords:
    """A folder's files, and those of folders below, in ImageFolder's order. Attributes are those of ``Records``.

    Only files that end in ``suffixes``, in small letters, are samples.
    """

    labels: Sequence[str] = ()
    parts: Sequence[tuple[str, int]] = ()

    def __init__(self, folder: str | Path, suffixes: Sequence[str]) -> None:
        self.root = os.path.abspath(os.path.expanduser(folder))
        if not os.path.isdir(self.root):
            if os.path.exists(self.root):
                raise BadSetting(f"{folder} is neither a folder nor a tar file (.tar): unpack it first")
            raise BadSetting(f"{folder}: there is no such folder; tar files end in .tar")
        self.names, self.classes = in_order(_folders(self.root), suffixes)
        if not self.names:
            raise BadSetting(
                f"{folder}: no files in it, or in folders below, end in {', '.join(sorted(suffixes))}"
            )
        self.description = f"{len(self.names):,} files of {self.root}"

    def places(self, records: Ids) -> list[Place]:
        chosen: list[int] = records.tolist()
        return [Place(os.path.join(self.root, self.names[record])) for record in chosen]

    def check_unchanged(self, records: Ids) -> None:
        """A file that was replaced is another image, whole."""


def in_order(folders: Iterable[tuple[str, list[str]]], suffixes: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return paths of files in the order of torchvision's ``make_dataset``, and all names of classes.

    That is class by class, in each by the folder's path, and in each folder by name; hidden ones are like others.

    ``folders`` are the path of each folder, empty for the uppermost, with the names of its files; ``suffixes`` are
    endings of files that are wanted, in small letters.
    """
    ordered = sorted((folder.split("/", 1)[0], folder, sorted(files)) for folder, files in folders)
    names = [f"{folder}/{name}".lstrip("/") for _, folder, files in ordered for name in files]
    endings = tuple(suffixes)
    return [name for name in names if name.lower().endswith(endings)], sorted({of for of, _, _ in ordered if of})


def _folders(top: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the path within ``top`` of each folder, and its files; links are followed."""
    above: dict[str, set[tuple[int, int]]] = {}  # of each folder: those on its path

    def refuse(error: OSError) -> None:
        raise BadSetting(f"{error.filename} cannot be listed: {error.strerror}")

    for folder, _, files in os.walk(top, followlinks=True, onerror=refuse):
        status = os.stat(folder)
        me, on_path = (status.st_dev, status.st_ino), above.get(os.path.dirname(folder), set())
        if me in on_path:
            raise BadSetting(
                f"{folder} is a link to a folder that it lies in: its images would come again and again"
            )
        above[folder] = on_path | {me}
        yield folder[len(top) :].lstrip("/"), files


class BucketRecords:
    """The objects below a prefix, in the order of a folder's files. Attributes are those of ``Records``.

    ``url`` is ``s3://bucket/prefix``. Only keys that end in ``suffixes``, in small letters, are samples.
    """

    labels: Sequence[str] = ()
    parts: Sequence[tuple[str, int]] = ()

    def __init__(self, url: str, suffixes: Sequence[str]) -> None:
        self.root = url.rstrip("/")
        if not url.startswith("s3://") or not self.root.removeprefix("s3:"):
            raise BadSetting(f"{url}: give s3://bucket/prefix for a folder of objects, or the URLs of tar files")
        try:
            found = {each.url.removeprefix(f"{self.root}/"): each for each in stores().listed(f"{self.root}/")}
        except OSError as error:
            raise BadSetting(f"{url} cannot be listed: {error.strerror}") from None
        folders: dict[str, list[str]] = {}
        for key in found:
            folder, _, name = key.rpartition("/")
            folders.setdefault(folder, []).append(name)
        self.names, self.classes = in_order(folders.items(), suffixes)
        if not self.names:
            raise BadSetting(f"{url}: no objects below it end in {', '.join(sorted(suffixes))}")
        self._objects = [found[name] for name in self.names]
        self.description = f"{len(self.names):,} objects of {self.root}"

    def places(self, records: Ids) -> list[Place]:
        chosen: list[int] = records.tolist()
        return [Place(url, 0, nbytes, etag) for url, nbytes, etag in (self._objects[i] for i in chosen)]

    def check_unchanged(self, records: Ids) -> None:
        """An object that was replaced is not read: the store compares its version."""
