"""An S3 server of a folder's files that gives so many bytes a second, to all clients together.

python -m benchmarks.throttled_store FOLDER BYTES_PER_S
"""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

PAGE = 1000


class Store(ThreadingHTTPServer):
    """A bucket of any name."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder: Path, bytes_per_s: float) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.keys = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        self.folder = folder
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at = 0.0

    def wait_for(self, nbytes: int) -> None:
        """Sleep until so many bytes have gone through."""
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + nbytes / self._bytes_per_s
            until = self._free_at
        time.sleep(max(0.0, until - time.monotonic()))


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Store

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        _, _, key = unquote(url.path).lstrip("/").partition("/")
        if not key:
            self.list(parse_qs(url.query))
            return
        content = (self.server.folder / key).read_bytes()
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        body = content[first : last + 1]
        self.server.wait_for(len(body))
        span = {"Content-Range": f"bytes {first}-{first + len(body) - 1}/{len(content)}", "ETag": etag(key)}
        self.answer(206, body, span)

    def list(self, query: dict[str, list[str]]) -> None:
        prefix, after = query.get("prefix", [""])[0], query.get("continuation-token", [""])[0]
        keys = [key for key in self.server.keys if key.startswith(prefix) and key > after]
        some = keys[:PAGE]
        listed = "".join(
            f"<Contents><Key>{key}</Key><Size>{(self.server.folder / key).stat().st_size}</Size><ETag>{etag(key)}"
            "</ETag><LastModified>2020-01-01T00:00:00.000Z</LastModified></Contents>"
            for key in some
        )
        more = f"<NextContinuationToken>{some[-1]}</NextContinuationToken>" if len(keys) > PAGE else ""
        body = f"<ListBucketResult><IsTruncated>{str(len(keys) > PAGE).lower()}</IsTruncated>{more}{listed}"
        self.answer(200, f"{body}</ListBucketResult>".encode(), {})

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.send_header("Last-Modified", "Wed, 01 Jan 2020 00:00:00 GMT")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Not on the terminal."""


def etag(key: str) -> str:
    return f'"{hashlib.md5(key.encode(), usedforsecurity=False).hexdigest()}"'


if __name__ == "__main__":
    store = Store(Path(sys.argv[1]), float(sys.argv[2]))
    print(f"http://127.0.0.1:{store.server_address[1]}", flush=True)
    store.serve_forever()
