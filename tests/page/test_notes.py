"""Notes, tags, archived and deleted runs, as a person makes them in the page, with the mouse and without."""

from __future__ import annotations

import re

import pytest
from tests.forked import eventually
from tests.page.test_table import column
from tests.web.seeded import group

from penstock.runs.record import GroupPlan, RunPlan

pytestmark = pytest.mark.page


def choose(page, *names: str) -> None:
    for name in names:
        page.get_by_role("checkbox", name=f"Compare {name} of sweep").check()


def told(page, text: str) -> None:
    page.get_by_role("status").get_by_text(text).wait_for()


def undo(page) -> None:
    page.get_by_role("button", name="Undo").click()
    told(page, "Undone.")


def notes_of(store) -> list:
    return [(run.name, run.note, run.tags, run.archived) for run in store.runs()]


def test_runs_are_tagged_and_found_by_the_tag(tab, store):
    group(store, "sweep", runs=["a", "b", "c"])
    page = tab().view("runs")
    page.get_by_text("3 of 3 runs").wait_for()
    assert page.get_by_role("button", name="Tag…").is_disabled()
    choose(page, "a", "b")
    page.get_by_role("button", name="Tag…").click()
    page.keyboard.type("good")
    page.keyboard.press("Enter")
    told(page, "2 runs got the tag good")
    assert column(page, "tags") == ["", "good", "good"]
    page.get_by_role("searchbox").fill("tag:good")
    page.get_by_text("2 of 3 runs").wait_for()
    page.get_by_role("searchbox").fill("-tag:good")
    page.get_by_text("1 of 3 runs").wait_for()
    page.get_by_role("searchbox").fill("")
    page.get_by_role("checkbox", name="Compare b of sweep").uncheck()
    page.get_by_role("button", name="Tag…").click()
    page.get_by_label("Tag", exact=True).fill("good")
    page.get_by_role("button", name="Remove tag").click()
    told(page, "a of sweep lost the tag good")
    assert [run.tags for run in store.runs()] == [(), ("good",), ()]
    undo(page)
    assert [run.tags for run in store.runs()] == [("good",), ("good",), ()]


def test_what_is_no_tag_is_told_and_the_page_goes_on(tab, store):
    group(store, "sweep")
    one = tab()
    one.may_complain = True  # of the answer 400
    page = one.view("runs")
    choose(page, "a")
    page.get_by_role("button", name="Tag…").click()
    page.keyboard.type("two words")
    page.keyboard.press("Enter")
    page.get_by_role("alert").get_by_text("'two words' is no tag: a tag is one word").wait_for()
    page.get_by_label("Tag", exact=True).fill("one")
    page.keyboard.press("Enter")
    told(page, "got the tag one")
    assert page.locator("#trouble").inner_text() == ""


def test_a_note_is_written_where_it_stands(tab, store):
    group(store, "sweep", runs=["a", "b"])
    page = tab().view("runs")
    page.get_by_role("button", name="Add a note to a of sweep").click()
    page.keyboard.type("2 of 3: best so far?")  # of keys, 2 and ? are the page's own elsewhere
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("look again")
    page.keyboard.press("Enter")
    text = "2 of 3: best so far?\nlook again"
    eventually(lambda: notes_of(store)[0][1] == text)
    opener = page.get_by_role("button", name="Note of a of sweep: 2 of 3")
    opener.wait_for()
    assert opener.evaluate("each => each === document.activeElement"), "the keyboard goes on from there"
    page.keyboard.press("Enter")
    page.keyboard.type("never mind")
    page.keyboard.press("Escape")
    opener.wait_for()
    page.get_by_role("button", name="Add a note to b of sweep").click()
    page.keyboard.type("left by the mouse")
    page.get_by_role("searchbox").click()
    eventually(lambda: notes_of(store)[1][1] == "left by the mouse")
    assert notes_of(store)[0][1] == text
    page.get_by_role("searchbox").fill("best")
    page.get_by_text("1 of 2 runs").wait_for()


def test_archived_runs_are_hidden_until_they_are_asked_for(tab, store):
    group(store, "sweep", runs=["a", "b"])
    page = tab().view("runs")
    choose(page, "a")
    assert not page.get_by_label("Show archived").is_visible()
    page.get_by_role("button", name="Archive", exact=True).click()
    told(page, "a of sweep archived")
    page.get_by_text("1 of 2 runs").wait_for()
    page.get_by_label("Show archived").check()
    page.get_by_text("2 of 2 runs").wait_for()
    assert column(page, "tags") == ["", "archived"]
    page.get_by_role("button", name="Unarchive").click()
    told(page, "no longer archived")
    undo(page)
    assert notes_of(store)[0][3]


