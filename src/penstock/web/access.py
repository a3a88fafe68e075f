"""Who may read the page: 127.0.0.1 is open to every user of the machine, so an address alone permits nothing.

The printed URL has a token, which the first answer turns into a cookie that no script can read. Besides, a request
must name a host that is known (against DNS rebinding) and come from this page, and can change nothing.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from contextlib import suppress
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.runs.store.folder import usable

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class Access:
    """Lets requests pass that may read the page, and marks every answer with what a browser may do with it.

    Args:
        app: What they pass to.
        token: What the printed URL holds.
        secret: What the cookie's value is made of; as long as it stays, an open page outlives its server.
        port: The server's port; servers of one machine share their cookies.
        hosts: Names and addresses under which the server is known, lower case.
    """

    def __init__(self, app: ASGIApp, *, token: str, secret: str, port: int, hosts: frozenset[str]) -> None:
        self._app = app
        self._token = token
        self._cookie = f"penstock-{port}"
        self._value = hashlib.sha256(f"{secret} {port}".encode()).hexdigest()
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer why not."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = {name.lower() for name, _ in message["headers"]}
                added = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *(each for each in added if each[0] not in known)]
            await send(message)

        await (self._refusal(scope) or self._app)(scope, receive, marked)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if scope["method"] not in {"GET", "HEAD"}:
            return PlainTextResponse("This page changes nothing: GET only.", 405, {"Allow": "GET, HEAD"})
        if host_name(host) not in self._hosts:
            return PlainTextResponse(
                f"This server is not known as {host!r}. penstock web --allow-host {host_name(host)} makes it so.",
                421,
            )
        origin = headers.get("origin")
        if (origin and urlsplit(origin).netloc != host) or (
            headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate"
        ):
            return PlainTextResponse("Another page asks: refused.", 403)
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if secrets.compare_digest(given.encode(), self._token.encode()):
            answer = RedirectResponse(
                "/", 303
            )  # the key does not stay in the address, nor in what it is copied to
            answer.set_cookie(self._cookie, self._value, httponly=True, samesite="strict", path="/")
            return answer
        if secrets.compare_digest(self._given(headers.get("cookie", "")), self._value.encode()):
            return None
        return PlainTextResponse("Open the URL that penstock web has printed: it holds the key to this page.", 401)

    def _given(self, text: str) -> bytes:
        with suppress(CookieError):
            if found := SimpleCookie(text).get(self._cookie):
                return found.value.encode()
        return b""


def host_name(host: str) -> str:
    """Return the name in a Host header, without the port: behind an SSH forward that is another one."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def kept_secret(store: Path) -> str:
    """Return the secret of a store's page, made at its first use; the store's folder is its user's alone."""
    path = store / "web-secret"
    with usable(path):
        if not path.exists():
            new = path.with_name(f"web-secret.{os.getpid()}")
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_urlsafe(32))
            with suppress(FileExistsError):
                os.link(new, path)
            new.unlink()
        return path.read_text()
