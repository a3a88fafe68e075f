"""Questions that people have of their runs, each answered within four clicks, or ten where much is done."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.forked import eventually
from tests.page.test_table import column
from tests.web.seeded import group

from penstock.runs.store import Store

pytestmark = pytest.mark.page


class Person:
    """Somebody before the page, whose clicks, choices and words are counted."""

    def __init__(self, tab: Any) -> None:
        self.tab = tab
        self.page = tab.page
        self.clicks = self.most = 0

    def begins(self, most: int = 4) -> Person:
        """Come to the page as if for the first time."""
        self.page.goto("about:blank")
        self.page.goto(self.tab.server.url)
        self.page.get_by_text("live", exact=True).wait_for()
        self.clicks, self.most = 0, most
        return self

    def does(self, does: Any, *values: Any) -> None:
        self.clicks += 1
        assert self.clicks <= self.most
        does(*values)

    def turns_to(self, view: str) -> None:
        self.does(self.page.locator("nav").get_by_role("link", name=view, exact=True).click)

    def presses(self, button: str | re.Pattern[str]) -> None:
        self.does(self.page.get_by_role("button", name=button, exact=isinstance(button, str)).first.click)

    def types(self, words: str) -> None:
        self.does(self.page.keyboard.type, words)
        self.page.keyboard.press("Enter")

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
    group(store, "broken", runs=["diverges"], status="failed", reason="ValueError: loss is NaN")
    for at, lr in enumerate(("0.003", "0.01", "0.03", "0.1")):
        for seed in range(2):
            series = {
                "eval/loss": [2.0, 1.0 + abs(at - 2) + 0.1 * seed, 0.5 + abs(at - 2) + 0.1 * seed],
                "epoch": [0.0, 1.0, 2.0],
                "feed.wait_s": [0.0, 12.0 * (4 - at)],
                "feed.loop_s": [0.0, 55.0],
                "proc.rss_bytes": [1e9 * (at + 1)] * 3,
                "proc.cpu_s": [0.0, 30.0],
            }
            parameters = {"lr": lr, "seed": str(seed)}
            group(store, "sweep", runs=[f"lr={lr} seed={seed}"], parameters=parameters, series=series)
    for name, seconds in (("own loaders", 100.0), ("one feed", 40.0)):
        for more in (0.0, 10.0):
            group(store, name, runs=["a", "b"], seconds=seconds + more)
    group(
        store,
        "going",
        runs=["goes on"],
        status=None,
        parameters={"epochs": "5"},
        series={"epoch": [0.0, 1.0, 2.0]},
    )
    return Person(tab())


def which_run_had_the_lowest_loss_and_its_learning_rate(person: Person) -> None:
    person.turns_to("Runs")
    person.does(person.page.get_by_text("Columns", exact=True).click)
    person.does(person.page.get_by_label("Column least eval/loss").check)
    person.sorts_by("least eval/loss")
    eventually(lambda: [text for text in column(person.page, "least eval/loss") if text][:1] == ["0.5"])
    rates = dict(zip(column(person.page, "least eval/loss"), column(person.page, "lr"), strict=True))
    assert rates["0.5"] == "0.03"


def how_smoothed_losses_went_over_epochs(person: Person) -> None:
    person.turns_to("Compare")
    person.does(person.page.get_by_label("Horizontal axis").select_option, "epoch")
    person.does(person.page.get_by_label("Smoothing").fill, "0.5")
    person.page.get_by_role("img", name="over epoch").first.wait_for()


def what_differs_between_two_runs(person: Person) -> None:
    person.turns_to("Runs")
    for run in ("lr=0.01 seed=0 of sweep", "lr=0.03 seed=0 of sweep"):
        person.does(person.page.get_by_label(f"Compare {run}").check)
    person.presses("Compare")
    person.reads("parameter lr")
    person.page.locator("main .chart").filter(has_text="eval/loss").locator("canvas").first.wait_for()


def what_the_mean_over_seeds_is_by_learning_rate(person: Person) -> None:
    person.turns_to("Runs")
    person.does(person.page.get_by_role("searchbox").fill, "eval/loss<9")
    person.does(person.page.get_by_label("Group by").select_option, "lr")
    person.presses("Compare")  # without a choice, all that are shown
    person.reads("lr = 0.03, 2 runs")
    person.reads("Band: from the least to the greatest")


def who_waited_and_what_to_do(person: Person) -> None:
    person.turns_to("Runs")
    person.sorts_by("waits")
    eventually(lambda: column(person.page, "run")[0].startswith("lr=0.003"))
    assert column(person.page, "waits")[0] == "80%"
    person.turns_to("Where the time goes")
    person.presses(re.compile("^sweep.* all 8 groups"))
    person.reads("waits 80% of its time for data")


def how_much_cpu_and_memory_a_run_took_over_time(person: Person) -> None:
    person.turns_to("Runs")
    person.opens("lr=0.1 seed=1")
    for title in ("CPU", "Memory of its processes"):
        person.page.locator("main .chart").filter(has_text=title).locator("canvas").first.wait_for()


def what_sharing_a_loader_gained(person: Person) -> None:
    person.turns_to("Where the time goes")  # which shows the two newest that have finished, with their repeats
    person.reads("beside 'own loaders' (plain), each run takes 0.43 times as long")
    with person.page.expect_download() as download:
        person.presses("Save groups as PDF")
    assert download.value.path().read_bytes().startswith(b"%PDF")


def how_to_write_down_what_was_learnt_and_put_away_the_rest(person: Person) -> None:
    person.turns_to("Runs")
    person.presses("Add a note to lr=0.03 seed=0 of sweep")
    person.types("the best")
    person.does(person.page.get_by_label("Compare lr=0.03 seed=0 of sweep").check)
    person.presses("Tag…")
    person.types("good")
    person.does(person.page.get_by_role("searchbox").fill, "tag:good")
    person.reads("1 of 18 runs")
    person.presses("Archive")
    person.reads("archived")
    person.presses("Undo")
    person.reads("1 of 18 runs")
    person.presses("Delete")


def which_parameters_lead_to_a_low_loss(person: Person) -> None:
    person.turns_to("Runs")
    person.presses("Parameters")
    person.does(person.page.get_by_label("Metric").select_option, "eval/loss")
    person.does(person.page.get_by_label("Which of its values").select_option, "least")
    person.reads("least eval/loss over lr")


def how_far_it_is_what_it_prints_and_how_to_stop_it(person: Person) -> None:
    person.turns_to("Now")
    person.reads("epoch 2 of 5")
    person.opens("goes on")
    person.reads("goes on began")
    person.presses("Stop")
    person.reads("Sure? Press again")  # which would end this process, whose run it is


def why_a_run_failed_and_how_it_was_started(person: Person) -> None:
    person.turns_to("Runs")
    assert person.page.get_by_text("failed (1)").get_attribute("title") == "ValueError: loss is NaN"
    person.opens("diverges")
    person.reads("failed, exit code 1: ValueError: loss is NaN")
    person.reads("epoch 0")
    person.reads("python train.py")


def which_run_took_the_most_memory(person: Person) -> None:
    person.turns_to("Runs")
    person.sorts_by("memory")
    eventually(lambda: column(person.page, "run")[0].startswith("lr=0.1"))


def how_to_put_a_chart_into_a_paper(person: Person) -> None:
    person.turns_to("Runs")
    person.opens("lr=0.03 seed=0")
    chart = person.page.locator("main .chart").filter(has_text="eval/loss").first
    chart.locator("canvas").wait_for()
    with person.page.expect_download() as download:
        person.does(chart.get_by_text("SVG", exact=True).click)
    assert "<svg" in download.value.path().read_text()


QUESTIONS = [
    which_run_had_the_lowest_loss_and_its_learning_rate,
    how_smoothed_losses_went_over_epochs,
    what_differs_between_two_runs,
    what_the_mean_over_seeds_is_by_learning_rate,
    who_waited_and_what_to_do,
    how_much_cpu_and_memory_a_run_took_over_time,
    what_sharing_a_loader_gained,
    which_parameters_lead_to_a_low_loss,
    how_far_it_is_what_it_prints_and_how_to_stop_it,
    why_a_run_failed_and_how_it_was_started,
    which_run_took_the_most_memory,
    how_to_put_a_chart_into_a_paper,
]


def test_each_question_is_answered_within_four_clicks(person: Person) -> None:
    for question in QUESTIONS:
        question(person.begins())


def test_what_is_written_of_runs_takes_ten_clicks(person: Person) -> None:
    how_to_write_down_what_was_learnt_and_put_away_the_rest(person.begins(most=10))
