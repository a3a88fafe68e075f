"""What the page changes: notes, tags, archived and deleted runs. ``Access`` lets nothing else ask for it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.errors import BadSetting
from penstock.runs.store import Store
from penstock.runs.store.notes import Change
from penstock.web.files import Json, answering
from penstock.web.views import row_of

_MOST_KIB = 1024
_Id = Annotated[str, msgspec.Meta(min_length=6, max_length=6)]


class _Asked(Change, frozen=True, forbid_unknown_fields=True):
    """A change of runs by their ids; or, if ``deleted`` is not None, that they are deleted, or brought back."""

    runs: Annotated[tuple[_Id, ...], msgspec.Meta(min_length=1)]
    deleted: bool | None = None


def write_routes(store: Store, key: str) -> list[Route]:
    """Return where runs are changed, and the key that this needs.

    Answers tell what changed as ``/api/live`` does: rows of runs, those that are removed, or all.
    """

    def changed(asked: _Asked) -> dict[str, Any]:
        if asked.deleted is None:
            return {"rows": [row_of(run) for run in store.annotate(asked.runs, asked)]}
        if asked.deleted:
            return {"removed": [run.id for run in store.delete(asked.runs)]}
        store.restore(asked.runs)
        return {"all": [row_of(run) for run in store.runs()]}  # in their places

    async def change(request: Request) -> Response:
        body = b""
        try:
            async for part in request.stream():
                body += part
                if len(body) > _MOST_KIB << 10:
                    raise BadSetting(f"a change has at most {_MOST_KIB} KiB: choose fewer runs, or a shorter note")
        except ClientDisconnect:
            return Response()
        try:
            asked = msgspec.json.decode(body, type=_Asked)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadSetting(f"this is no change of runs: {error}") from None
        return Json(await run_in_threadpool(changed, asked))

    return [Route("/api/key", answering(lambda _: {"key": key})), Route("/api/change", change, methods=["POST"])]
