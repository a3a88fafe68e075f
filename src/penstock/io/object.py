"""Ranged reads from object stores: S3 and compatible ones, and plain HTTP."""

# obstore's own annotations leave the store's type open.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import ctypes
import errno
import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from importlib.metadata import version
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import numpy as np

from penstock.contracts import Opened
from penstock.errors import ReaderUnavailable
from penstock.io.blocking import BlockingQueue

MAX_REQUESTS = 256


class ObjectQueue(BlockingQueue):
    """Reads by ``GET`` with a range through obstore, a thread for each request under way.

    If an object is replaced after it was opened, reading it is an error, as far
    as the store tells by size, time and ETag. Endpoint and
    credentials come from the usual environment variables
    (``AWS_ENDPOINT_URL``, ``AWS_ACCESS_KEY_ID``, ``AWS_SKIP_SIGNATURE``, ...).

    Args:
        depth: Most reads that may be queued; at most 256 requests are under way.
        timeout_s: Limit for one try, from connecting to the body's last byte.
        retries: Most retries after server errors, timeouts and connections that break off.
        retry_s: Time after which no further try begins.

    Raises:
        ReaderUnavailable: obstore is not installed.
    """

    def __init__(self, depth: int, *, timeout_s: float = 30.0, retries: int = 5, retry_s: float = 90.0) -> None:
        try:
            import obstore
        except ImportError:
            raise ReaderUnavailable(
                'mech="object" reads with obstore, which is not installed', 'pip install "penstock[s3]"'
            ) from None
        super().__init__("object", depth, min(depth, MAX_REQUESTS))
        self._obstore: Any = obstore
        self._timeout_s = timeout_s
        self._settings = {
            # Credentials are sent in the clear only if the endpoint says http://.
            "client_options": {"timeout": timedelta(seconds=timeout_s), "allow_http": True},
            "retry_config": {"max_retries": retries, "retry_timeout": timedelta(seconds=retry_s)},
        }
        self._stores: dict[str, Any] = {}
        self._objects: list[_Object] = []

    @property
    def path_taken(self) -> str:
        return f"obstore {version('obstore')}, {self._limit} requests at once"

    def open(self, path: str) -> Opened:
        try:
            root, key = _split(path)
            store = self._store(root)
        except ValueError as error:
            raise OSError(errno.EINVAL, f"it is no URL: {error}") from None
        with self._told():
            try:
                # Not HEAD: a store says only in a body why it refuses.
                result = self._obstore.get(store, key, options={"range": (0, 1)})
                result.bytes()
                meta = result.meta
            except Exception as error:
                if _status(error) != _PAST_THE_END:
                    raise
                meta = self._obstore.head(store, key)
        tag = meta["e_tag"]
        # A weak tag matches nothing (RFC 9110, 13.1.1).
        match = {} if tag is None or tag.startswith("W/") else {"if_match": tag}
        self._objects.append(_Object(store, key, _version(meta), match))
        return Opened(len(self._objects) - 1, meta["size"])

    def read(self, file: int, offset: int, nbytes: int, address: int) -> int:
        store, key, opened, match = self._objects[file]
        with self._told():
            try:
                result = self._obstore.get(store, key, options={"range": (offset, offset + nbytes), **match})
                body = np.frombuffer(result.bytes(), np.uint8)
            except Exception as error:
                if _status(error) == _PAST_THE_END:
                    return 0
                raise
        start, stop = result.range
        if (now := _version(result.meta)) != opened:
            raise OSError(
                errno.ESTALE, f"it has been replaced since it was opened: {opened} then, {now} now; open it anew"
            )
        if len(body) != stop - start or len(body) > nbytes:
            raise OSError(errno.EPROTO, f"the store announced {stop - start:,} bytes, and sent {len(body):,}")
        ctypes.memmove(address, body.ctypes.data, len(body))
        return len(body)

    def release(self) -> None:
        self._objects.clear()
        self._stores.clear()

    def _store(self, root: str) -> Any:
        if root not in self._stores:
            from obstore.store import HTTPStore, S3Store

            for name in _ENDPOINTS:  # obstore panics at a wrong endpoint
                url = os.environ.get(name)
                if url and not url.startswith(("http://", "https://")):
                    raise OSError(errno.EINVAL, f"{name}={url} is no URL: it begins with http:// or https://")
            kind: Any = S3Store if root.startswith("s3:") else HTTPStore
            self._stores[root] = kind.from_url(root, **self._settings)
        return self._stores[root]

    @contextmanager
    def _told(self) -> Generator[None]:
        """Turn failures into errors in the store's own words."""
        try:
            yield
        except Exception as error:
            raise _in_words(error, self._timeout_s) from None


class _Object(NamedTuple):
    store: Any
    key: str
    version: str
    match: dict[str, str]


def _version(meta: Any) -> str:
    """Describe the version of an object, as far as the store tells."""
    tag = f", ETag {meta['e_tag']}" if meta["e_tag"] else ""
    return f"{meta['size']:,} bytes of {meta['last_modified']}{tag}"


_ENDPOINTS = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
_PAST_THE_END = 416
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
        f"{path} is no s3://bucket/key and no http(s) URL",
        "files are read with mech='posix', 'direct' or 'uring'",
    )


def _status(error: Exception) -> int:
    found = re.search(r"status code: (\d{3})", str(error))
    return int(found[1]) if found else 0


def _in_words(error: Exception, timeout_s: float) -> OSError:
    """Extract what the store said from obstore's message."""
    text = str(error)
    headline, _, detail = text.partition("\n\nDebug source")
    status = _status(error)
    code = re.search(r"<Code>(.*?)</Code>", headline)
    message = re.search(r"<Message>(.*?)</Message>", headline)
    phrase = re.search(r"status code: (\d{3} [^:\n]*)", headline)
    cause = re.findall(r'(?:message|error): "(.*?)"', detail) or re.findall(r"([A-Z]\w+),$", detail, re.MULTILINE)
    number = _ERRNO.get(status, errno.EIO)
    if "169.254.169.254" in headline:
        number, words = (
            errno.EACCES,
            (
                "no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
                "or AWS_SKIP_SIGNATURE=true for a public bucket"
            ),
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