def test_deleted_runs_vanish_at_once_and_undo_brings_them_back_in_their_places(tab, store, open_page):
    runs = group(store, "sweep", runs=["a", "b", "c", "d"])
    server = open_page()
    page, other = (tab(server).view("runs") for _ in range(2))
    for each in (page, other):
        each.get_by_text("4 of 4 runs").wait_for()
    choose(page, "a", "c")
    page.get_by_role("button", name="Delete").click()
    told(page, "2 runs deleted.")
    assert column(page, "run") == ["d", "b"]
    other.get_by_text("2 of 2 runs").wait_for()
    assert [run.name for run in store.runs()] == ["b", "d"]
    page.keyboard.press("4")
    page.get_by_role("heading", name="Groups").or_(page.locator("main h2")).first.wait_for()
    page.keyboard.press("2")
    undo(page)
    for each in (page, other):
        each.get_by_text("4 of 4 runs").wait_for()
        assert column(each, "run") == ["d", "c", "b", "a"]
    assert store.runs() == runs


def test_another_browser_sees_it_and_no_note_is_lost(tab, store, open_page):
    [run] = group(store, "sweep")
    server = open_page()
    mine, yours = tab(server), tab(server)
    mine.may_complain = True  # of the answer 400
    page, other = mine.view("runs"), yours.view(f"run/{run.id}")
    page.get_by_role("button", name="Add a note").click()
    page.keyboard.type("mine")
    other.get_by_role("button", name="Add a note").click()
    other.keyboard.type("yours")
    other.keyboard.press("Enter")
    other.get_by_label("Tag", exact=True).fill("good")
    other.keyboard.press("Enter")
    other.locator(".tag", has_text="good").wait_for()
    group(store, "later", parameters={"lr": "0.1"})
    page.get_by_text("2 of 2 runs").wait_for()
    assert page.get_by_label("Enter keeps it").input_value() == "mine", "what is being written stays"
    page.keyboard.press("Enter")
    page.get_by_role("alert").get_by_text("was changed meanwhile, to 'yours'").wait_for()
    assert store.run(run.id).note == "yours"
    page.get_by_label("Enter keeps it").press("Enter")
    other.get_by_role("button", name="Note of a of sweep: mine").wait_for()
    eventually(lambda: "tags" in page.locator("main thead").inner_text())
    assert column(page, "tags") == ["", "good"]
    other.get_by_role("button", name="Remove tag good").click()
    eventually(lambda: store.run(run.id).tags == ())


def test_all_of_it_works_with_the_keyboard_alone(tab, store):
    group(store, "sweep", runs=["a", "b"])
    page = tab().view("runs")
    page.get_by_text("2 of 2 runs").wait_for()
    for key in ("j", "x"):
        page.keyboard.press(key)

    def press(name: str) -> None:
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.textContent") == name:
                return page.keyboard.press("Enter")
        raise AssertionError(f"Tab does not lead to {name}")

    press("Tag…")
    page.keyboard.type("by-hand")
    page.keyboard.press("Enter")
    told(page, "b of sweep got the tag by-hand")
    press("Delete")
    told(page, "b of sweep deleted")
    press("Undo")
    told(page, "Undone.")
    assert [run.tags for run in store.runs()] == [(), ("by-hand",)]


def test_runs_are_stopped_once_somebody_is_sure(tab, store):
    group(store, "sweep", runs=["over"])
    plans = tuple(RunPlan(command=("true",), name=name, directory="/") for name in ("a", "b"))
    a, b = store.add(GroupPlan(name="sweep", runs=plans))  # they wait for this process
    one = tab()
    page = one.view("runs")
    page.get_by_text("3 of 3 runs").wait_for()
    stop = page.get_by_role("button", name=re.compile("^(Stop|Sure)"))
    choose(page, "over")
    assert not stop.is_visible(), "it has ended"
    choose(page, "a", "b")
    stop.click()
    page.get_by_role("button", name="Sure? Press again to stop these 2 runs").wait_for()
    one.picture("stop")
    assert [run.status for run in store.runs()] == ["finished", "waiting", "waiting"]
    page.get_by_role("button", name="Stop", exact=True).wait_for(timeout=10_000)  # nobody was sure
    page = one.view(f"run/{a.id}")
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("button", name="Sure? Press again to stop it").click()
    page.get_by_text("killed: never began").wait_for()
    eventually(lambda: not stop.is_visible())
    assert [store.run(each.id).status for each in (a, b)] == ["killed", "waiting"]
