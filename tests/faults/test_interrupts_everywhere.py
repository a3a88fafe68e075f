"""Ctrl-C at every place of attach, close, select and share: it arrives, and neither leaves nor closes a file."""

from __future__ import annotations

import gc
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from tests.faults.interrupting import Alarms, Place, Visits, open_files
from tests.faults.sources import rows

import penstock

ROWS = 60
EVEN = list(range(0, ROWS, 2))

pytestmark = [
    pytest.mark.timeout(method="thread"),  # the alarm is the tests' own
    pytest.mark.usefixtures("no_gc_callbacks"),
    # What Ctrl-C leaves half made is closed when it goes, which Python tells those who want to know.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture
def attached(feed: Callable[..., Any]) -> Callable[..., penstock.Loader]:
    """A feed in a process of its own, and how to attach to it."""
    feed(source={"samples": ROWS, "batch_size": 8})
    penstock.attach("feed", 8, wait_s=10).close()
    return lambda **options: penstock.attach("feed", 7, **options)


def ids_of(loader: penstock.Loader) -> list[int]:
    return sorted(int(i) for batch in loader for i in batch["id"])


@contextmanager
def others_files() -> Iterator[None]:
    """Files of the script's own, opened at the numbers that come free: they are still the script's afterwards."""
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(12)]
    opened = [os.fstat(fd) for fd in files]
    yield
    assert [os.fstat(fd) for fd in files] == opened
    for fd in files:
        os.close(fd)


def is_right_afterwards(before: dict[int, str], attached: Callable[..., penstock.Loader]) -> None:
    with others_files(), attached() as loader:
        assert ids_of(loader) == list(range(ROWS))
    del loader
    assert open_files() == before


def interrupted(call: Callable[[], Any], at: Place | None) -> tuple[list[Any], Visits]:
    """What a call gave that was interrupted at this place, if it gave anything."""
    given: list[Any] = []
    visits = Visits(at)
    with suppress(KeyboardInterrupt), visits:
        given.append(call())
        assert not visits.raised, "Ctrl-C was lost"
    return given, visits


def some(places: Any, quick: int) -> list[Place]:
    """All places, or some that differ from run to run of the tests."""
    every = list(places)
    return every if quick < 0 else random.Random().sample(every, min(quick, len(every)))


def interrupted_anywhere(act: Callable[[Place | None], Visits], quick: int) -> Iterator[Place]:
    """Interrupt it at one place after the other; no file is left open, or closed that was open."""
    before = open_files()
    for place in some(act(None).places, quick):
        act(place)
        assert open_files() == before, place
        yield place


@pytest.fixture(params=[10, pytest.param(-1, marks=pytest.mark.whole)])
def quick(request: pytest.FixtureRequest) -> int:
    """How many places to try; -1 means all."""
    return request.param


@pytest.mark.parametrize("options", [{"borrow": True}, {"select": EVEN}], ids=["views", "selected"])
def test_attach(clean, attached, options, quick):
    attached(**options).close()
    before = open_files()
    given, visits = interrupted(lambda: attached(**options), None)
    given.pop().close()
    for place in some(visits.places, quick):
        given, _ = interrupted(lambda: attached(**options), place)
        assert given == []
        assert open_files() == before, place
        is_right_afterwards(before, attached)


@pytest.mark.parametrize("options", [{"borrow": True}, {"select": EVEN}], ids=["views", "selected"])
def test_close(clean, attached, options, quick):
    before = open_files()

    def close(at: Place | None) -> Visits:
        loader = attached(**options)
        batches = iter(loader)
        kept = [next(batches), next(batches)]
        content = [batch["id"].tolist() for batch in kept]
        assert "borrow" not in options or loader.statistics().viewed_bytes
        visits = interrupted(loader.close, at)[1]
        with others_files():
            if visits.raised:
                with pytest.raises(penstock.errors.LoaderClosed):
                    next(batches)
            loader.close()
            assert [batch["id"].tolist() for batch in kept] == content
        return visits

    for _ in interrupted_anywhere(close, quick):
        is_right_afterwards(before, attached)


def test_a_loader_that_is_dropped(clean, attached, quick):
    def drop(at: Place | None) -> Visits:
        holder = [attached()]
        next(iter(holder[0]))
        return interrupted(holder.clear, at)[1]

    assert [*interrupted_anywhere(drop, quick)]


