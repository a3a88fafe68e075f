"""The page's server, until it is interrupted: files, JSON, and a stream of what changes."""

from __future__ import annotations

import errno
import math
import mimetypes
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from penstock.basics.packages import require
from penstock.errors import BadSetting, NoSuchRun, PenstockError
from penstock.runs.store import Store
from penstock.select.meter import WATTS
from penstock.select.savings import ESTIMATED_WH, Saving, balances, savings
from penstock.web.access import LOCAL, Access, Connection, host_name
from penstock.web.files import Json, answering, artifact_routes, page_routes
from penstock.web.lines import BANDS, CLOCK, RANGE
from penstock.web.live import Live
from penstock.web.paper.pictures import KINDS, labels_of
from penstock.web.views import Views
from penstock.web.writing import write_routes

_MOST_POINTS = 20_000
_MOST_SMOOTHING = 0.999
_FAR = 2e11
"""A moment of which a year has four digits, in seconds since 1970."""
_FARTHEST = 1e100
"""A place on another axis, from which to the least of all numbers there is a distance."""
_PORT = 7367
_TRIED_PORTS = 20
_ACCEPTED_AT_ONCE = 16  # so that those which wait for too long go before descriptors run out


def serve(
    store: Path | None, *, host: str, port: int | None, allowed: Sequence[str], on_open: Callable[[str, int], None]
) -> None:
    """Serve the page of a store, found as by ``Store.open``, until SIGINT or SIGTERM.

    The port is the first that is free from 7367 on, if None. Browsers reach this server under the names in
    ``allowed`` too. ``on_open`` is called with the token and the port, once pages can be opened.
    """
    with Store.open(store) as opened, _listening(host, port) as listening:
        opened.forget()
        token, at = secrets.token_urlsafe(16), listening.getsockname()[1]
        hosts = {*LOCAL, *(host_name(name) for name in allowed)}
        if host not in LOCAL:
            hosts |= {name.lower() for name in (host, socket.gethostname(), socket.getfqdn())}
        app = application(opened, token=token, port=at, hosts=hosts, ending=lambda: server.should_exit)
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=Connection,
                backlog=_ACCEPTED_AT_ONCE,
                log_level="error",
                access_log=False,
                timeout_graceful_shutdown=5,
                lifespan="off",
            )
        )
        startup = server.startup

        async def start_up(sockets: list[socket.socket] | None = None) -> None:
            await startup(sockets)
            on_open(token, at)  # signals are handled from here on

        server.startup = start_up
        server.run(sockets=[listening])


