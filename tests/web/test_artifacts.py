"""A run's files are given to whoever may read the page, and nothing else of the machine is."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from urllib.parse import quote

import pytest
from starlette.requests import Request
from tests.web.seeded import group

from penstock.runs.inside.media import Media, MediaFiles
from penstock.web.files import artifact_routes

pytestmark = pytest.mark.whole


@pytest.fixture
def run(store):
    [made] = group(store, "one")
    return made


@pytest.fixture
def files(store, run):
    folder = store.folder_of(run.id) / "files"
    folder.mkdir()
    return folder


def test_files_are_listed_with_their_bytes_and_given_as_they_are(page, run, files):
    (files / "sub").mkdir()
    (files / "torch-7.json").write_bytes(b"{}")
    content = os.urandom(3 << 20)
    (files / "sub" / "wörld #1.pt").write_bytes(content)
    assert page.json(f"/api/runs/{run.id}/files") == [["sub/wörld #1.pt", 3 << 20], ["torch-7.json", 2]]
    answer = page.ask(f"/api/runs/{run.id}/files/sub/w%C3%B6rld%20%231.pt")
    assert answer.body == content
    assert answer.headers["Content-Disposition"] == "attachment; filename*=UTF-8''w%C3%B6rld%20%231.pt"
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_an_image_is_given_as_one_and_markup_never(page, run, files):
    (files / "log" / "a").mkdir(parents=True)
    kinds = {"1.png": "image/png", "1.jpg": "image/jpeg"}
    for name in (*kinds, "1.svg", "1.html", "1.png.html", "1"):
        (files / "log" / "a" / name).write_bytes(b"<script>")
        headers = page.ask(f"/api/runs/{run.id}/files/log/a/{name}").headers
        assert headers["Content-Type"] == kinds.get(name, "application/octet-stream")
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Content-Disposition"].startswith("attachment")


OUT = [
    *("../output", "%2e%2e/output", "..%2Foutput", "%2Fetc%2Fpasswd", "/etc/passwd"),
    *("link", "folder/passwd", "pipe", ""),
]


def test_there_is_no_way_out_of_the_folder(page, run, files):
    (files / "link").symlink_to("/etc/passwd")
    (files / "folder").symlink_to("/etc")
    os.mkfifo(files / "pipe")
    for name in OUT:
        answer = page.ask(f"/api/runs/{run.id}/files/{name}")
        assert answer.status == 404 and b"root" not in answer.body, name
        assert page.json(f"/api/runs/{run.id}/files") == []


def test_a_files_folder_that_is_a_link_is_not_followed(page, store, run, tmp_path):
    """As it was found: what it led to was served."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "secret").write_text("secret")
    (store.folder_of(run.id) / "files").symlink_to(elsewhere)
    assert page.json(f"/api/runs/{run.id}/files") == []
    assert page.ask(f"/api/runs/{run.id}/files/secret").status == 404


def test_an_output_that_a_run_has_replaced_is_not_read(page, store, run):
    output = store.folder_of(run.id) / "output"
    for put in (lambda path: path.symlink_to("/etc/passwd"), os.mkfifo):
        output.unlink()
        put(output)
        assert page.json(f"/api/runs/{run.id}")["output"] == ""


def test_a_file_whose_name_is_no_text_or_holds_a_newline_is_given(page, run, files):
    path = f"/api/runs/{run.id}/files"
    for name, shown in (("two\nlines", "two\nlines"), ("ends\n", "ends\n"), (os.fsdecode(b"a\xff"), "a\ufffd")):
        (files / name).write_text("odd")
        assert page.json(path) == [[shown, 3]]
        answer = page.ask(f"{path}/{quote(shown)}")
        assert (answer.status, answer.body) == (200, b"odd")
        assert quote(shown) in answer.headers["Content-Disposition"]
        (files / name).unlink()


def test_a_run_without_files_and_no_run_are_said(page, run):
    assert page.json(f"/api/runs/{run.id}/files") == []
    assert page.ask("/api/runs/zzz/files").status == page.ask("/api/runs/zzz/files/a").status == 404


def test_a_list_of_files_that_has_not_changed_is_not_sent_again(page, run, files):
    (files / "a").write_text("a")
    path = f"/api/runs/{run.id}/files"
    tag = page.ask(path).headers["ETag"]
    same = page.ask(path, If_None_Match=tag)
    assert (same.status, same.body) == (304, b"")
    assert page.ask(f"{path}/a", Cookie="").status == 401, "files are given to nobody without the key"
    (files / "a").write_text("and b")
    assert json.loads(page.ask(path, If_None_Match=tag).body) == [["a", 5]]


def listed_anew(folder: Path) -> dict[str, int]:
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()
    }


def test_what_is_read_to_list_files_again_is_what_may_have_changed_and_not_each_image(store, run, monkeypatch):
    media, files = MediaFiles(store.folder_of(run.id), "0123abcd"), store.folder_of(run.id) / "files"
    for at in range(400):
        media.add(f"image {at % 4}", Media("image", b"x" * (at + 1)), float(at), 0.0)
    media.add("said", Media("text", b'{"text":"a"}'), 0.0, 0.0)
    (files / "model.pt").write_bytes(b"weights")
    listing, request = (
        artifact_routes(store)[0],
        Request({"type": "http", "headers": [], "path_params": {"id": run.id}}),
    )
    read: list[str] = []
    real = os.stat
    monkeypatch.setattr(os, "stat", lambda name, **named: (read.append(name), real(name, **named))[1])

    def look() -> set[str]:
        read.clear()
        found = json.loads(asyncio.run(listing.endpoint(request)).body)
        seen = {name for name in read if not isinstance(name, Path)}
        assert dict(found) == listed_anew(files)
        return seen

    mutable = {"model.pt", "text.0123abcd.jsonl"}
    assert len(look()) == 400 + 2
    assert look() == mutable
    with (files / "model.pt").open("ab") as file:
        file.write(b" and more")
    assert look() == mutable
    media.add("image 1", Media("image", b"new"), 401.0, 0.0)
    assert look() == mutable | {"401.0123abcd.100.png"}
    media.add("image 9", Media("image", b"of another name"), 402.0, 0.0)
    (files / "log" / "image 0" / "0.0123abcd.0.png").unlink()
    assert look() == mutable | {"402.0123abcd.0.png"}
    (files / "log" / "said" / "text.0123abcd.jsonl").unlink()
    assert look() == {"model.pt"}
