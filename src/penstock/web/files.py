"""Files that are served: the page's own, and what a run and its profilers wrote into the run's folder."""

from __future__ import annotations

import hashlib
import mimetypes
import os
import re
import stat
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
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
_FIRST = ("main", "address", "data", "elements", "figures", "runs", "now")
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
_IMAGE = re.compile(r".+\.[0-9a-f]{8}\.\d+\.png", re.DOTALL)
"""Names that ``penstock.runs.inside.media_files`` gives to images."""
_SHOWN = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}
"""Types that a run's files are given as, by suffix; all others are bytes to a browser, markup and SVG, too."""
NOT_ELSEWHERE = os.O_NOFOLLOW | os.O_NONBLOCK
"""Flags for opening files: a run may have put links and pipes in their place."""


class Json(Response):
    """A value as JSON, which has null for NaN and infinity."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


def artifact_routes(store: Store) -> list[Route]:
    """Return where a run's files are listed, and served: ``/api/runs/ID/files`` and ``/api/runs/ID/files/NAME``.

    A request for no such run, or for several, raises ``NoSuchRun``.
    """

    one_lists = threading.Lock()

    @lru_cache(_MOST_LISTED)
    def listing(_: Path) -> Folder:
        return Folder()

    def folder(request: Request) -> Path:
        return store.folder_of(store.run(request.path_params["id"]).id) / "files"

    def listed(request: Request) -> list[tuple[str, int]]:
        path = folder(request)
        with one_lists:
            return sorted(listing(path).files(path))

    def opened_file(request: Request) -> BinaryIO | None:
        return _opened(folder(request), request.path_params["name"])

    async def files(request: Request) -> Response:
        return Json(await run_in_threadpool(listed, request))

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

    return [Route("/api/runs/{id}/files", files), Route("/api/runs/{id}/files/{name:name}", file)]


class _Name(PathConvertor):
    """Takes names with newlines, too."""

    regex = "(?s:.*)"


register_url_convertor("name", _Name())


class Folder:
    """Lists a folder again and again; of logged images, there whole or not at all, only new ones are looked at.

    Links are not followed.
    """

    def __init__(self) -> None:
        self._images: dict[str, int] = {}
        self._folders: dict[str, Folder] = {}

    def files(self, path: Path | str, within: str = "", parent: int | None = None) -> Iterator[tuple[str, int]]:
        """Yield the files below it, and their bytes.

        Args:
            path: Where it is.
            within: What comes before its files' names.
            parent: An open folder that the path begins at.
        """
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        except OSError:  # no run has made it, or has just removed it, or it is a link or closed
            return
        images, self._images, folders, self._folders = self._images, {}, self._folders, {}
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    name, text = entry.name, within + _text(entry.name)
                    if entry.is_dir(follow_symlinks=False):
                        self._folders[name] = folders.get(name) or Folder()
                        yield from self._folders[name].files(name, f"{text}/", fd)
                    elif (nbytes := images.get(name)) or (nbytes := _nbytes(name, fd)) is not None:
                        if _IMAGE.fullmatch(name):
                            self._images[name] = nbytes
                        yield text, nbytes
        finally:
            os.close(fd)


def _nbytes(name: str, folder: int) -> int | None:
    """Return the bytes of a file in an open folder; None if it is gone, or no file."""
    with suppress(FileNotFoundError):
        seen = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISREG(seen.st_mode):
            return seen.st_size
    return None


def _opened(folder: Path, wanted: str) -> BinaryIO | None:
    """Open a file below a folder by its name there. Links are not followed, not even if the folder is one."""
    flags = os.O_RDONLY | NOT_ELSEWHERE | os.O_CLOEXEC
    with suppress(FileNotFoundError):  # its run has just removed something
        for place, folders, names, where in os.fwalk(folder):
            within = _text(os.path.relpath(place, folder)) + "/" if Path(place) != folder else ""
            folders[:] = [each for each in folders if wanted.startswith(f"{within}{_text(each)}/")]
            for name in names:
                if within + _text(name) == wanted and _nbytes(name, where) is not None:
                    return os.fdopen(os.open(name, flags, dir_fd=where), "rb", buffering=0)
    return None


def _text(name: str) -> str:
    return os.fsencode(name).decode(errors="replace")


def _content(opened: BinaryIO) -> Iterator[bytes]:
    with opened:
        left = os.fstat(opened.fileno()).st_size  # what a run writes meanwhile is not sent
        while left > 0 and (chunk := opened.read(min(left, _AT_ONCE_BYTES))):
            left -= len(chunk)
            yield chunk
