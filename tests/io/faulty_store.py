"""An HTTP and S3 server that misbehaves as its objects' names say."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CONTENT = bytes(range(256)) * 64
EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class FaultyStore(ThreadingHTTPServer):
    """Opening an object works always (its first byte comes); what comes later depends on its name."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.asked: Counter[str] = Counter()
        self.ended = threading.Event()


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyStore

    def do_GET(self) -> None:
        fault = self.path.rpartition("/")[2]
        start, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        body = CONTENT[start : last + 1]
        if (start, last) == (0, 0):
            fault = "none"
        self.server.asked[fault] += 1
        match fault:
            case "busy":
                self.answer(503, BUSY)
            case "busy-once" if self.server.asked[fault] == 1:
                self.answer(503, BUSY)
            case "expired":
                self.answer(403, EXPIRED)
            case "silent":
                self.close_connection = True
                self.server.ended.wait()
            case "cut":
                self.close_connection = True
                self.part(start, body, announced=len(body) + 1)
            case "cut-once" if self.server.asked[fault] == 1:
                self.close_connection = True
                self.part(start, body[:10], last, announced=len(body))
            case "short":
                self.part(start, body[:-1], last=last)
            case "long":
                self.part(start, body + b"more", last=last)
            case "elsewhere":
                self.part(start + 1, body)
            case "whole":
                self.answer(200, CONTENT)
            case "rewritten":
                self.part(start, body, tag='W/"two"')
            case "grown":
                self.part(start, body, of=len(CONTENT) + 1)
            case _:
                self.part(start, body)

    def part(self, start: int, body: bytes, last: int | None = None, of: int = len(CONTENT), **more: Any) -> None:
        last = start + len(body) - 1 if last is None else last
        self.answer(206, body, f"bytes {start}-{last}/{of}", **more)

    def answer(self, status: int, body: bytes, span: str = "", tag: str = 'W/"one"', announced: int = -1) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if announced < 0 else announced))
        self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
        self.send_header("ETag", tag)
        if span:
            self.send_header("Content-Range", span)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Not on the terminal."""


@contextmanager
def faulty_store() -> Iterator[FaultyStore]:
    """One that serves until the block ends."""
    with FaultyStore() as store:
        thread = threading.Thread(target=store.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield store
        finally:
            store.ended.set()
            store.shutdown()
            thread.join()
