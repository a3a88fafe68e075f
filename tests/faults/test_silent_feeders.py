"""A feeder that is there and does not answer: trainers are told so, it is listed, and it can be ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import msgspec
import pytest
from tests.faults.conftest import Run, eventually
from tests.faults.sources import rows
from typer.testing import CliRunner

import penstock
from penstock.cli.command import app
from penstock.feed import queries, wire
from penstock.feed.endpoint import Endpoint, Owner
from penstock.feed.launch import feeds
from penstock.feed.trainer import connection

pytestmark = pytest.mark.whole


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for an answer for more than a moment."""
    for name in ("attach.ANSWER_S", "shared.ANSWER_S", "feeds._ANSWER_S", "feeds._STOP_ANSWER_S"):
        monkeypatch.setattr(f"penstock.feed.launch.{name}", 0.5)
    monkeypatch.setattr(queries.feeds, "__defaults__", (0.5,))


@pytest.fixture
def stopped(feed, train) -> Run:
    """A feeder that has served, and is stopped."""
    feeder = feed()
    train().has_all(1000, 2)
    feeder.stop()
    return feeder


@pytest.fixture(params=[False, True], ids=["alone", "crowded"])
def crowd(stopped, request: pytest.FixtureRequest) -> Iterator[None]:
    """As many connections to a stopped feeder as are queued for it, so that the next would wait; or none."""
    with ExitStack() as queued:
        with suppress(TimeoutError):
            while request.param:
                queued.enter_context(Endpoint("feed").connect(0.05))
        yield


def told(use: Callable[[], Any], feeder: Run) -> None:
    says = rf"feeder \(process {feeder.pid}\) of feed 'feed' has not answered .* stopped, or too busy"
    with pytest.raises(penstock.errors.FeederSilent, match=says) as silent:
        use()
    assert f"kill -CONT {feeder.pid}" in str(silent.value)
    assert "penstock stop feed" in str(silent.value)


USES = {
    "attach": lambda: penstock.attach("feed"),
    "attach and wait": lambda: penstock.attach("feed", wait_s=0.7),
    "share": lambda: penstock.share(rows, "feed"),
}


def test_a_trainer_whose_feeder_is_stopped_says_so_while_it_waits(feed, capsys, monkeypatch):
    monkeypatch.setattr(connection, "_ASK_AFTER_S", 0.1)
    feeder = feed()
    with penstock.attach("feed", wait_s=60) as loader:
        batches = iter(loader)
        next(batches)
        feeder.stop()
        threading.Timer(4, feeder.signal, ("SIGCONT",)).start()
        assert len([*batches]) == len(loader) - 1
    assert f"its feeder (process {feeder.pid}) does not answer" in capsys.readouterr().err


@pytest.mark.parametrize("use", USES.values(), ids=list(USES))
def test_who_comes_to_a_stopped_feeder_is_told_its_process_and_what_to_do(clean, impatient, stopped, crowd, use):
    told(use, stopped)


def test_a_feeder_that_goes_on_while_it_is_waited_for_admits(stopped):
    with ThreadPoolExecutor() as threads:
        attaching = [threads.submit(use) for use in USES.values() for _ in range(2)]
        stopped.signal("SIGCONT")
        for loader in attaching:
            with loader.result(60) as each:
                assert sum(len(batch["id"]) for batch in each) == 1000


def test_attach_waits_as_long_as_it_is_told_to_for_an_answer(impatient, stopped):
    with ThreadPoolExecutor() as threads:
        attaching = threads.submit(penstock.attach, "feed", wait_s=60)
        told(USES["attach"], stopped)
        stopped.signal("SIGCONT")
        attaching.result(60).close()


def test_a_stopped_feeder_is_listed_as_one_that_does_not_answer(clean, impatient, stopped, crowd):
    (found,) = penstock.feeds()
    assert (found.name, found.pid, found.answers) == ("feed", stopped.pid, False)
    said = CliRunner().invoke(app, ["status"], env={"COLUMNS": "200"}).output
    assert f"feed  feeder {stopped.pid} does not answer; end it with: penstock stop feed" in said
    stopped.signal("SIGCONT")
    assert eventually(lambda: penstock.feeds()[0].answers)


def test_a_stopped_feeder_is_ended(clean, impatient, stopped, crowd, feeds_directory):
    said = CliRunner().invoke(app, ["stop", "feed"]).output
    how = "it did not answer, and its process got SIGTERM"
    assert said == f"Feed 'feed' (feeder {stopped.pid}) has ended: {how}.\n"
    assert stopped.wait() != 0
    assert not list(feeds_directory.iterdir())


HEEDS_NOTHING = """
import signal, time
from penstock.feed.endpoint import Endpoint
signal.signal(signal.SIGTERM, signal.SIG_IGN)
endpoint = Endpoint("feed")
lock = endpoint.acquire()
listener = endpoint.listen()
print("serves", flush=True)
time.sleep(1000)
"""


def test_a_feeder_that_heeds_nothing_is_killed(clean, impatient, feeds_directory):
    with subprocess.Popen([sys.executable, "-c", HEEDS_NOTHING], stdout=subprocess.PIPE) as feeder:
        assert feeder.stdout is not None
        assert feeder.stdout.readline() == b"serves\n"
        assert feeds.stop("feed") == (feeder.pid, ("SIGTERM", "SIGKILL"))
        assert feeder.wait() == -signal.SIGKILL
    assert not list(feeds_directory.iterdir())


def test_a_process_that_does_not_hold_the_lock_is_never_ended(clean, impatient, stopped):
    """A lock that names another: its holder has died, and that number is somebody else's by now."""
    with subprocess.Popen(["sleep", "100"]) as innocent:
        try:
            for pid in (innocent.pid, os.getpid(), 0, 2**30):
                Endpoint("feed").lock_path.write_bytes(msgspec.msgpack.encode(Owner("feed", pid)))
                with pytest.raises(penstock.errors.FeederSilent, match="no process of yours is known to hold"):
                    feeds.stop("feed")
            assert innocent.poll() is None
        finally:
            innocent.kill()
    stopped.signal("SIGCONT")


def stop_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def test_a_feeder_that_is_stopped_while_it_starts_is_told_and_goes_with_who_gives_it_up(
    clean, impatient, feeds_directory
):
    for _ in range(2):
        with pytest.raises(penstock.errors.FeederSilent, match="it is stopped"):
            penstock.share(stop_itself, "feed")
        assert not list(feeds_directory.iterdir())


def test_who_says_nothing_is_dropped_and_who_has_said_hello_is_not(clean, serve, monkeypatch):
    monkeypatch.setattr("penstock.feed.feeder.connections.HELLO_S", 0.3)
    feeder = serve(rows())
    with (
        Endpoint("feed").connect() as silent,
        Endpoint("feed").connect() as trainer,
        Endpoint("feed").connect() as asker,
    ):
        trainer.send(wire.encode(wire.Hello(wire.PROTOCOL, penstock.__version__, 1)))
        asker.send(wire.encode(wire.StatisticsRequest()))
        for peer in (silent, asker, trainer):
            peer.settimeout(30)
        assert silent.recv(100) == b""
        assert asker.recv(wire.MAX_PACKET_BYTES)
        assert asker.recv(100) == b""
        assert len(feeder.statistics().trainers) == 1
        trainer.send(wire.encode(wire.StatisticsRequest()))
        assert isinstance(wire.decode_from_feeder(trainer.recv(wire.MAX_PACKET_BYTES)), wire.Welcome)
        assert trainer.recv(wire.MAX_PACKET_BYTES)
