"""What changes, sent to open pages once a second, and only while there is one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool

from penstock.errors import PenstockError
from penstock.feed.launch.feeds import feeds
from penstock.runs.store import Store
from penstock.web.gpus import Gpus
from penstock.web.views import Views

_EVERY_S = 1.0
_ANSWER_S = 0.5
_MOST_WAITING = 30


class Live:
    """Looks once a second for all open pages together.

    Args:
        store: What is looked at.
        views: Reads it for the page.
        ending: Tells whether the server ends, and with it every stream.
    """

    def __init__(self, store: Store, views: Views, ending: Callable[[], bool]) -> None:
        self._store = store
        self._views = views
        self._gpus = Gpus(store)
        self._ending = ending
        self._pages: set[asyncio.Queue[str | None]] = set()
        self._one_looks = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None
        self._rows: dict[str, dict[str, Any]] = {}
        self._version = -1
        """What the store's version was when the rows were read."""

    async def events(self) -> AsyncGenerator[str]:
        """Yield server-sent events for one page, until it goes: first all runs, then what changes."""
        page: asyncio.Queue[str | None] = asyncio.Queue(_MOST_WAITING)
        changes = await self._look()
        self._pages.add(page)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_again())
        try:
            yield _event({**changes, "rows": [], "all": list(self._rows.values())})
            while event := await page.get():
                yield event
        finally:
            self._pages.discard(page)

    async def _look(self) -> dict[str, Any]:
        """Look once, and send what has changed to the pages that are open."""
        async with self._one_looks:
            changes = await run_in_threadpool(self._changes)
            self._send(_event(changes))
            return changes

    async def _look_again(self) -> None:
        try:
            while self._pages and not self._ending():
                await asyncio.sleep(_EVERY_S)
                await self._look()
        finally:
            self._gpus.close()
            self._views.let_go()
            self._looking = None
            self._send(None)

    def _send(self, event: str | None) -> None:
        for page in self._pages:
            if page.full():  # its browser is slow, or sleeps: what it missed cannot be left out, so it begins anew
                while not page.empty():
                    page.get_nowait()
                page.put_nowait(None)
            else:
                page.put_nowait(event)

    def _changes(self) -> dict[str, Any]:
        try:
            version = self._store.version()
            rows = {row["id"]: row for row in self._views.rows(self._rows if version == self._version else None)}
            running = [id for id, row in rows.items() if row["status"] == "running"]
            changes = {
                "rows": [row for id, row in rows.items() if row != self._rows.get(id)],
                "removed": [id for id in self._rows if id not in rows],
                "glances": self._views.glances(running),
                "gpus": self._gpus.look(running),
                "feeds": feeds(_ANSWER_S),
            }
        except PenstockError as error:
            return {"error": str(error)}
        self._rows, self._version = rows, version
        return changes


def _event(value: dict[str, Any]) -> str:
    return f"data: {msgspec.json.encode(value).decode()}\n\n"
