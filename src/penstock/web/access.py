"""Decides who may read the page and change runs from it, and closes connections that ask nothing."""

from __future__ import annotations

import asyncio
import secrets
from time import monotonic
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.web.files import Json

LOCAL = ("127.0.0.1", "localhost", "::1")
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class Access:
    """Admits requests that may read the page, and marks every answer with what a browser may do with it.

    What changes something is asked by POST, with JSON and a key, from the page's own origin. No other page can
    read the key, nor send such a request without asking first (CORS), which is refused.
    """

    def __init__(self, app: ASGIApp, *, token: str, key: str, port: int, hosts: set[str]) -> None:
        self._app = app  # what requests that are admitted pass to
        self._token = token  # what the printed URL holds
        self._key = key  # what requests that change something hold, as ``X-Penstock-Key``
        self._cookie = f"penstock-{port}"  # servers of one machine share their cookies
        self._value = secrets.token_urlsafe(32)
        self._hosts = hosts  # names and addresses under which the server is known, lower case

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer why not."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if message["status"] == 200 and self._has_token(scope):
                    # No redirection: from a link on another site, it would not be sent a strict cookie.
                    headers.append(
                        "set-cookie", f"{self._cookie}={self._value}; HttpOnly; Path=/; SameSite=Strict"
                    )
            await send(message)

        if refusal := self._refusal(scope):
            await refusal(scope, receive, marked)
            return
        await self._app(scope, receive, marked)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if scope["method"] not in {"GET", "HEAD", "POST"}:
            return PlainTextResponse("This server answers GET and POST only.", 405, {"Allow": "GET, HEAD, POST"})
        if host_name(host) not in self._hosts:
            remedy = f"penstock web --allow-host {host_name(host) or 'NAME'} makes it so"
            return PlainTextResponse(f"This server is not known as {host!r}. {remedy}.", 421)
        from_elsewhere = headers.get("sec-fetch-site", "none") not in {"same-origin", "none"}
        if (origin and origin.partition("://")[2] != host) or (
            from_elsewhere and headers.get("sec-fetch-mode") != "navigate"
        ):
            return PlainTextResponse("Another page asks: refused.", 403)
        if not (self._has_token(scope) or self._has_cookie(headers)):
            return PlainTextResponse(
                "Open the URL that penstock web has printed: it holds the key to this page.", 401
            )
        if scope["method"] == "POST" and not self._is_page(headers, f"{scope['scheme']}://{host}"):
            return Json({"error": "only the page itself changes anything, with its key: refused"}, 403)
        return None

    def _is_page(self, headers: Headers, own: str) -> bool:
        has_key = secrets.compare_digest(headers.get("x-penstock-key", "").encode(), self._key.encode())
        return has_key and (headers.get("origin"), headers.get("content-type")) == (own, "application/json")

    def _has_token(self, scope: Scope) -> bool:
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        return scope["path"] == "/" and secrets.compare_digest(given.encode(), self._token.encode())

    def _has_cookie(self, headers: Headers) -> bool:
        given = cookie_parser(headers.get("cookie", "")).get(self._cookie, "")
        return secrets.compare_digest(given.encode(), self._value.encode())


def host_name(host: str) -> str:
    """Return the name in a Host header; the port is ignored, for an SSH forward changes it."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


_MOST_WAITING = 64


class Connection(H11Protocol):
    """A connection; of those that wait for a request or its rest, 64 may be open: then the oldest is closed."""

    made_s = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait; if too many wait, close the oldest."""
        super().connection_made(transport)
        self.made_s = monotonic()
        connections: set[Any] = self.connections
        waiting = [each for each in connections if each.waits]
        if len(waiting) > _MOST_WAITING:
            min(waiting, key=lambda each: each.made_s).transport.abort()

    @property
    def waits(self) -> bool:
        """Whether it has no request that is being answered."""
        cycle: Any = self.cycle  # None until the first
        return not self.transport.is_closing() and (cycle is None or cycle.response_complete)
