"""A run's files are given to whoever may read the page, and nothing else of the machine is."""

from __future__ import annotations

import os

import pytest
from tests.web.seeded import group


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


@pytest.mark.parametrize(
    "name",
    [
        "../output",
        "%2e%2e/output",
        "..%2Foutput",
        "%2Fetc%2Fpasswd",
        "/etc/passwd",
        "link",
        "folder/passwd",
        "pipe",
        "",
    ],
)
def test_there_is_no_way_out_of_the_folder(page, run, files, name):
    (files / "link").symlink_to("/etc/passwd")
    (files / "folder").symlink_to("/etc")
    os.mkfifo(files / "pipe")
    answer = page.ask(f"/api/runs/{run.id}/files/{name}")
    assert answer.status == 404 and b"root" not in answer.body
    assert page.json(f"/api/runs/{run.id}/files") == []


def test_a_file_whose_name_is_no_text_is_given_too(page, run, files):
    (files / os.fsdecode(b"a\xff")).write_text("odd")
    [[name, _]] = page.json(f"/api/runs/{run.id}/files")
    assert name == "a\ufffd"
    assert page.ask(f"/api/runs/{run.id}/files/a%EF%BF%BD").body == b"odd"


def test_a_run_without_files_and_no_run_are_said(page, run):
    assert page.json(f"/api/runs/{run.id}/files") == []
    assert page.ask("/api/runs/zzz/files").status == page.ask("/api/runs/zzz/files/a").status == 404


def test_files_are_given_to_nobody_without_the_key(page, run, files):
    (files / "a").write_text("secret")
    assert page.ask(f"/api/runs/{run.id}/files/a", Cookie="").status == 401
