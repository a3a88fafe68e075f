"""The page's server: files, JSON, and a stream of what changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from penstock.errors import BadSetting, NoSuchRun, PenstockError
from penstock.runs.store import Store
from penstock.web.access import Access
from penstock.web.live import Live
from penstock.web.views import Views

_PAGE = Path(__file__).with_name("page")
_MOST_POINTS = 20_000


def application(
    store: Store, *, token: str, port: int, hosts: frozenset[str], ending: Callable[[], bool]
) -> Starlette:
    """Make the server's application.

    Args:
        store: What is shown.
        token: Opens the page, in its URL.
        port: The server's port.
        hosts: Names and addresses under which the server is known.
        ending: Tells whether the server ends.
    """
    views = Views(store)
    live = Live(views, ending)

    async def index(_: Request) -> Response:
        return FileResponse(_PAGE / "index.html")

    async def summaries(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(views.summaries, request.query_params.getlist("id")))

    async def run(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(views.details, request.path_params["id"]))

    async def series(request: Request) -> Response:
        asked = request.query_params
        points = await run_in_threadpool(
            views.points,
            request.path_params["id"],
            asked.getlist("name"),
            _number(request, "begin", -math.inf),
            _number(request, "end", math.inf),
            int(min(max(_number(request, "most", 2000), 2), _MOST_POINTS)),
        )
        return JSONResponse(points)

    async def newest(request: Request) -> Response:
        asked = request.query_params
        return JSONResponse(await run_in_threadpool(views.newest, asked.getlist("id"), asked.getlist("name")))

    async def groups(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(views.groups, request.query_params.getlist("id")))

    async def events(_: Request) -> Response:
        return StreamingResponse(live.events(), media_type="text/event-stream")

    return Starlette(
        routes=[
            Route("/", index),
            Route("/api/summaries", summaries),
            Route("/api/runs/{id}", run),
            Route("/api/runs/{id}/series", series),
            Route("/api/newest", newest),
            Route("/api/groups", groups),
            Route("/api/live", events),
            Mount("/page", StaticFiles(directory=_PAGE)),
        ],
        middleware=[Middleware(Access, token=token, port=port, hosts=hosts)],
        exception_handlers={PenstockError: _told},
    )


def _told(_: Request, error: Exception) -> Response:
    status = 404 if isinstance(error, NoSuchRun) else 400 if isinstance(error, BadSetting) else 503
    return JSONResponse({"error": str(error)}, status)


def _number(request: Request, name: str, otherwise: float) -> float:
    try:
        value = float(request.query_params.get(name, otherwise))
    except ValueError:
        raise BadSetting(f"{name}={request.query_params[name]!r} is no number") from None
    return otherwise if math.isnan(value) else value
