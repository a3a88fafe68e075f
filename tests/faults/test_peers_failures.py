"""What others' shared loaders get wrong, as tests of ours: the ten findings of reading and running one of them."""

from __future__ import annotations

import logging
import mmap
import os
import pickle
import socket
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from tests.faults.conftest import descriptors, each_waits_for, eventually, ring_maps
from tests.faults.sources import payload_of, rows
from tests.feed.reading import ids_of
from tests.scripts import output_of

import penstock
from penstock.feed import wire
from penstock.feed.endpoint import Endpoint

SOAK = pytest.mark.soak


# --- 1. the end of an epoch is lost, and len() over-promises ---------------------------------------


@pytest.mark.parametrize("batches", [1, 2, 5, 9])
def test_a_loader_of_few_batches_gives_them_all_and_len_keeps_its_promise(clean, serve, batches):
    samples = batches * 16 - 5
    serve(rows(samples, 16))
    with penstock.attach("feed") as loader:
        for _ in range(3):
            sizes = [len(batch["id"]) for batch in loader]
            assert len(sizes) == len(loader) == batches
            assert sum(sizes) == samples


# --- 2. unaligned batch sizes lose and repeat samples: tests/feed/trainer/test_shard.py --------------


# --- 3. unread memory is overwritten: test_trainers_die.py, of trainers that pause or are stopped ------


# --- 4. a long stall corrupts the queue: test_trainers_die.py, of a trainer that pauses -------------------


# --- 5. on the CPU nothing is shared ---------------------------------------------------------------


def test_bytes_are_written_once_for_all_trainers_and_the_socket_carries_none_of_them(clean, serve):
    """A trainer that speaks the protocol itself counts what its socket brings, and finds the rows in the ring."""
    feeder = serve(rows(1000, 10, width=10_000, segments=1), window=1 << 20)
    with penstock.attach("feed", 10) as other, Endpoint("feed").connect() as peer:
        peer.send(wire.encode(wire.Hello(wire.PROTOCOL, penstock.__version__, os.getpid())))
        packet, (ring_fd,), _, _ = socket.recv_fds(peer, wire.MAX_PACKET_BYTES, 1)
        welcome = wire.decode_from_feeder(packet)
        with mmap.mmap(ring_fd, welcome.settings.window_bytes, mmap.MAP_SHARED, mmap.PROT_READ) as ring:
            os.close(ring_fd)
            peer.send(wire.encode(wire.Start(1, 0, 0, 0, 0, 0)))
            said = [wire.decode_from_feeder(peer.recv(wire.MAX_PACKET_BYTES)) for _ in range(2)]
            assert [type(each) for each in said] == [wire.InForce, wire.Started]
            others = iter(other)
            over_socket = seen = 0
            for _ in range(100):
                next(others, None)
                packet = peer.recv(wire.MAX_PACKET_BYTES)
                over_socket += len(packet)
                if isinstance(block := wire.decode_from_feeder(packet), wire.InForce):  # another has begun
                    packet = peer.recv(wire.MAX_PACKET_BYTES)
                    block = wire.decode_from_feeder(packet)
                    over_socket += len(packet)
                ids = np.frombuffer(ring, np.int64, block.rows, block.offset)
                at = block.offset + block.leaf_offsets[1]
                payload = np.frombuffer(ring, np.uint8, block.leaf_bytes[1], at).reshape(block.rows, -1)
                assert (payload == payload_of(ids, 10_000)).all()
                seen += sum(block.leaf_bytes)
                del ids, payload
                peer.send(wire.encode(wire.Release([block.number])))
        del others
    assert seen == 1000 * 10_008
    assert over_socket < seen / 500
    assert feeder.statistics().bytes < 1.6 * seen  # once, and what was published ahead of the second epoch


