"""127.0.0.1 is open to every user, and a browser to every page: only who has the URL reads, and nobody writes."""

from __future__ import annotations

import re
import resource
import socket
import time
from contextlib import ExitStack, suppress

import pytest
from tests.cli.conftest import refused


def test_nothing_is_shown_without_the_key(page):
    page.cookie = ""
    for path in ("/", "/api/summaries", "/page/index.html", "/?token=", "/?token=wrong", "/api/live"):
        assert page.ask(path).status == 401
    assert page.ask("/api/summaries", Cookie=f"penstock-{page.port}=wrong").status == 401


def test_the_url_opens_the_page(page):
    answer = page.ask("/?" + page.key, Cookie="", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")
    assert answer.status == 200 and b"main.js" in answer.body
    assert "HttpOnly" in answer.headers["Set-Cookie"] and "SameSite=Strict" in answer.headers["Set-Cookie"]
    assert page.key.removeprefix("token=") not in answer.headers["Set-Cookie"]
    assert page.ask("/api/summaries?" + page.key, Cookie="").status == 401, "the key opens the page, nothing else"


def test_what_another_server_at_this_port_was_sent_opens_nothing(page, open_page):
    page.close()
    again = open_page("--port", str(page.port))
    assert again.key != page.key
    assert again.ask("/api/summaries", Cookie=page.cookie).status == 401
    assert again.ask("/?" + page.key, Cookie="").status == 401


def test_cookies_of_others_are_no_hindrance(page):
    for other in ('a={"x": 1}', "word", "n=a b", "a=\xe9", "=", ";;"):
        assert page.ask("/api/summaries", Cookie=f"{other}; {page.cookie}").status == 200, other


def test_a_host_that_is_not_this_one_is_refused(page):
    for host in ("evil.example", "127.0.0.1.evil.example", "", "[", "localhost.:1"):
        assert page.ask("/api/summaries", Host=host).status in {400, 421}, host


def test_behind_a_forward_the_port_may_be_another(page):
    for host in ("localhost:9999", "127.0.0.1", "[::1]:80", "LocalHost"):
        assert page.ask("/api/summaries", Host=host).status == 200, host


def test_a_name_can_be_allowed(open_page):
    page = open_page("--allow-host", "gpu7.example")
    page.enter()
    assert page.ask("/api/summaries", Host="gpu7.example:80").status == 200


def test_another_page_is_refused(page):
    for origin in ("http://evil.example", "null", "http://["):
        assert page.ask("/api/summaries", Origin=origin).status == 403
    assert page.ask("/api/summaries", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors").status == 403
    assert page.ask("/api/summaries", Sec_Fetch_Site="same-site", Sec_Fetch_Mode="cors").status == 403
    assert page.ask("/api/summaries", Sec_Fetch_Site="same-origin", Sec_Fetch_Mode="cors").status == 200
    assert page.ask("/api/summaries", Origin=f"http://127.0.0.1:{page.port}").status == 200


def test_what_is_read_cannot_be_changed(page):
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        for path in ("/api/summaries", "/api/change", "/api/key"):
            assert page.ask(path, method=method).status == 405, method
    assert page.ask("/api/summaries", method="POST").status == 403
    for path in ("/api/summaries", "/api/key", "/api/live", "/"):
        assert page.write({}, path).status == 405, path


def test_every_answer_says_what_a_browser_may_do_with_it(page):
    for path, cookie in [*((path, page.cookie) for path in ("/", "/api/summaries", "/nothing")), ("/", "")]:
        headers = page.ask(path, Cookie=cookie).headers
        assert "script-src 'self'" in headers["Content-Security-Policy"]
        assert "unsafe-inline" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"


def test_no_file_but_the_page_s_is_served(page):
    folder = re.search(rb'"(/page/\w+/)main.js"', page.ask("/").body)[1].decode()
    assert page.ask(folder + "main.js").status == 200
    for name in ("../access.py", "%2e%2e/access.py", "vendor/../../access.py", "/etc/passwd", "index.html"):
        assert page.ask(folder + name).status == 404, name


def test_a_port_that_is_taken_is_one_clear_error(here, store):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = refused(here("web", "--store", str(store.folder), "--port", str(port)))
    assert told.startswith(f"penstock: --port {port}: another program listens there; leave --port out,")


@pytest.mark.whole
@pytest.mark.parametrize("before", [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"], ids=["first", "second"])
def test_hundreds_of_half_requests_do_not_lock_the_owner_out(page, before):
    resource.prlimit(page.process.pid, resource.RLIMIT_NOFILE, (200, 200))
    with ExitStack() as kept:
        for _ in range(250):
            half = kept.enter_context(socket.create_connection(("127.0.0.1", page.port), 30))
            with suppress(ConnectionError):  # those that are dropped
                half.sendall(before + b"GET / HTTP/1.1\r\nHost: localhost\r\nX")
            time.sleep(0.005)  # or the kernel drops what the server has no room for, and tries again after 1 s
        assert page.ask("/api/groups").status == 200


def test_a_store_that_was_not_there_is_said_to_be_new(tmp_path, page, open_page):
    said = f"penstock: the store of runs {tmp_path / 'typo'} was not there and is new"
    assert said in open_page(folder=tmp_path / "typo").close()
    assert "is new" not in page.close()


def test_an_address_that_all_can_reach_is_warned_of(open_page):
    page = open_page("--host", "0.0.0.0")
    assert socket.gethostname() in page.url
    assert "open to the network" in page.close()
