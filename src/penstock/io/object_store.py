"""Object stores: S3 and compatible ones, and plain HTTP, through obstore."""

# obstore's own annotations leave the store's type open.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import ctypes
import errno
import math
import os
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib.metadata import version
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import numpy as np

from penstock.contracts import Opened
from penstock.errors import ReaderUnavailable
from penstock.io.queue import BlockingQueue


class Object(NamedTuple):
    """An object in a store."""

    url: str
    nbytes: int
    etag: str  # its version: the ETag, or the time of its last change where the store has none


class ObjectStores:
    """Stores by URL; any thread may use them.

    Endpoint and credentials come from the usual environment variables (``AWS_ENDPOINT_URL``,
    ``AWS_ACCESS_KEY_ID``, ``AWS_SKIP_SIGNATURE``, ...).
    """

    def __init__(self, *, timeout_s: float = 30.0, retries: int | None = None, retry_s: float = 90.0) -> None:
        try:
            import obstore
        except ImportError:
            raise ReaderUnavailable(
                "object stores are read with obstore, which is not installed", 'pip install "penstock[s3]"'
            ) from None
        self.obstore: Any = obstore
        self._timeout_s = timeout_s  # limit for one try, from connecting to the body's last byte
        self._retries: Any = {"max_retries": _ENDLESS if retries is None else retries, "backoff": _BACKOFF}
        """Most retries after server errors, timeouts and connections that break off; None for no limit."""
        self._retry_s = retry_s
        """Time after which no further try begins; for listing and opening, 10 s if that is less."""
        self._stores: dict[tuple[str, bool], Any] = {}

    def at(self, url: str, *, opens: bool = False) -> tuple[Any, str]:
        """Return the store that a URL names, and the object's key in it; ``opens`` tries for a shorter time."""
        try:
            root, key = _split(url)
            return self._store(root, opens=opens), key
        except ValueError as error:
            raise OSError(errno.EINVAL, f"it is no URL: {error}") from None

    def listed(self, url: str) -> Iterator[Object]:
        """Yield the objects below ``s3://bucket/prefix``."""
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        store = self._store(f"s3://{bucket}", opens=True)
        with self.in_its_words():
            for found in self.obstore.list(store, prefix=prefix or None, chunk_size=1000):
                for meta in found:
                    yield Object(f"s3://{bucket}/{meta['path']}", meta["size"], etag_of(meta))

    def head(self, url: str) -> Object:
        """Return an object's size and version."""
        meta = self.meta(*self.at(url, opens=True))
        return Object(url, meta["size"], etag_of(meta))

    def meta(self, store: Any, key: str) -> Any:
        """Return a store's description of an object."""
        with self.in_its_words():
            # Not HEAD: a store gives its reasons to refuse only in a body.
            try:
                result = self.obstore.get(store, key, options={"range": (0, 1)})
                result.bytes()
                return result.meta
            except Exception as error:
                if status_of(error) != PAST_THE_END:
                    raise
                return self.obstore.head(store, key)

    def read(self, url: str, offset: int, nbytes: int, etag: str) -> bytes:
        """Return a part of an object of this version."""
        if not nbytes:
            return b""
        store, key = self.at(url)
        with self.in_its_words():
            result = self.get(store, key, offset, nbytes, etag)
            body = bytes(result.bytes())
        if (now := etag_of(result.meta)) != etag:
            raise OSError(errno.ESTALE, f"it has been replaced since it was listed: {etag} then, {now} now")
        if len(body) != nbytes:
            raise OSError(errno.EPROTO, f"the store sent {len(body):,} bytes of {nbytes:,}")
        return body

    def get(self, store: Any, key: str, offset: int, nbytes: int, etag: str) -> Any:
        """Ask for a part of an object that has this ETag, unless that is a weak one or a time."""
        # A weak tag matches nothing (RFC 9110, 13.1.1).
        match = {"if_match": etag} if etag.startswith('"') else {}
        return self.obstore.get(store, key, options={"range": (offset, offset + nbytes), **match})

    def forget(self) -> None:
        """Close the connections."""
        self._stores.clear()

    def _store(self, root: str, *, opens: bool) -> Any:
        if (root, opens) not in self._stores:
            from obstore.store import HTTPStore, S3Store

            for name in _ENDPOINTS:  # obstore panics at a wrong endpoint
                url = os.environ.get(name)
                if url and not url.startswith(("http://", "https://")):
                    raise OSError(errno.EINVAL, f"{name}={url} is no URL: it begins with http:// or https://")
            kind: Any = S3Store if root.startswith("s3:") else HTTPStore
            most_s = min(self._retry_s, _OPEN_S if opens else math.inf)
            retries = {**self._retries, "retry_timeout": timedelta(seconds=most_s)}
            # Credentials are sent in the clear only if the endpoint says http://.
            options = {"timeout": timedelta(seconds=self._timeout_s), "allow_http": True}
            self._stores[root, opens] = kind.from_url(root, client_options=options, retry_config=retries)
        return self._stores[root, opens]

    @contextmanager
    def in_its_words(self) -> Generator[None]:
        """Turn failures into errors in the store's own words."""
        try:
            yield
        except Exception as error:
            raise _in_words(error, self._timeout_s) from None


