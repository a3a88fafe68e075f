from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from email.message import Message
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.runs.store import Store


class Answer(NamedTuple):
    status: int
    headers: Message
    body: bytes


class Page:
    """``penstock web`` as a process, and a browser without a screen."""

    def __init__(self, folder: Path, *words: str, environment: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "web", "--store", folder, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
        )
        assert self.process.stdout and self.process.stderr
        self.url = self.process.stdout.readline().strip()
        assert self.url, self.process.stderr.read()
        self.port = int(re.search(r":(\d+)/", self.url)[1])
        self.key = self.url.partition("/?")[2]
        self.cookie = ""

    def ask(self, path: str, *, method: str = "GET", body: bytes | None = None, **headers: str) -> Answer:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request(method, path, body, headers={"Cookie": self.cookie} | given)
            with connection.getresponse() as answer:
                return Answer(answer.status, answer.headers, answer.read())

    def enter(self) -> None:
        answer = self.ask("/?" + self.key)
        assert answer.status == 200, answer
        self.cookie = answer.headers["Set-Cookie"].partition(";")[0]

    def json(self, path: str) -> Any:
        answer = self.ask(path)
        assert answer.status == 200, answer
        return json.loads(answer.body)

    def write(self, value: Any, path: str = "/api/change", **headers: str | None) -> Answer:
        """Ask for a change as the page does, but for some headers; those that are None are left out."""
        host = f"127.0.0.1:{self.port}"
        own = {"Origin": f"http://{host}", "Content_Type": "application/json", "X_Penstock_Key": self.write_key}
        given = {name: text for name, text in (own | headers).items() if text is not None}
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        return self.ask(path, method="POST", body=body, **given)

    @cached_property
    def write_key(self) -> str:
        return self.json("/api/key")["key"]

    @contextmanager
    def changes(self) -> Iterator[Iterator[Any]]:
        """Listen: what comes first has all runs."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request("GET", "/api/live", headers={"Cookie": self.cookie})
            stream = connection.getresponse()
            assert stream.headers["Content-Type"].startswith("text/event-stream")
            yield (json.loads(line.removeprefix(b"data: ")) for line in stream if line.startswith(b"data: "))
            stream.close()

    def rows(self) -> Any:
        with self.changes() as changes:
            return next(changes)["all"]

    def close(self) -> str:
        """Interrupt it; return what it told on standard error."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGINT)
            _, self.errors = self.process.communicate(timeout=30)
            assert "Traceback" not in self.errors, self.errors
        return self.errors


@pytest.fixture
def open_page(store: Store) -> Iterator[Callable[..., Page]]:
    opened: list[Page] = []

    def make(*words: str, environment: Mapping[str, str] | None = None) -> Page:
        opened.append(Page(store.folder, "--port", "0", *words, environment=environment))
        return opened[-1]

    yield make
    for page in opened:
        page.close()


@pytest.fixture
def page(open_page: Callable[..., Page]) -> Page:
    made = open_page()
    made.enter()
    return made