def test_a_view_that_is_dropped(clean, attached, quick):
    with attached(borrow=True) as loader:

        def drop(at: Place | None) -> Visits:
            batches = iter(loader)
            kept = [next(batches)]
            next(batches)
            return interrupted(kept.clear, at)[1]

        for place in some(drop(None).places, quick):
            drop(place)
            assert ids_of(loader) == list(range(ROWS)), place


def test_select(clean, attached, quick):
    def select(at: Place | None) -> Visits:
        with attached() as loader:
            next(iter(loader))
            visits = interrupted(lambda: loader.select(EVEN), at)[1]
            with others_files():
                taken = loader.selected is not None
                assert ids_of(loader) == (EVEN if taken else list(range(ROWS)))
                loader.select(EVEN[:9])
                assert ids_of(loader) == EVEN[:9]
        return visits

    assert [*interrupted_anywhere(select, quick)]


def test_an_epoch(clean, attached, quick):
    with attached() as loader:

        def epoch(at: Place | None) -> Visits:
            got: list[Any] = []
            batches = iter(loader)
            visits = Visits(at)
            with suppress(KeyboardInterrupt), visits:
                got.extend(batches)
            got.extend(batches)
            assert sorted(int(i) for batch in got for i in batch["id"]) == list(range(ROWS)), at
            return visits

        for place in some(epoch(None).places, quick):
            epoch(place)


@contextmanager
def reading() -> Iterator[None]:
    """Another thread reads an epoch of the feed, over and over, if there is one."""
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            with suppress(penstock.PenstockError), penstock.attach("feed", 7) as loader:
                ids_of(loader)
            over.wait(0.005)

    reader = threading.Thread(target=read)
    reader.start()
    yield
    over.set()
    reader.join()


def test_a_feeder(clean, quick):
    """From its making to its end, in this thread: it ends, and leaves neither files nor its name taken."""
    before = open_files()

    def feed(at: Place | None) -> Visits:
        made: list[penstock.Feeder] = []

        def run() -> None:
            made.append(penstock.Feeder(rows(ROWS, 8), "feed", linger=0.0))
            with made[0]:
                made[0].run()

        with reading():
            visits = interrupted(run, at)[1]
            for feeder in made:
                feeder.close()
        return visits

    for place in some(feed(None).places, quick):
        feed(place)
        gc.collect()
        assert open_files() == before, place
        penstock.Feeder(rows(ROWS, 8), "feed").close()
        assert os.listdir(os.environ["PENSTOCK_DIR"]) == [], place


@pytest.mark.parametrize("quick", [4, pytest.param(60, marks=pytest.mark.soak)])
def test_share_that_starts_the_feeder(clean, forks_feeders, quick):
    def share() -> penstock.Loader:
        return penstock.share(lambda: rows(ROWS, 8), "shared", 7, linger=0.0)

    share().close()
    before = open_files()
    given, visits = interrupted(share, None)
    given.pop().close()
    for place in some(visits.places, quick):
        while "shared" in {feed.name for feed in penstock.feeds()}:
            pass
        assert interrupted(share, place)[0] == []
        assert open_files() == before, place
        with others_files(), share() as loader:
            assert ids_of(loader) == list(range(ROWS))
        del loader
        assert open_files() == before, place


@pytest.mark.parametrize("interrupts", [100, pytest.param(3000, marks=pytest.mark.soak)])
def test_at_random(clean, attached, interrupts):
    """Of so many, at random moments of a Loader's life, none breaks anything, and none is lost."""
    choose = random.Random(interrupts)
    before = open_files()

    def live() -> None:
        with attached(borrow=choose.random() < 0.5) as loader:
            next(iter(loader))
            loader.select(EVEN)
            assert ids_of(loader) == EVEN

    with Alarms(choose, 0.02) as alarms:
        while alarms.came < interrupts:
            came = alarms.came
            try:
                alarms.arm()
                live()
                alarms.disarm()
                assert alarms.came == came, "Ctrl-C was lost"
            except KeyboardInterrupt:
                pass
            if alarms.came % 20 == 0:
                is_right_afterwards(before, attached)
    is_right_afterwards(before, attached)
