"""What the page changes: only the page itself can ask for it, and what it asks for wrongly changes nothing."""

from __future__ import annotations

import json
import resource
import shutil
import socket
import subprocess
import sys
from contextlib import ExitStack, closing
from itertools import product

import pytest
from tests.forked import eventually
from tests.web.seeded import group

pytestmark = pytest.mark.whole


def told(answer) -> str:
    return json.loads(answer.body)["error"]


def untouched(store) -> bool:
    return all((run.note, run.tags, run.archived) == ("", (), False) for run in store.runs())


def test_runs_are_tagged_noted_and_archived(page, store):
    a, b = group(store, "sweep", runs=["a", "b"])
    value = {"runs": [a.id, b.id], "note": "best so far", "tag": ["good"], "archived": True}
    rows = json.loads(page.write(value).body)["rows"]
    assert [(row["id"], row["note"], row["tags"], row["archived"]) for row in rows] == [
        (id, "best so far", ["good"], True) for id in (a.id, b.id)
    ]
    assert store.run(b.id).tags == ("good",)
    assert page.write({"runs": [a.id], "untag": ["good"], "archived": False}).status == 200
    assert (store.run(a.id).tags, store.run(a.id).archived, store.run(a.id).note) == ((), False, "best so far")


def test_every_open_page_hears_of_a_change_and_of_what_comes_back_in_its_place(page, store):
    first, second, third = (group(store, name)[0] for name in "abc")
    with page.changes() as changes:
        assert len(next(changes)["all"]) == 3
        page.write({"runs": [second.id], "tag": ["good"]})
        rows = next(row for row in iter(lambda: next(changes)["rows"], None) if row)
        assert [(row["id"], row["tags"]) for row in rows] == [(second.id, ["good"])]
        assert json.loads(page.write({"runs": [second.id], "deleted": True}).body) == {"removed": [second.id]}
        assert next(gone for gone in iter(lambda: next(changes)["removed"], None) if gone) == [second.id]
        restored = json.loads(page.write({"runs": [second.id], "deleted": False}).body)
        assert [row["id"] for row in restored["all"]] == [first.id, second.id, third.id]
        every = next(each for each in iter(lambda: next(changes).get("all"), ()) if each)
        assert [row["id"] for row in every] == [first.id, second.id, third.id]


