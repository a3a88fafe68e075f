from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.web.conftest import Page, open_page, web_server  # noqa: F401 - fixtures

PICTURES = os.environ.get("PENSTOCK_PICTURES")
"""Folder for pictures of what the tests saw; none are taken without it."""


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox"],
            ignore_default_args=["--disable-ipc-flooding-protection"],  # people's browsers have it
        )
        yield browser
        browser.close()


class Tab:
    """A page in a browser. What the browser complains of fails the test."""

    def __init__(self, browser: Any, page: Page, **settings: Any) -> None:
        self.server = page
        self.context = browser.new_context(
            accept_downloads=True, **{"viewport": {"width": 1280, "height": 900}} | settings
        )
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda said: said.type == "error" and self.complaints.append(said.text))
        self.page.goto(page.url)
        self.page.get_by_text("live", exact=True).wait_for()

    def view(self, address: str) -> Any:
        """Go to a view, such as ``runs?filter=a``."""
        self.page.goto(self.page.url.partition("#")[0] + f"#/{address}")
        return self.page

    def picture(self, name: str) -> None:
        if PICTURES:
            self.page.wait_for_timeout(700)
            self.page.screenshot(path=Path(PICTURES) / f"{name}.png")

    def close(self, *, may_complain: bool = False) -> None:
        self.context.close()
        assert may_complain or not self.complaints, self.complaints


@pytest.fixture
def tab(chromium: Any, open_page: Callable[..., Page]) -> Iterator[Callable[..., Tab]]:  # noqa: F811
    tabs: list[Tab] = []

    def make(server: Page | None = None, **settings: Any) -> Tab:
        tabs.append(Tab(chromium, server or open_page(), **settings))
        return tabs[-1]

    yield make
    for each in tabs:
        each.close(may_complain=getattr(each, "may_complain", False))
