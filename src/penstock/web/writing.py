"""What the page sends: changes of runs, their ends, and tables to be LaTeX. Only the page can ask (``Access``)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from penstock.basics.results import latex_table
from penstock.errors import BadSetting
from penstock.runs.stop import stop
from penstock.runs.store import Store
from penstock.runs.store.notes import Change
from penstock.web.files import Json, answering
from penstock.web.views import row_of

_MOST_KIB = 1024
_Table = Annotated[list[Annotated[list[str], msgspec.Meta(min_length=1)]], msgspec.Meta(min_length=1)]
_Id = Annotated[str, msgspec.Meta(min_length=6, max_length=6)]


class _Asked(Change, frozen=True, forbid_unknown_fields=True):
    """A change of runs by their ids; or, if ``deleted`` is not None, that they are deleted, or brought back."""

    runs: Annotated[tuple[_Id, ...], msgspec.Meta(min_length=1)]
    deleted: bool | None = None


class _Stopped(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Runs that are to end, by their ids."""

    runs: Annotated[tuple[_Id, ...], msgspec.Meta(min_length=1)]


def write_routes(store: Store, key: str) -> list[Route]:
    """Return where runs are changed and tables written, and the key that this needs.

    Answers to changes tell what changed as ``/api/live`` does: rows of runs, those that are removed, or all.
    """

    def changed(asked: _Asked) -> Response:
        if asked.deleted is None:
            return Json({"rows": [row_of(run) for run in store.annotate(asked.runs, asked)]})
        if asked.deleted:
            return Json({"removed": [run.id for run in store.delete(asked.runs)]})
        store.restore(asked.runs)
        return Json({"all": [row_of(run) for run in store.runs()]})  # in their places

    def stopped(asked: _Stopped) -> Response:
        return Json({"rows": [row_of(run) for _, run in stop(store, asked.runs)]})

    return [
        Route("/api/stop", _answering(_Stopped, "list of runs", stopped), methods=["POST"]),
        Route("/api/key", answering(lambda _: {"key": key})),
        Route("/api/change", _answering(_Asked, "change of runs", changed), methods=["POST"]),
        Route(
            "/api/latex",
            _answering(_Table, "table", lambda table: PlainTextResponse(latex_table(table))),
            methods=["POST"],
        ),
    ]


def _answering(
    kind: Any, what: str, answered: Callable[[Any], Response]
) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that answers what it is sent as JSON of a kind."""

    async def answer(request: Request) -> Response:
        body = b""
        try:
            async for part in request.stream():
                body += part
                if len(body) > _MOST_KIB << 10:
                    raise BadSetting(f"this is more than {_MOST_KIB} KiB: choose fewer runs, or a shorter note")
        except ClientDisconnect:
            return Response()
        try:
            asked = msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadSetting(f"this is no {what}: {error}") from None
        return await run_in_threadpool(answered, asked)

    return answer