def ring_inodes() -> set[str]:
    """The rings that this process maps."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[4] for line in maps if "penstock-ring" in line}


def test_the_path_taken_is_named_and_every_trainer_reads_the_same_memory(clean, serve):
    before = ring_inodes()  # of views that another test's failure keeps
    feeder = serve(rows())
    with penstock.attach("feed") as one, penstock.attach("feed", borrow=True) as other:
        assert (
            one.statistics().sharing == other.statistics().sharing == feeder.statistics().sharing == "host memfd"
        )
        assert len(ring_inodes() - before) == 1
        batch = next(iter(other))
        assert other.statistics().copied_bytes == 0
        assert other.statistics().viewed_bytes == sum(leaf.nbytes for leaf in batch.values())
        del batch


# --- 6. shared memory leaks with every batch -------------------------------------------------------


@pytest.mark.parametrize("borrow", [False, True])
@pytest.mark.parametrize("epochs", [5, pytest.param(500, marks=[SOAK, pytest.mark.timeout(900)])])
def test_nothing_leaks_over_many_batches(clean, serve, borrow, epochs):
    feeder = serve(rows(), window=200_000)
    with penstock.attach("feed", 10, borrow=borrow) as loader:
        for _ in loader:
            pass
        before, maps, used = descriptors(), ring_maps(), psutil.Process().memory_info().rss
        for _ in range(epochs):
            for batch in loader:
                assert len(batch["id"]) == 10
                del batch
        assert descriptors() == before
        assert ring_maps() == maps
        assert psutil.Process().memory_info().rss < used + (32 << 20)
        assert feeder.statistics().used_bytes <= 200_000
    eventually(lambda: feeder.statistics().used_bytes == 0)


def test_trainers_that_come_and_go_leave_nothing_in_the_feeder(clean, feed, train):
    run = feed()
    train().has_all(1000, 2)
    feeder = psutil.Process(run.pid)
    before = feeder.num_fds()
    for _ in range(20):
        with penstock.attach("feed", 10) as loader:
            next(iter(loader))
    eventually(lambda: feeder.num_fds() == before)
    eventually(lambda: penstock.feeds()[0].used_bytes == 0)  # also the block that it was writing
    run.interrupt()


# --- 7. hangs --------------------------------------------------------------------------------------


def test_a_trainer_that_dies_at_an_epochs_end_leaves_no_feeder_that_spins_for_ever(feed, train, tmp_path):
    feeder = feed(epochs=2, source={"samples": 200}, window=50_000)
    pause = {"after": 0, "until": str(tmp_path / "both are there")}
    victim = train(pause=pause, hurt={"place": "epoch end", "nth": 1, "signal": "SIGKILL"})
    other = train(pause=pause, delay_s=0.01)
    each_waits_for((victim, other), "joined")
    (tmp_path / "both are there").touch()
    victim.wait()
    other.has_all(200, 2)
    assert feeder.wait() == 0, feeder.output


def test_a_feeder_whose_trainers_are_all_dead_does_not_work_on(clean, serve, train):
    feeder = serve(rows(), window=100_000)
    victim = train(epochs=10**6)
    victim.wait_for("end")
    victim.kill()
    eventually(lambda: not feeder.statistics().trainers)
    eventually(lambda: feeder.statistics().waits_for == "nobody reads")
    blocks = feeder.statistics().blocks
    for _ in range(50):  # who asks wakes it, and makes it read nothing
        assert penstock.feeds()[0].waits_for == "nobody reads"
    assert feeder.statistics().blocks <= blocks + 1


# --- 8. a late trainer waits for the whole epoch ---------------------------------------------------


@pytest.mark.parametrize("taken", [300, 990])
def test_a_late_trainer_joins_at_the_next_segment(clean, serve, train, tmp_path, taken):
    feeder = serve(rows(1000, 10, segments=10), window=25_000)
    go_on, until = tmp_path / "go on", tmp_path / "until"
    early = train(batch_size=10, epochs=None, until=str(until), pause={"after": taken // 10, "until": str(go_on)})
    early.wait_for("paused")
    late = train(batch_size=33, epochs=1, save=True)
    begun = (["reading", "waiting"], ["reading", "reading"])
    eventually(lambda: [trainer.state for trainer in feeder.statistics().trainers] in begun)
    go_on.touch()
    cycle, sample = late.wait_for("state")["state"]["start"]
    assert cycle * 1000 + sample - taken <= 100 + 30  # a segment, and what the window held by then
    assert sample % 100 == 0
    late.has_all(1000, 1)
    until.touch()
    early.has_all(1000)


# --- 9. dicts fail, what is not a tensor is dropped, shapes may not vary: test_whole_batches.py, too --


def test_a_leaf_that_cannot_travel_is_an_error_that_names_it_not_dropped(feed, train):
    feed("unsupported")
    train().fails("SourceError", "leaf batch['bad'] of type builtins.object cannot travel")


# --- 10. pickle over TCP on all interfaces, and logging --------------------------------------------


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_that_comes_over_the_socket_is_unpickled(clean, serve, tmp_path):
    serve(rows(samples=20))
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with Endpoint("feed").connect() as peer:
            peer.settimeout(30)
            peer.send(pickle.dumps(Bomb(tmp_path / "unpickled"), protocol))
            assert isinstance(wire.decode_from_feeder(peer.recv(wire.MAX_PACKET_BYTES)), wire.Rejected)
    with penstock.attach("feed") as loader:
        assert sorted(ids_of(loader)) == list(range(20))
    assert not (tmp_path / "unpickled").exists()


@pytest.mark.parametrize("how", ["attach", "share"])
def test_no_network_port_is_opened(feed, train, how):
    if how == "attach":
        run = feed()
        trainer = train(epochs=10**6, delay_s=0.01)
        pids = [run.pid, trainer.pid]
    else:
        trainer = train(source={"kind": "rows"}, options={"linger": 0.0}, epochs=10**6, delay_s=0.01)
        pids = [trainer.wait_for("joined")["joined"], trainer.pid]
    trainer.wait_for("epoch")
    for pid in pids:
        process = psutil.Process(pid)
        assert process.net_connections("inet") == []
        assert process.net_connections("unix")
    trainer.kill()
    if how == "attach":
        run.interrupt()


LOGGING = """
import logging, sys
def state():
    return (list(logging.root.handlers), logging.root.level, sorted(logging.root.manager.loggerDict),
            logging.lastResort, logging.getLoggerClass(), logging.raiseExceptions,
            sys.excepthook, sys.stdout, sys.stderr)
before = state()
import penstock
for name in dir(penstock):
    getattr(penstock, name)
after = state()
assert before[:2] == after[:2] and before[3:] == after[3:], (before, after)
print([name for name in after[2] if name not in before[2]])
"""


def test_importing_does_not_touch_logging():
    # Merely naming a logger, as psutil's import of concurrent.futures might, reconfigures nothing.
    assert "penstock" not in output_of(LOGGING)


def test_feeding_does_not_touch_logging(clean, serve):
    before = list(logging.root.handlers), logging.root.level
    serve(rows(samples=20))
    with penstock.attach("feed") as loader:
        assert len(ids_of(loader)) == 20
    assert (list(logging.root.handlers), logging.root.level) == before
