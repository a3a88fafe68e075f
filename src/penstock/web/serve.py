"""Serves the page until it is interrupted."""

from __future__ import annotations

import errno
import secrets
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.basics.packages import require
from penstock.errors import BadSetting
from penstock.runs.store import Store

_TRIED_PORTS = 20
_ACCEPTED_AT_ONCE = 16  # so that those which wait for too long go before descriptors run out
PORT = 7367
LOCAL = ("127.0.0.1", "localhost", "::1")


def serve(
    store: Path | None, *, host: str, port: int | None, allowed: Sequence[str], tell: Callable[[str, int], None]
) -> None:
    """Serve the page until SIGINT or SIGTERM.

    Args:
        store: Folder of the store; ``$PENSTOCK_STORE`` or the user's data directory, if None.
        host: Address to listen at.
        port: Port to listen at; if None, the first that is free from 7367 on.
        allowed: More names under which browsers reach this server.
        tell: Told the token and the port, once pages can be opened.

    Raises:
        BadSetting: nothing can listen there.
        PackageMissing: Starlette or uvicorn is not installed.
        StoreUnusable: the store cannot be opened.
    """
    require("penstock web", "web", "starlette", "uvicorn")
    import uvicorn

    from penstock.web.access import Connection, host_name
    from penstock.web.application import application

    with Store.open(store) as opened, _listening(host, port) as listening:
        token, at = secrets.token_urlsafe(16), listening.getsockname()[1]
        hosts = {*LOCAL, *(host_name(name) for name in allowed)}
        if host not in LOCAL:
            hosts |= {name.lower() for name in (host, socket.gethostname(), socket.getfqdn())}
        app = application(
            opened,
            token=token,
            port=at,
            hosts=frozenset(hosts),
            ending=lambda: server.should_exit,
        )
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

        async def told(sockets: list[socket.socket] | None = None) -> None:
            await startup(sockets)
            tell(token, at)  # signals are handled from here on

        server.startup = told
        server.run(sockets=[listening])


def _listening(host: str, port: int | None) -> socket.socket:
    """Listen at an address."""
    tried = range(PORT, PORT + _TRIED_PORTS) if port is None else [port]
    for each in tried:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            return socket.create_server((host, each), family=family)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise BadSetting(f"cannot listen at {host}, port {each}: {error.strerror or error}") from None
    if port is not None:
        raise BadSetting(f"--port {port}: another program listens there; leave --port out, or give another")
    raise BadSetting(f"ports {tried[0]} to {tried[-1]} are all taken; give another with --port")
