"""Ten questions that people have of their runs, each answered within four clicks."""

from __future__ import annotations

from typing import Any

import pytest
from tests.forked import eventually
from tests.page.test_table import column
from tests.web.seeded import group

from penstock.runs.store import Store

pytestmark = pytest.mark.page

MOST_CLICKS = 4


class Person:
    """Somebody before the page, whose clicks, choices and words are counted."""

    def __init__(self, tab: Any) -> None:
        self.tab = tab
        self.page = tab.page
        self.clicks = 0

    def begins(self) -> Person:
        """Come to the page as if for the first time."""
        self.page.goto("about:blank")
        self.page.goto(self.tab.server.url)
        self.page.get_by_text("live", exact=True).wait_for()
        self.clicks = 0
        return self

    def does(self, does: Any, *values: Any) -> None:
        self.clicks += 1
        assert self.clicks <= MOST_CLICKS
        does(*values)

    def turns_to(self, view: str) -> None:
        self.does(self.page.locator("nav").get_by_role("link", name=view, exact=True).click)

    def sorts_by(self, name: str) -> None:
        self.does(self.page.locator("main thead").get_by_role("button", name=name, exact=True).click)

    def opens(self, run: str) -> None:
        self.does(self.page.locator("main").get_by_role("link", name=run, exact=True).first.click)

    def reads(self, text: str) -> None:
        """Wait for a text that can be seen without another click."""
        self.page.locator("body").get_by_text(text).first.wait_for()


@pytest.fixture
def person(tab: Any, store: Store) -> Person:
    """Somebody with a sweep whose runs wait the longer the smaller they are, two groups, a failure, a live run."""
    for at, lr in enumerate(("0.003", "0.01", "0.03", "0.1")):
        losses = [2.0, 1.0 + abs(at - 2), 0.5 + abs(at - 2)]
        waits = {"feed.wait_s": [0.0, 12.0 * (4 - at)], "feed.loop_s": [0.0, 55.0]}
        memory = {"proc.rss_bytes": [1e9 * (at + 1)] * 3, "proc.cpu_s": [0.0, 30.0]}
        series = {"loss": losses, **waits, **memory}
        group(store, "sweep", runs=[f"lr={lr}"], parameters={"lr": lr}, series=series)
    for name, seconds in (("own loaders", 100.0), ("one feed", 40.0)):
        group(store, name, runs=["a", "b"], seconds=seconds)
    group(store, "broken", runs=["diverges"], status="failed", reason="ValueError: loss is NaN")
    group(store, "going", runs=["goes on"], status=None)
    return Person(tab())


def which_learning_rate_was_best(person: Person) -> None:
    person.turns_to("Runs")
    person.does(person.page.get_by_text("Columns", exact=True).click)
    person.does(person.page.get_by_label("Column least loss").check)
    person.sorts_by("least loss")
    eventually(lambda: [text for text in column(person.page, "least loss") if text][:1] == ["0.5"])
    rates = dict(zip(column(person.page, "least loss"), column(person.page, "lr"), strict=True))
    assert rates["0.5"] == "0.03"


def which_runs_waited_for_data(person: Person) -> None:
    person.turns_to("Runs")
    person.sorts_by("waits")
    eventually(lambda: column(person.page, "run")[0] == "lr=0.003")
    assert column(person.page, "waits")[0] == "80%"


def what_differs_between_two_runs(person: Person) -> None:
    person.turns_to("Runs")
    for run in ("lr=0.01 of sweep", "lr=0.03 of sweep"):
        person.does(person.page.get_by_label(f"Compare {run}").check)
    person.does(person.page.get_by_role("button", name="Compare", exact=True).click)
    person.reads("parameter lr")


def why_a_run_failed(person: Person) -> None:
    person.turns_to("Runs")
    assert person.page.get_by_text("failed (1)").get_attribute("title") == "ValueError: loss is NaN"
    person.opens("diverges")
    person.reads("failed, exit code 1: ValueError: loss is NaN")
    person.reads("epoch 0")


def with_what_command_a_run_was_started(person: Person) -> None:
    person.turns_to("Runs")
    person.opens("lr=0.1")
    person.reads("python train.py")


def how_the_loss_of_two_runs_went_beside_each_other(person: Person) -> None:
    person.turns_to("Runs")
    for run in ("lr=0.01 of sweep", "lr=0.03 of sweep"):
        person.does(person.page.get_by_label(f"Compare {run}").check)
    person.does(person.page.get_by_role("button", name="Compare", exact=True).click)
    person.page.locator("main .chart").filter(has_text="loss").locator("canvas").first.wait_for()


def what_sharing_a_loader_gained(person: Person) -> None:
    person.turns_to("Where the time goes")  # which shows the two newest that have finished
    person.reads("sooner than 'own loaders'")
    with person.page.expect_download() as download:
        person.does(person.page.get_by_role("button", name="Save groups as PDF").click)
    assert download.value.path().read_bytes().startswith(b"%PDF")


def which_run_took_the_most_memory(person: Person) -> None:
    person.turns_to("Runs")
    person.sorts_by("memory")
    eventually(lambda: column(person.page, "run")[0] == "lr=0.1")


def what_runs_now_and_how_far_it_is(person: Person) -> None:
    person.turns_to("Now")
    person.reads("goes on")
    person.opens("goes on")
    person.page.locator("main .chart canvas").first.wait_for()


def how_to_put_a_chart_into_a_paper(person: Person) -> None:
    person.turns_to("Runs")
    person.opens("lr=0.03")
    chart = person.page.locator("main .chart").filter(has_text="loss").first
    chart.locator("canvas").wait_for()
    with person.page.expect_download() as download:
        person.does(chart.get_by_text("SVG", exact=True).click)
    assert "<svg" in download.value.path().read_text()


QUESTIONS = [
    which_learning_rate_was_best,
    which_runs_waited_for_data,
    what_differs_between_two_runs,
    why_a_run_failed,
    with_what_command_a_run_was_started,
    how_the_loss_of_two_runs_went_beside_each_other,
    what_sharing_a_loader_gained,
    which_run_took_the_most_memory,
    what_runs_now_and_how_far_it_is,
    how_to_put_a_chart_into_a_paper,
]


def test_each_question_is_answered_within_four_clicks(person: Person) -> None:
    for question in QUESTIONS:
        question(person.begins())
