"""A way to a store that fails for a while: it answers 503, or is gone."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FailingProxy:
    """Hands requests on to a store, and counts those that came, also those that were answered 503."""

    def __init__(self, store: str) -> None:
        self.store, self.port, self.busy, self.asked = store, 0, False, 0
        self.open()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def open(self) -> None:
        proxy = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                proxy.asked += 1
                if proxy.busy:
                    self.send_error(503)
                    return
                connection = http.client.HTTPConnection(proxy.store.removeprefix("http://"))
                connection.request("GET", self.path, headers=dict(self.headers.items()))
                answer = connection.getresponse()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("connection", "transfer-encoding", "date", "server"):
                        self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.read())
                connection.close()

            def log_message(self, *_: object) -> None:
                """Not on the terminal."""

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Answer)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def fail(self, how: str, for_s: float) -> None:
        """Be busy or gone for some seconds."""
        if how == "busy":
            self.busy = True
            time.sleep(for_s)
            self.busy = False
        else:
            self.close()
            time.sleep(for_s)
            self.open()


@contextmanager
def failing_proxy(store: str) -> Iterator[FailingProxy]:
    proxy = FailingProxy(store)
    try:
        yield proxy
    finally:
        proxy.close()