def _listening(host: str, port: int | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    tried = range(_PORT, _PORT + _TRIED_PORTS) if port is None else [port]
    for each in tried:
        try:
            return socket.create_server((host, each), family=family)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise BadSetting(f"cannot listen at {host}, port {each}: {error.strerror or error}") from None
    if port is not None:
        raise BadSetting(f"--port {port}: another program listens there; leave --port out, or give another")
    raise BadSetting(f"ports {tried[0]} to {tried[-1]} are all taken; give another with --port")


def application(store: Store, *, token: str, port: int, hosts: set[str], ending: Callable[[], bool]) -> Starlette:
    """Make the server's application; ``token`` opens the page, and ``ending`` returns whether the server ends."""
    key = secrets.token_urlsafe(32)
    views = Views(store)
    live = Live(store, views, ending)

    def of_runs(look: Callable[[list[str]], Any]) -> Callable[[Request], Awaitable[Response]]:
        return answering(lambda request: look(request.query_params.getlist("id")))

    async def figure(request: Request) -> Response:
        return await run_in_threadpool(_figure, store, views, request)

    async def events(_: Request) -> Response:
        return StreamingResponse(live.events(), media_type="text/event-stream")

    return Starlette(
        routes=[
            Route("/api/summaries", of_runs(views.summaries)),
            Route("/api/runs/{id}", answering(lambda request: views.details(request.path_params["id"]))),
            Route("/api/titles", of_runs(views.titles)),
            Route("/api/chart", answering(partial(_chart, views))),
            Route("/api/figure", figure),
            Route("/api/newest", answering(partial(_newest, views))),
            Route("/api/groups", of_runs(views.groups)),
            Route("/api/selections", of_runs(partial(selections, store))),
            Route("/api/schedules", of_runs(lambda _: views.schedules())),
            Route("/api/live", events),
            *write_routes(store, key),
            *artifact_routes(store),
            *page_routes(),
        ],
        middleware=[Middleware(Access, token=token, key=key, port=port, hosts=hosts)],
        exception_handlers={PenstockError: _error_answer},
    )


def _error_answer(_: Request, error: Exception) -> Response:
    status = 404 if isinstance(error, NoSuchRun) else 400 if isinstance(error, BadSetting) else 503
    return Json({"error": str(error)}, status)


def _newest(views: Views, request: Request) -> dict[str, Any]:
    return views.newest(request.query_params.getlist("id"), request.query_params.getlist("name"))


def _chart(views: Views, request: Request) -> dict[str, Any]:
    asked = request.query_params
    if (band := asked.get("band", RANGE)) not in BANDS:
        raise BadSetting(f"band={band!r}: give one of {', '.join(BANDS)}")
    return views.chart(
        asked.get("name", ""),
        asked.getlist("id"),
        _number(request, "begin", -math.inf),
        _number(request, "end", math.inf),
        int(min(max(_number(request, "most", 2000), 4), _MOST_POINTS)),
        over=asked.get("over", ""),
        smoothing=min(max(_number(request, "smoothing", 0.0), 0.0), _MOST_SMOOTHING),
        band=band,
    )


def _figure(store: Store, views: Views, request: Request) -> Response:
    """Answer a chart, or where the time of groups goes, or these groups beside each other, as a file."""
    asked = request.query_params
    kind = asked.get("format", "")
    if kind not in KINDS:
        raise BadSetting(f"format={kind!r}: give one of {', '.join(KINDS)}")
    require(f"To save as {kind.upper()}, penstock web", "paper", "matplotlib")
    from penstock.web.paper.draw import charts_picture, groups_picture, parts_picture

    if ids := asked.getlist("group"):
        if not (groups := views.groups(ids).groups):
            raise NoSuchRun(f"no run of the groups {', '.join(ids)} has begun, or they were removed")
        is_parts = asked.get("of") == "parts"
        picture = parts_picture(groups, 2) if is_parts else groups_picture(groups, 2, views.starts(ids))
    else:
        ids, labels = asked.getlist("id"), asked.getlist("label")
        if len(labels) != len(ids):
            labels = labels_of([store.run(id) for id in ids])
        span = _number(request, "begin", -math.inf), _number(request, "end", math.inf)
        if not span[0] < span[1]:
            raise BadSetting(f"from {span[0]:g} to {span[1]:g}: give a begin below an end")
        far, of = (_FAR, " s since 1970") if asked.get("over") == CLOCK else (_FARTHEST, "")
        if any(abs(edge) > far for edge in span if math.isfinite(edge)):
            raise BadSetting(
                f"from {span[0]:g} to {span[1]:g}{of}: give {'moments' if of else 'places'} up to {far:g}"
            )
        charts, log = {asked.get("name", ""): _chart(views, request)}, asked.get("log") == "true"
        picture = charts_picture(charts, labels, asked.get("over", ""), log, 1, span)
    return Response(picture.content(kind), media_type=mimetypes.types_map[f".{kind}"])


def _number(request: Request, name: str, otherwise: float) -> float:
    try:
        value = float(request.query_params.get(name, otherwise))
    except ValueError:
        raise BadSetting(f"{name}={request.query_params[name]!r} is no number") from None
    return otherwise if math.isnan(value) else value


def selections(store: Store, groups: Iterable[str]) -> list[dict[str, Any]]:
    """Return what each selection has cost and saved, among groups (ids) and all others with their names."""
    names = (run.group for id in groups for run in store.runs(id)[:1])
    return [_saving_fields(saving) for saving in savings(store, names)]


def _saving_fields(saving: Saving) -> dict[str, Any]:
    full, selected = saving.full, saving.selected
    measures = balances(saving.scoring, full, selected, WATTS) if full else {}
    return {
        "group": saving.group,
        "against": saving.against,
        "methods": saving.methods,
        "scoring_s": saving.scoring.seconds,
        "measures": [
            msgspec.structs.asdict(balance) | {"unit": unit, "after": balance.pays_after}
            for unit, balance in measures.items()
        ],
        "reached": [
            {"name": name, "selected": values, "full": full.logged.get(name, []) if full else []}
            for name, values in sorted(selected.logged.items())
        ],
        "watts": WATTS if ESTIMATED_WH in measures else None,
    }
