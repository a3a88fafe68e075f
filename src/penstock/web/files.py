"""The page's files, held in memory, at an address that changes when they do: a browser asks for each once."""

from __future__ import annotations

import hashlib
import mimetypes
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_PAGE = Path(__file__).with_name("page")
_FIRST = ("main", "address", "data", "elements", "figures", "runs", "now")
"""Modules that the browser is told to load at once; the others it finds."""
_FOR_EVER = {"Cache-Control": "private, max-age=31536000, immutable"}


def page_routes() -> list[Route]:
    """Return where the page and its files are served: ``/`` and ``/page/…``."""
    paths = sorted(path for path in _PAGE.rglob("*") if path.is_file())
    files = {path.relative_to(_PAGE).as_posix(): path.read_bytes() for path in paths}
    digest = hashlib.sha256(b"".join(files.values())).hexdigest()[:12]
    loaded_first = "".join(f'<link rel="modulepreload" href="/page/{name}.js">' for name in _FIRST)
    page = files.pop("index.html").decode().replace("<!-- modules -->", loaded_first)
    page = page.replace("/page/", f"/page/{digest}/")

    async def index(_: Request) -> Response:
        return Response(page, media_type="text/html")

    async def file(request: Request) -> Response:
        name: str = request.path_params["name"]
        if name not in files:
            return Response("There is no such file.", 404)
        return Response(files[name], media_type=mimetypes.guess_type(name)[0], headers=_FOR_EVER)

    return [Route("/", index), Route(f"/page/{digest}/{{name:path}}", file)]
