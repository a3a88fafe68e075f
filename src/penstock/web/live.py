"""What changes, sent to open pages once a second, and only while there is one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool

from penstock.errors import PenstockError
from penstock.feed.launch.feeds import feeds
from penstock.web.views import Views

_EVERY_S = 1.0
_ANSWER_S = 0.5
_MOST_WAITING = 30


class Live:
    """Looks once a second for all open pages together.

    Args:
        views: What is looked at.
        ending: Tells whether the server ends, and with it every stream.
    """

    def __init__(self, views: Views, ending: Callable[[], bool]) -> None:
        self._views = views
        self._ending = ending
        self._pages: set[asyncio.Queue[str | None]] = set()
        self._looking: asyncio.Task[None] | None = None
        self._rows: dict[str, dict[str, Any]] = {}

    async def events(self) -> AsyncGenerator[str]:
        """Yield server-sent events for one page, until it goes: first all runs, then what changes."""
        page: asyncio.Queue[str | None] = asyncio.Queue(_MOST_WAITING)
        self._pages.add(page)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        try:
            yield "retry: 2000\n\n"
            yield _event({"all": await run_in_threadpool(self._views.rows)})
            while event := await page.get():
                yield event
        finally:
            self._pages.discard(page)

    async def _look(self) -> None:
        try:
            while self._pages and not self._ending():
                self._send(_event(await run_in_threadpool(self._changes)))
                await asyncio.sleep(_EVERY_S)
        finally:
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
            rows = {row["id"]: row for row in self._views.rows(self._rows)}
            changes = {
                "rows": [row for id, row in rows.items() if row != self._rows.get(id)],
                "removed": [id for id in self._rows if id not in rows],
                "glances": self._views.glances(id for id, row in rows.items() if row["status"] == "running"),
                "feeds": msgspec.to_builtins(feeds(_ANSWER_S)),
            }
        except PenstockError as error:
            return {"error": str(error)}
        self._rows = rows
        return changes


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value)}\n\n"
