"""Objects in a store as records: those below ``s3://bucket/prefix``."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.contracts import Ids, Place
from penstock.errors import BadSetting
from penstock.sources.records.folder import in_order
from penstock.sources.records.read import stores


class BucketRecords:
    """The objects below a prefix, in the order of a folder's files. Attributes are those of ``Records``.

    Args:
        url: ``s3://bucket/prefix``.
        suffixes: Endings of keys that are samples, in small letters; others are left out.

    Raises:
        BadSetting: it is no such URL, the store refuses, or nothing lies there.
        ReaderUnavailable: obstore is not installed.
    """

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
        self.labels: Sequence[str] = ()
        self.description = f"{len(self.names):,} objects of {self.root}"

    def places(self, records: Ids) -> list[Place]:
        chosen: list[int] = records.tolist()
        return [Place(url, 0, nbytes, etag) for url, nbytes, etag in (self._objects[i] for i in chosen)]

    def check_unchanged(self, records: Ids) -> None:
        """An object that was replaced is not read: the store compares its version."""
