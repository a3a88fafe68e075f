"""What a run and its profilers wrote into the run's own folder, to be taken from the page."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from penstock.runs.store import Store

_AT_ONCE_BYTES = 1 << 20


class Json(Response):
    """A value as JSON, which has null for NaN and infinity."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


def artifact_routes(store: Store) -> list[Route]:
    """Return where a run's files are listed, and served: ``/api/runs/ID/files`` and ``/api/runs/ID/files/NAME``.

    A request for no such run, or for several, raises ``NoSuchRun``.
    """

    def listed(request: Request) -> dict[str, tuple[Path, int]]:
        return _files(store.folder_of(store.run(request.path_params["id"]).id) / "files")

    async def files(request: Request) -> Response:
        found = await run_in_threadpool(listed, request)
        return Json([(name, nbytes) for name, (_, nbytes) in found.items()])

    async def file(request: Request) -> Response:
        name: str = request.path_params["name"]
        path, _ = (await run_in_threadpool(listed, request)).get(name, (None, 0))
        if path is None:
            return Response("The run has no such file.", 404)
        try:
            opened = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb", buffering=0)
        except OSError as error:
            return Response(f"The file cannot be read: {error.strerror}.", 404)
        last = quote(name.rpartition("/")[2], safe="")
        headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{last}"}
        return StreamingResponse(_content(opened), media_type="application/octet-stream", headers=headers)

    return [Route("/api/runs/{id}/files", files), Route("/api/runs/{id}/files/{name:path}", file)]


def _files(folder: Path) -> dict[str, tuple[Path, int]]:
    """Return the files below a folder, and their bytes, by their names there.

    What is linked to lies elsewhere, and is left out.
    """
    found: dict[str, tuple[Path, int]] = {}
    for path in sorted(Path(place, name) for place, _, names in os.walk(folder) for name in names):
        with suppress(FileNotFoundError):  # its run has just removed it
            seen = path.lstat()
            if stat.S_ISREG(seen.st_mode):
                found[os.fsencode(path.relative_to(folder)).decode(errors="replace")] = path, seen.st_size
    return found


def _content(opened: BinaryIO) -> Iterator[bytes]:
    with opened:
        left = os.fstat(opened.fileno()).st_size  # what a run writes meanwhile is not sent
        while left > 0 and (chunk := opened.read(min(left, _AT_ONCE_BYTES))):
            left -= len(chunk)
            yield chunk
