"""What the page changes: notes, tags, archived and deleted runs. ``Access`` lets nothing else ask for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.errors import BadSetting
from penstock.runs.store import Store
from penstock.runs.store.notes import Change
from penstock.web.files import Json
from penstock.web.views import row_of

_MOST_KIB = 64
_Asked = TypeVar("_Asked")

_Ids = Annotated[tuple[Annotated[str, msgspec.Meta(min_length=6, max_length=6)], ...], msgspec.Meta(min_length=1)]


class _Runs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Runs by their ids."""

    runs: _Ids


class _Notes(Change, frozen=True, forbid_unknown_fields=True):
    """A change of runs by their ids."""

    runs: _Ids


def write_routes(store: Store, key: str) -> list[Route]:
    """Return where runs are changed, and the key that this needs.

    Answers tell what changed as ``/api/live`` does: rows of runs, those that are removed, or all.
    """

    async def key_of_page(_: Request) -> Response:
        return Json({"key": key})

    def annotate(asked: _Notes) -> dict[str, Any]:
        return {"rows": [row_of(run) for run in store.annotate(asked.runs, asked)]}

    def delete(asked: _Runs) -> dict[str, Any]:
        return {"removed": [run.id for run in store.delete(asked.runs)]}

    def restore(asked: _Runs) -> dict[str, Any]:
        store.restore(asked.runs)
        return {"all": [row_of(run) for run in store.runs()]}  # in their places

    return [
        Route("/api/key", key_of_page),
        Route("/api/notes", _answering(annotate, _Notes), methods=["POST"]),
        Route("/api/delete", _answering(delete, _Runs), methods=["POST"]),
        Route("/api/restore", _answering(restore, _Runs), methods=["POST"]),
    ]


def _answering(
    change: Callable[[_Asked], dict[str, Any]], kind: type[_Asked]
) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        body = b""
        try:
            async for part in request.stream():
                body += part
                if len(body) > _MOST_KIB << 10:
                    raise BadSetting(f"a change has at most {_MOST_KIB} KiB: choose fewer runs, or a shorter note")
        except ClientDisconnect:
            return Response()
        try:
            asked = msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadSetting(f"this is no change of runs: {error}") from None
        return Json(await run_in_threadpool(change, asked))

    return answer
