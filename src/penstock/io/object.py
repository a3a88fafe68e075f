"""Ranged reads from object stores: S3 and compatible ones, and plain HTTP."""

# obstore's own annotations leave the store's type open.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import ctypes
import errno
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np

from penstock.contracts import Opened
from penstock.io.object_store import PAST_THE_END, ObjectStores, etag_of, status_of, version_text
from penstock.io.queue import BlockingQueue

MAX_REQUESTS = 256


class ObjectQueue(BlockingQueue):
    """Reads by ``GET`` with a range through obstore, a thread for each request under way.

    If an object is replaced after it was opened, reading it is an error, as far as size, time and ETag show it.
    Endpoint and credentials come from the usual environment variables (``AWS_ENDPOINT_URL``,
    ``AWS_ACCESS_KEY_ID``, ``AWS_SKIP_SIGNATURE``, ...). At most 256 requests are under way. The limits are those
    of ``ObjectStores``.
    """

    def __init__(
        self, depth: int, *, timeout_s: float = 30.0, retries: int | None = None, retry_s: float = 90.0
    ) -> None:
        self._stores = ObjectStores(timeout_s=timeout_s, retries=retries, retry_s=retry_s)
        super().__init__("object", depth, min(depth, MAX_REQUESTS))
        self._objects: list[_Object] = []

    @property
    def path_taken(self) -> str:
        return f"obstore {version('obstore')}, {self._limit} requests at once"

    def open(self, path: str) -> Opened:
        store, key = self._stores.at(path)
        meta = self._stores.meta(*self._stores.at(path, opens=True))
        self._objects.append(_Object(store, key, version_text(meta), etag_of(meta)))
        return Opened(len(self._objects) - 1, meta["size"])

    def read(self, file: int, offset: int, nbytes: int, address: int) -> int:
        store, key, opened, etag = self._objects[file]
        with self._stores.in_its_words():
            try:
                result = self._stores.get(store, key, offset, nbytes, etag)
                body = np.frombuffer(result.bytes(), np.uint8)
            except Exception as error:
                if status_of(error) == PAST_THE_END:
                    return 0
                raise
        start, stop = result.range
        if (now := version_text(result.meta)) != opened:
            raise OSError(
                errno.ESTALE, f"it has been replaced since it was opened: {opened} then, {now} now; open it anew"
            )
        if len(body) != stop - start or len(body) > nbytes:
            raise OSError(errno.EPROTO, f"the store announced {stop - start:,} bytes, and sent {len(body):,}")
        ctypes.memmove(address, body.ctypes.data, len(body))
        return len(body)

    def release(self) -> None:
        self._objects.clear()
        self._stores.forget()


class _Object(NamedTuple):
    store: Any
    key: str
    version: str
    etag: str
