from __future__ import annotations

import http.client
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from email.message import Message
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.cli.conftest import command as here  # noqa: F401 - a fixture
from tests.conftest import VERBS
from tests.forked import Forked, ForkServer, eventually

from penstock.runs.store import Store


class Answer(NamedTuple):
    status: int
    headers: Message
    body: bytes


class Page:
    """``penstock web`` as a process, and a browser without a screen."""

    def __init__(
        self, server: ForkServer, logs: Path, *words: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self._errors = logs / "errors"
        self.process = Forked(
            server,
            "penstock",
            ["web", "--port", "0", *words],
            logs / "out",
            errors=self._errors,
            environment={**os.environ, **(environment or {})},
        )
        eventually(lambda: self.process.output.endswith("\n") or self.process.ended)
        self.url = self.process.output.strip()
        assert self.url, self.errors
        self.port = int(re.search(r":(\d+)/", self.url)[1])
        self.key = self.url.partition("/?")[2]
        self.cookie = ""

    @property
    def errors(self) -> str:
        return self._errors.read_text()

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
        if not self.process.ended:
            self.process.signal("SIGINT")
            self.process.wait()
        assert "Traceback" not in self.errors, self.errors
        return self.errors


@pytest.fixture(scope="session")
def web_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """A process that has imported what ``penstock web`` imports, and forks it."""
    modules = [*VERBS, "penstock.web.application", "uvicorn.loops.auto"]
    server = ForkServer(tmp_path_factory.mktemp("ended"), modules, python=(sys.executable, "-W", "ignore"))
    yield server
    server.close()


@pytest.fixture
def open_page(
    store: Store, web_server: ForkServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Page]]:
    opened: list[Page] = []

    def make(*words: str, folder: Path = store.folder, environment: Mapping[str, str] | None = None) -> Page:
        logs = tmp_path_factory.mktemp("web")
        opened.append(Page(web_server, logs, "--store", str(folder), *words, environment=environment))
        return opened[-1]

    yield make
    for page in opened:
        page.close()


@pytest.fixture
def page(open_page: Callable[..., Page]) -> Page:
    made = open_page()
    made.enter()
    return made