def etag_of(meta: Any) -> str:
    """Return the version of an object: its ETag, or the time of its last change."""
    return meta["e_tag"] or str(meta["last_modified"])


def version_text(meta: Any) -> str:
    """Describe the version of an object, as far as the store has it."""
    tag = f", ETag {meta['e_tag']}" if meta["e_tag"] else ""
    return f"{meta['size']:,} bytes of {meta['last_modified']}{tag}"


_ENDLESS = 10_000
_OPEN_S = 10.0
"""A wrong address is reported after this, and a store that restarts is waited for."""
_BACKOFF = {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2}
_ENDPOINTS = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
PAST_THE_END = 416
_ERRNO = {401: errno.EACCES, 403: errno.EACCES, 404: errno.ENOENT, 412: errno.ESTALE}


def _split(path: str) -> tuple[str, str]:
    """Split a URL into the store and the object's key."""
    scheme, _, rest = path.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme == "s3" and bucket and key:
        return f"s3://{bucket}", key
    url = urlsplit(path)
    if scheme in ("http", "https") and url.netloc and not url.query:
        return f"{scheme}://{url.netloc}", unquote(url.path).lstrip("/")
    if url.query and scheme != "s3":
        raise ReaderUnavailable(f"{path} has a query, such as a signed URL's", "give s3://bucket/key")
    raise ReaderUnavailable(
        f"{path} is no s3://bucket/key and no http(s) URL", "files are read with mech='posix', 'direct' or 'uring'"
    )


def status_of(error: Exception) -> int:
    found = re.search(r"status code: (\d{3})", str(error))
    return int(found[1]) if found else 0


def _in_words(error: Exception, timeout_s: float) -> OSError:
    """Extract the store's own words from obstore's message."""
    text = str(error)
    headline, _, detail = text.partition("\n\nDebug source")
    status = status_of(error)
    code = re.search(r"<Code>(.*?)</Code>", headline)
    message = re.search(r"<Message>(.*?)</Message>", headline)
    phrase = re.search(r"status code: (\d{3} [^:\n]*)", headline)
    cause = re.findall(r'(?:message|error): "(.*?)"', detail) or re.findall(r"([A-Z]\w+),$", detail, re.MULTILINE)
    number = _ERRNO.get(status, errno.EIO)
    if "169.254.169.254" in headline:
        number = errno.EACCES
        words = (
            "no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a "
            "public bucket"
        )
    elif status == 412:
        words = "it has been replaced since it was opened (HTTP 412); open it with a new reader"
    elif code and phrase:
        words = f"the store says {code[1]}: {message[1] if message else ''} (HTTP {phrase[1]})"
    elif phrase:
        words = f"the store answers HTTP {phrase[1]}"
    elif "TimedOut" in detail:
        number, words = errno.ETIMEDOUT, f"the store did not answer in full within {timeout_s:g} s"
    elif "IncompleteBody" in detail:
        words = "the connection ended before the body did"
    elif "non-partial response" in headline or "Range request not supported" in headline:
        number, words = errno.EOPNOTSUPP, "this server gives whole objects only, no ranges"
    else:
        words = ": ".join([headline.rpartition(" - ")[2], *cause[-1:]])
    if code and number == errno.EACCES:
        words += "; look at the credentials (AWS_ACCESS_KEY_ID, AWS_SESSION_TOKEN, ...)"
    tries = re.search(r"after (\d+) retries", headline)
    return OSError(number, f"{words}; tried {int(tries[1]) + 1} times" if tries else words)


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
