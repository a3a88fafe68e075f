"""Files that are served: the page's own, and what a run and its profilers wrote into the run's folder."""

from __future__ import annotations

import hashlib
import mimetypes
import os
import re
import stat
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO
from urllib.parse import quote

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from penstock.runs.store import Store

_PAGE = Path(__file__).with_name("page")
_FIRST = ("main", "address", "data", "elements", "figures", "runs", "now", "columns", "notes", "saving", "drawing")
"""Modules that the page lists for loading at once; the browser finds the others."""
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


_AT_ONCE_BYTES = 1 << 20
_MOST_LISTED = 8
_IMAGE = re.compile(r"log/.+\.[0-9a-f]{8}\.\d+\.png", re.DOTALL)
"""Images that are logged (``penstock.runs.inside.media``): they are there whole or not at all."""
_SHOWN = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}
"""Types that a run's files are given as, by suffix; all others are bytes to a browser, markup and SVG, too."""
NOT_ELSEWHERE = os.O_NOFOLLOW | os.O_NONBLOCK
"""Flags for opening files: a run may have put links and pipes in their place."""


class Json(Response):
    """A value as JSON, which has null for NaN and infinity."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


def answering(look: Callable[[Request], Any]) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that answers what a look returns; it may wait for the disk."""

    async def answer(request: Request) -> Response:
        return Json(await run_in_threadpool(look, request))

    return answer


def artifact_routes(store: Store) -> list[Route]:
    """Return where a run's files are listed, and served: ``/api/runs/ID/files`` and ``/api/runs/ID/files/NAME``.

    A request for no such run, or for several, raises ``NoSuchRun``. A listing that the client has already, by its
    ETag, is not sent again.
    """

    images: dict[Path, dict[str, int]] = {}

    def folder(request: Request) -> Path:
        return store.folder_of(store.run(request.path_params["id"]).id) / "files"

    def listed(request: Request) -> Response:
        path = folder(request)
        known = images.pop(path, {})
        found = {name: nbytes for name, nbytes, _ in _files(path, known)}
        images[path] = {name: found[name] for name in found if name in known or _IMAGE.fullmatch(name)}
        if len(images) > _MOST_LISTED:
            images.pop(next(iter(images)), None)
        answer = Json(sorted(found.items()))
        tag = f'"{hashlib.sha256(answer.body).hexdigest()[:16]}"'
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304)
        answer.headers["etag"] = tag
        return answer

    async def listing(request: Request) -> Response:
        return await run_in_threadpool(listed, request)

    def opened_file(request: Request) -> BinaryIO | None:
        flags = os.O_RDONLY | NOT_ELSEWHERE | os.O_CLOEXEC
        for _, _, (name, where) in _files(folder(request), wanted=request.path_params["name"]):
            return os.fdopen(os.open(name, flags, dir_fd=where), "rb", buffering=0)
        return None

    async def file(request: Request) -> Response:
        name: str = request.path_params["name"]
        try:
            opened = await run_in_threadpool(opened_file, request)
        except OSError as error:
            return Response(f"The file cannot be read: {error.strerror}.", 404)
        if opened is None:
            return Response("The run has no such file.", 404)
        last = quote(name.rpartition("/")[2], safe="")
        headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{last}"}
        media_type = _SHOWN.get(Path(name).suffix, "application/octet-stream")
        return StreamingResponse(_content(opened), media_type=media_type, headers=headers)

    return [Route("/api/runs/{id}/files", listing), Route("/api/runs/{id}/files/{name:name}", file)]


class _Name(PathConvertor):
    """Takes names with newlines, too."""

    regex = "(?s:.*)"


register_url_convertor("name", _Name())


def _files(
    path: Path | str,
    known: Mapping[str, int] = MappingProxyType({}),  # bytes of files that are not looked at again
    wanted: str = "",  # the only file that is looked at; empty for all
    within: str = "",  # what comes before the files' names
    parent: int | None = None,  # an open folder that the path begins at
) -> Iterator[tuple[str, int, tuple[str, int]]]:
    """Yield the files below a folder: the name there, the bytes, and the name within an open folder.

    Links are not followed, not even if the folder itself is one.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except OSError:  # no run has made it, or has just removed it, or it is a link or closed
        return
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                text = within + os.fsencode(entry.name).decode(errors="replace")
                if entry.is_dir(follow_symlinks=False):
                    if not wanted or wanted.startswith(f"{text}/"):
                        yield from _files(entry.name, known, wanted, f"{text}/", fd)
                elif text in known:
                    yield text, known[text], (entry.name, fd)
                elif not wanted or text == wanted:
                    with suppress(FileNotFoundError):
                        seen = os.stat(entry.name, dir_fd=fd, follow_symlinks=False)
                        if stat.S_ISREG(seen.st_mode):
                            yield text, seen.st_size, (entry.name, fd)
    finally:
        os.close(fd)


def _content(opened: BinaryIO) -> Iterator[bytes]:
    with opened:
        left = os.fstat(opened.fileno()).st_size  # what a run writes meanwhile is not sent
        while left > 0 and (chunk := opened.read(min(left, _AT_ONCE_BYTES))):
            left -= len(chunk)
            yield chunk