STRANGERS = [
    (401, {"Cookie": ""}),
    (401, {"Cookie": "penstock-{port}=wrong"}),
    (403, {"Origin": None}),
    (403, {"Origin": "null"}),
    (403, {"Origin": "http://evil.example"}),
    (403, {"Origin": "https://127.0.0.1:{port}"}),
    (403, {"Origin": "http://127.0.0.1:{other}"}),
    (403, {"Origin": "http://localhost:{port}"}),
    (403, {"Origin": "127.0.0.1:{port}"}),
    (403, {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "cors"}),
    (403, {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "no-cors"}),
    (403, {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Origin": None}),
    (421, {"Host": "evil.example:{port}", "Origin": "http://evil.example:{port}"}),
    (403, {"Content_Type": None}),
    (403, {"Content_Type": "application/x-www-form-urlencoded"}),
    (403, {"Content_Type": "multipart/form-data; boundary=x"}),
    (403, {"Content_Type": "text/plain"}),
    (403, {"Content_Type": "text/plain; application/json"}),
    (403, {"X_Penstock_Key": None}),
    (403, {"X_Penstock_Key": ""}),
    (403, {"X_Penstock_Key": "wrong"}),
    (403, {"X_Penstock_Key": "\xe9"}),
]


def test_who_is_not_the_page_changes_nothing(page, store):
    [run] = group(store, "mine")
    for status, headers in STRANGERS:
        given = {name: text and text.format(port=page.port, other=page.port + 1) for name, text in headers.items()}
        for more in ({"note": "theirs"}, {"deleted": True}):
            assert page.write({"runs": [run.id], **more}, **given).status == status, headers
    assert untouched(store) and len(store.runs()) == 1
    assert page.write({"runs": [run.id], "tag": ["good"]}).status == 200, "the page goes on"


def test_the_key_is_for_this_page_s_eyes_only(page, open_page):
    for headers in ({"Cookie": ""}, {"Origin": "http://evil.example"}, {"Sec_Fetch_Site": "cross-site"}):
        assert page.ask("/api/key", **headers).status in {401, 403}
    answer = page.ask("/api/key")
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert page.key.removeprefix("token=").encode() not in answer.body
    other = open_page()
    other.enter()
    assert other.write_key != page.write_key
    assert other.write({"runs": ["aaaaaa"], "deleted": True}, X_Penstock_Key=page.write_key).status == 403


def test_reading_the_address_of_a_change_changes_nothing(page, store):
    [run] = group(store, "mine")
    body = json.dumps({"runs": [run.id], "deleted": True}).encode()
    for method in ("GET", "HEAD"):
        path = f"/api/change?runs={run.id}&deleted=true"
        assert page.ask(path, method=method, body=body, X_Penstock_Key=page.write_key).status == 405
    assert len(store.runs()) == 1


NO_CHANGES = [
    b"",
    b"\xff\xfe",
    b"[" * 50_000,
    b"nonsense",
    b'{"runs": ["\\ud800aaaaa"]}',
    [],
    None,
    {},
    {"runs": []},
    {"runs": "ID"},
    {"runs": {"ID": 1}},
    {"runs": [7]},
    {"runs": [None]},
    {"runs": [["ID"]]},
    {"runs": ["ID"], "note": 7},
    {"runs": ["ID"], "note": {"a": 1}},
    {"runs": ["ID"], "tag": "good"},
    {"runs": ["ID"], "tag": [["good"]]},
    {"runs": ["ID"], "tag": ["two words"]},
    {"runs": ["ID"], "archived": "yes"},
    {"runs": ["ID"], "status": "finished"},
    {"runs": ["ID"], "deleted": 1},
    {"deleted": True},
    {"runs": [], "deleted": True},
    {"runs": "*", "deleted": True},
    {"runs": ["ID"], "note": "x" * 10_001},
    {"runs": ["ID", "../ID"], "tag": ["good"]},
    {"runs": ["ID", "/etc/passwd"], "tag": ["good"]},
    {"runs": ["ID", "a' --"], "tag": ["good"]},
    {"runs": ["ID", "../.."], "tag": ["good"]},
    {"runs": ["ID", "/tmp/x"], "tag": ["good"]},
    {"runs": ["ID", "a\u0000bcde"], "tag": ["good"]},
    {"runs": ["ID", ""], "tag": ["good"]},
    {"runs": ["ID", *(f"{i:06}" for i in range(5000))], "tag": ["good"]},
]


def test_what_is_no_change_is_refused_in_a_sentence(page, store):
    [run] = group(store, "mine")
    for body in NO_CHANGES:
        text = body if isinstance(body, bytes) else json.dumps(body).replace("ID", run.id).encode()
        answer = page.write(text)
        assert answer.status in {400, 404} and len(told(answer)) < 500, (body, answer)
    assert untouched(store) and len(store.runs()) == 1
    assert (store.folder_of(run.id) / "output").exists()


def test_ids_that_lead_elsewhere_delete_and_bring_back_nothing(page, store):
    [run] = group(store, "mine")
    outside = store.folder.parent / "file"
    outside.write_text("mine")
    for gone, id in product((True, False), ("../fil", "/tmp/x", "......", "%2e%2e", "aaaaaa")):
        answer = page.write({"runs": [run.id, id], "deleted": gone})
        assert answer.status == 404 and repr(id) in told(answer), answer
    assert len(store.runs()) == 1 and outside.exists()


def test_a_change_that_is_too_large_is_refused_however_it_is_sent(page, store):
    [run] = group(store, "mine")
    large = json.dumps({"runs": [run.id], "note": "x" * (1 << 20)}).encode()
    assert "more than 1024 KiB" in told(page.write(large))
    head = (
        f"POST /api/change HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\nOrigin: http://127.0.0.1:{page.port}\r\n"
        f"Content-Type: application/json\r\nX-Penstock-Key: {page.write_key}\r\nCookie: {page.cookie}\r\n"
    )
    with socket.create_connection(("127.0.0.1", page.port), 30) as endless:
        endless.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        with closing(endless.makefile("rb")) as answer:
            for _ in range(1025):
                endless.sendall(b"400\r\n" + b" " * 1024 + b"\r\n")
            assert b" 400 " in answer.readline()
    with socket.create_connection(("127.0.0.1", page.port), 30) as half:
        half.sendall(f'{head}Content-Length: 60000\r\n\r\n{{"runs"'.encode())
    assert page.write({"runs": [run.id], "tag": ["good"]}).status == 200
    assert page.close() == page.errors and "Exception" not in page.errors


def test_a_table_is_written_as_latex_for_the_page_alone(page):
    table = [["name", "loss"], ["a_b", "0.1"]]
    answer = page.write(table, "/api/latex")
    assert (answer.status, answer.body.decode().splitlines()[2]) == (200, r"name & loss \\")
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert r"a\_b & 0.1 \\" in answer.body.decode()
    assert page.write(table, "/api/latex", X_Penstock_Key=None).status == 403
    for wrong in (b"", [], [[]], {"a": 1}, [[1]], ["a"]):
        answer = page.write(wrong, "/api/latex")
        assert answer.status == 400 and "this is no table" in told(answer), wrong


def test_five_thousand_runs_that_are_there_are_changed_at_once(page, store):
    runs = group(store, "many", runs=[f"r{i}" for i in range(40)], series={"x": [1.0]})
    ids = [run.id for run in runs] * 125
    assert page.write({"runs": ids, "tag": ["many"]}).status == 200
    assert all(run.tags == ("many",) for run in store.runs())


def test_two_browsers_write_of_one_run(page, store):
    [run] = group(store, "mine")
    for tag in ("mine", "yours"):
        assert page.write({"runs": [run.id], "tag": [tag]}).status == 200
    assert store.run(run.id).tags == ("mine", "yours"), "tags of both stay"
    assert page.write({"runs": [run.id], "note": "theirs", "before": ""}).status == 200
    answer = page.write({"runs": [run.id], "note": "mine", "before": ""})
    assert answer.status == 400 and "was changed meanwhile, to 'theirs'" in told(answer)
    assert store.run(run.id).note == "theirs"
    assert page.write({"runs": [run.id], "deleted": True}).status == 200
    assert page.write({"runs": [run.id], "deleted": True}).status == 404
    assert page.write({"runs": [run.id], "note": "late"}).status == 404
    assert page.write({"runs": [run.id], "deleted": False}).status == 200
    assert page.write({"runs": [run.id], "deleted": False}).status == 200
    assert store.run(run.id).note == "theirs"


def test_a_run_that_goes_on_is_not_deleted(page, store):
    [ended] = group(store, "ended")
    [going] = group(store, "going", status=None)
    answer = page.write({"runs": [ended.id, going.id], "deleted": True})
    assert answer.status == 400 and f"not ended yet: {going.id} (running). Stop them first" in told(answer)
    assert len(store.runs()) == 2


def test_runs_are_stopped_as_by_the_command(page, store):
    [ended] = group(store, "ended")
    run = ["-m", "penstock", "run", "--store", str(store.folder), "--listeners", "none", "sleep", "100"]
    with subprocess.Popen([sys.executable, *run]) as launcher, ExitStack() as stack:
        stack.callback(launcher.terminate)
        going = eventually(lambda: next((run for run in store.runs() if run.status == "running"), None))
        answer = page.write({"runs": [ended.id, going.id]}, "/api/stop")
        assert [row["status"] for row in json.loads(answer.body)["rows"]] == ["finished", "killed"]
        assert launcher.wait(60)
    assert store.run(going.id).status == "killed"
    assert page.write({"runs": ["nobody"]}, "/api/stop").status == 404
    assert page.write({"runs": []}, "/api/stop").status == 400
    for status, strange in STRANGERS:
        headers = {
            name: text and text.format(port=page.port, other=page.port + 1) for name, text in strange.items()
        }
        assert page.write({"runs": [ended.id]}, "/api/stop", **headers).status == status


def test_a_full_disk_is_one_sentence_and_the_page_goes_on(page, store):
    [run] = group(store, "mine")
    before = resource.prlimit(page.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    for more in ({"note": "late"}, {"deleted": True}):
        answer = page.write({"runs": [run.id], **more})
        assert answer.status == 503 and "Make room if its disk is full" in told(answer), answer
    assert [row["note"] for row in page.rows()] == [""]
    resource.prlimit(page.process.pid, resource.RLIMIT_FSIZE, before)
    assert page.write({"runs": [run.id], "note": "now"}).status == 200
    assert store.run(run.id).note == "now"


def test_a_store_that_was_deleted_meanwhile_is_one_sentence(page, store):
    [run] = group(store, "mine")
    assert page.write({"runs": [run.id], "note": "first"}).status == 200
    shutil.rmtree(store.folder)
    for more in ({"note": "late"}, {"deleted": True}):
        answer = page.write({"runs": [run.id], **more})
        assert answer.status == 503 and f"{store.folder} was removed since" in told(answer), answer
    assert page.ask("/").status == 200


def test_what_was_deleted_a_week_ago_is_gone_once_the_page_is_served_again(open_page, store):
    [run] = group(store, "mine")
    store.delete([run.id])
    with store._lock:
        store._connection.execute("UPDATE runs SET deleted = deleted - 8 * 86400")
    open_page()
    eventually(lambda: not store.folder_of(run.id).exists())
