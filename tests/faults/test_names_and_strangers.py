"""Promise 8 and what feeds are called: names, what killed feeders left, other users, strange messages."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.faults.conftest import all_is_given_back, eventually
from tests.faults.sources import rows
from tests.scripts import output_of

import penstock
from penstock.feed import wire
from penstock.feed.endpoint import Endpoint

SOAK = pytest.mark.soak
NOBODY = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")


# --- names ---------------------------------------------------------------------------------------


def test_wait_s_waits_for_a_feed_that_comes_later(clean, serve, train):
    early = train()  # waits for 30 s
    early.wait_for("connecting")
    assert early.events() == [{"connecting": early.pid}]
    serve(rows())
    early.has_all(1000, 2)


def test_wait_s_ends(clean):
    began = time.monotonic()
    with pytest.raises(penstock.errors.FeedNotFound):
        penstock.attach("nobody", wait_s=0.4)
    assert time.monotonic() - began >= 0.4


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("\udcff", "is no valid Unicode"),
        ("", "1 to 1000 characters, this one has 0"),
        ("n" * 1001, "1 to 1000 characters, this one has 1001"),
        (3, "must be a string, not int"),
    ],
    ids=["no Unicode", "empty", "long", "no text"],
)
def test_what_is_no_name_is_refused(clean, name, says):
    for use in (lambda: penstock.attach(name), lambda: penstock.Feeder(rows(), name)):
        with pytest.raises(penstock.errors.BadSetting, match=says):
            use()


# --- what killed feeders left --------------------------------------------------------------------


def test_what_a_killed_feeder_left_does_not_stop_the_next(feed, train, feeds_directory):
    first = feed()
    train().has_all(1000, 2)
    first.kill()
    assert sorted(path.suffix for path in feeds_directory.iterdir()) == [".lock", ".sock"]
    second = feed()
    train().has_all(1000, 2)
    second.interrupt()


@pytest.mark.parametrize("left", [b"", b"\xff\x00 no msgpack", msgspec.msgpack.encode({"name": "feed", "pid": 1})])
@pytest.mark.parametrize("is_socket", [True, False])
def test_a_stale_lock_of_any_content_and_a_socket_or_file_do_not_stop_a_feeder(clean, serve, left, is_socket):
    endpoint = Endpoint("feed")
    endpoint.lock_path.write_bytes(left)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stale:
        stale.bind(str(endpoint.socket_path)) if is_socket else endpoint.socket_path.write_text("no socket")
    with pytest.raises(penstock.errors.FeedNotFound):
        penstock.attach("feed")
    serve(rows(samples=30))
    with penstock.attach("feed", 7) as loader:
        assert sum(len(batch["id"]) for batch in loader) == 30


# --- other users ----------------------------------------------------------------------------------


BECOME = f"""
import ctypes, os, sys
def become_nobody():
    os.setgid({NOBODY}); os.setuid({NOBODY})
    ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: /proc/self is ours again
"""
SERVE_AS_NOBODY = f"""{BECOME}
import numpy as np, penstock, penstock.feed.feeder.feeder
source = penstock.ArraySource({{"id": np.arange(100)}}, batch_size=10)
become_nobody()
with penstock.Feeder(source, "feed") as feeder:
    print("serves", flush=True)
    feeder.run()
"""
LISTEN_AS_NOBODY = f"""{BECOME}
import socket, time
from penstock.feed.endpoint import Endpoint
endpoint = Endpoint("feed")
lock = endpoint.acquire()
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(str(endpoint.socket_path))
become_nobody()
listener.listen(8)  # the kernel vouches for who listens
print("serves", flush=True)
connection, _ = listener.accept()
print("heard", len(connection.recv(100_000)), flush=True)
"""


def started(program: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **environment},
    )
    assert process.stdout is not None
    said = process.stdout.readline()
    assert said == "serves\n", said + process.stdout.read()
    return process


@as_root
@pytest.mark.parametrize("speaks", [False, True])
def test_a_feeder_rejects_a_peer_of_another_user_and_gives_it_no_descriptor(speaks):
    directory = Path(tempfile.mkdtemp(prefix="penstock-nobody-"))
    os.chown(directory, NOBODY, NOBODY)
    feeder = started(SERVE_AS_NOBODY, {"PENSTOCK_DIR": str(directory)})
    try:
        (path,) = directory.glob("*.sock")
        for packet in (HELLO, wire.encode(wire.StatisticsRequest()), wire.encode(wire.Stop(1))):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
                peer.connect(str(path))
                peer.settimeout(30)
                if speaks:
                    with suppress(BrokenPipeError):  # it was rejected before it spoke
                        peer.send(packet)
                try:
                    answer, descriptors, _, _ = socket.recv_fds(peer, wire.MAX_PACKET_BYTES, 8)
                except ConnectionResetError:  # what it was told lies behind the news that it was not read
                    answer, descriptors, _, _ = socket.recv_fds(peer, wire.MAX_PACKET_BYTES, 8)
                rejected = wire.decode_from_feeder(answer)
                assert isinstance(rejected, wire.Rejected)
                assert rejected.reason == f"you are uid 0, the feed belongs to uid {NOBODY}"
                assert not descriptors
                with suppress(ConnectionResetError):
                    assert peer.recv(100) == b""
        assert feeder.poll() is None
    finally:
        feeder.kill()
        feeder.communicate()
        shutil.rmtree(directory)


@as_root
def test_a_trainer_refuses_a_feeder_of_another_user_and_says_nothing_to_it():
    listener = started(LISTEN_AS_NOBODY, {})
    try:
        with pytest.raises(penstock.errors.Refused, match=f"served by uid {NOBODY}, you are uid 0"):
            penstock.attach("feed")
        assert listener.communicate(timeout=30)[0] == "heard 0\n"
    finally:
        listener.kill()
        listener.wait()


def test_a_trainer_cannot_write_to_the_ring(clean, serve):
    serve(rows())
    with Endpoint("feed").connect() as peer:
        peer.send(HELLO)
        _, descriptors, _, _ = socket.recv_fds(peer, wire.MAX_PACKET_BYTES, 8)
        (ring,) = descriptors
        try:
            with pytest.raises(OSError):
                os.pwrite(ring, b"x", 0)
            with pytest.raises(OSError):
                os.ftruncate(ring, 0)
            libc = ctypes.CDLL(None, use_errno=True)
            libc.mmap.restype = ctypes.c_void_p
            mapped = libc.mmap(None, ctypes.c_size_t(4096), 3, 1, ring, ctypes.c_long(0))
            assert mapped == ctypes.c_void_p(-1).value
        finally:
            os.close(ring)


# --- messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["a folder", "a pipe", "a file", "nothing"])
def test_a_selection_that_is_no_memory_ends_its_peer_and_no_feed(clean, serve, tmp_path, what):
    serve(rows(100), window=100_000)
    reading, writing = os.pipe()
    (tmp_path / "file").write_bytes(bytes(100))
    others = [os.open(tmp_path, os.O_RDONLY), os.open(tmp_path / "file", os.O_RDONLY)]
    brought = {"a folder": others[:1], "a pipe": [reading], "a file": others[1:], "nothing": []}[what]
    hello = wire.Hello(wire.PROTOCOL, penstock.__version__, 1, 10, selected=wire.Selected("digest", 3))
    with Endpoint("feed").connect() as peer:
        socket.send_fds(peer, [wire.encode(hello)], brought) if brought else peer.send(wire.encode(hello))
        answer = wire.decode_from_feeder(peer.recv(wire.MAX_PACKET_BYTES))
    assert isinstance(answer, wire.Rejected)
    for fd in (reading, writing, *others):
        os.close(fd)
    with penstock.attach("feed", 10, select=[1, 2]) as loader:
        assert sorted(i for batch in loader for i in batch["id"].tolist()) == [1, 2]


HELLO = wire.encode(wire.Hello(wire.PROTOCOL, penstock.__version__, 1, 10))
START = wire.encode(wire.Start(1, None, 0, 0, 0, 0))
REST = wire.encode(wire.Detach([]))
MESSAGES = [
    HELLO,
    START,
    wire.encode(wire.Start(1, 1, 500, 3, 1, 200)),
    wire.encode(wire.Start(1, 1, 500, 3, 1, 200, way="x" * (wire.MOST_WORDS + 1))),
    wire.encode(wire.Hello(wire.PROTOCOL, "x" * 50, 2**20, None, True, 3, 4, "group")),
    wire.encode(wire.EpochBegun(2, 1, 100)),
    wire.encode(wire.Release([0, 1, 2])),
    wire.encode(wire.Release([10**6])),
    REST,
    wire.encode(wire.Detach([0, 0, 5])),
    wire.encode(wire.StatisticsRequest()),
    wire.encode(wire.MoveTrainer(os.getpid(), "x" * 2_000, now=True)),
    wire.encode(wire.BlockAnnounced(1, 0, 0, 10, 0, (0, 128), (80, 10_000), 1)),
]


def nested(chance: random.Random) -> bytes:
    """Arrays, or maps, far inside one another: what decodes them calls itself at each."""
    within = chance.choice([b"", b"\x82\xa4type\xa7release\xa6blocks", b"\x82\xa4type\xa3ask\xa1x"])
    return within + chance.choice([b"\x91", b"\x81\xa0"]) * chance.choice([100, 1100, 60_000]) + b"\xc0"


def numbered(chance: random.Random) -> bytes:
    """A message that is true to form; its numbers may be anybody's."""

    def number() -> int:
        return chance.choice([0, 1, 2, 10, 500, 999] * 10 + [1000, 2**31, 10**9, 2**48])

    some = [number() for _ in range(chance.choice([0, 0, 0, 3]))]
    message = chance.choices([wire.Start, wire.EpochBegun, wire.Release, wire.Detach], [10, 10, 10, 1])[0]
    if message is wire.Start:
        at = chance.choice([None, number()])
        return wire.encode(wire.Start(1, at, number(), number(), number(), number()))
    if message is wire.EpochBegun:
        return wire.encode(wire.EpochBegun(number(), number(), number()))
    return wire.encode(message(some))


def strange(chance: random.Random) -> bytes:
    return chance.choices([mutated, numbered, nested], [25, 75, 1])[0](chance)


def mutated(chance: random.Random) -> bytes:
    """A message that is true, or nearly, or not at all; but never a well-formed Stop, which is obeyed."""
    while True:
        packet = bytearray(chance.choice(MESSAGES))
        for _ in range(chance.choice([0, 1, 1, 2, 8])):
            i = chance.randrange(len(packet) + 1)
            packet[i : i + chance.choice([0, 1, 1, 4])] = chance.randbytes(chance.choice([0, 1, 1, 3, 200]))
        if chance.random() < 0.1:
            packet = bytearray(chance.randbytes(chance.choice([1, 30, 3000, 150_000])))
        try:
            if isinstance(wire.decode_from_trainer(packet), wire.Stop):
                continue
        except penstock.errors.ProtocolError:
            pass
        if packet:
            return bytes(packet)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many packets the feeder of this process has decoded, or tried to, beside those that introduce a peer."""
    count = [0]
    decode = wire.decode_from_trainer

    def counted(packet: bytes) -> wire.FromTrainer:
        count[0] += packet not in (HELLO, START)
        return decode(packet)

    monkeypatch.setattr(wire, "decode_from_trainer", counted)
    return count


@contextmanager
def untroubled(feeder: penstock.Feeder, train: Any, directory: Path) -> Iterator[None]:
    """A trainer, and whoever comes later, get every sample once whatever happens within."""
    until = directory / "until"
    trainer = train(epochs=None, until=str(until), delay_s=0.005)
    trainer.wait_for("epoch")
    yield
    until.touch()
    trainer.has_all(1000)
    all_is_given_back(feeder)
    with penstock.attach("feed", 33) as loader:
        assert sorted(int(i) for batch in loader for i in batch["id"]) == list(range(1000))


def must_be_rejected(packets: list[bytes]) -> bool:
    """Whether whoever says this is rejected at any time: no hello comes first, or something is no message."""
    needs_no_hello = (wire.Hello, wire.StatisticsRequest, wire.FingerprintRequest, wire.MoveTrainer)
    try:
        messages = [wire.decode_from_trainer(packet) for packet in packets]
    except penstock.errors.ProtocolError:
        return True
    return not isinstance(messages[0], needs_no_hello)


def test_strange_messages_cost_a_trainer_nothing_whatever_they_are(clean, serve, train, tmp_path):
    feeder = serve(rows(), window=100_000)
    chance = random.Random(5)
    rejected = 0
    with untroubled(feeder, train, tmp_path):
        for _ in range(500):
            packets = [HELLO, START][: chance.choice([0, 1, 2, 2, 2])]
            packets += [strange(chance) for _ in range(chance.choice([1, 1, 2, 5]))]
            with Endpoint("feed").connect() as peer:
                for packet in packets:
                    with suppress(BrokenPipeError, ConnectionResetError):  # it has been rejected already
                        peer.send(packet)
                if chance.random() < 0.9:  # the others leave without a look at the answer
                    due = must_be_rejected(packets)
                    assert was_rejected(peer) or not due, packets
                    rejected += due
    assert rejected > 225


@SOAK
@pytest.mark.timeout(1800)
def test_a_million_strange_messages_cost_a_trainer_nothing(clean, serve, heard, train, tmp_path):
    """Given to the server by hand, one by one, so that none lies behind one for which its peer was dropped."""
    feeder = serve(rows(), window=100_000)
    server = feeder._server
    chance = random.Random(1)
    with untroubled(feeder, train, tmp_path):
        while heard[0] < 1_000_000:
            theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            true = [HELLO, START][: chance.choice([0, 1, 2, 2, 2, 2, 2, 2])]
            with theirs, server.changed:
                peer = server.connections._adopt(ours)
                for i in range(50):
                    server._hear(peer, true[i] if i < len(true) else strange(chance))
                    if peer.id not in server.connections.peers:
                        break
                else:
                    server.connections.drop(peer)


def was_rejected(peer: socket.socket) -> bool:
    """Whether the feeder says so, of all that it says until it hangs up."""
    peer.settimeout(30)
    said = False
    with suppress(OSError):
        peer.shutdown(socket.SHUT_WR)
    while True:
        try:
            answer = peer.recv(wire.MAX_PACKET_BYTES)
        except ConnectionResetError:  # told first where it did not read all; what it said follows
            continue
        if not answer:
            return said
        said |= isinstance(wire.decode_from_feeder(answer), wire.Rejected)


def test_a_peer_that_asks_and_asks_and_never_reads_is_dropped(clean, serve):
    """What it is told would fill the feeder's memory: each Start is answered with all blocks of the ring."""
    feeder = serve(rows(), window=100_000)
    with Endpoint("feed").connect() as peer:
        peer.settimeout(30)
        peer.send(HELLO)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for serial in range(1, 100_000):
                peer.send(wire.encode(wire.Start(serial, None, 0, 0, 0, 0)))
    all_is_given_back(feeder)
    with penstock.attach("feed", 10) as loader:
        assert len(list(loader)) == 100


def test_a_peer_that_never_reads_is_no_reason_to_forget_the_others(clean, serve, train):
    feeder = serve(rows(), window=1 << 20)
    with Endpoint("feed").connect() as deaf:
        deaf.send(HELLO)
        deaf.send(START)
        eventually(lambda: feeder.statistics().waits_for == "trainers")
        trainer = train()
        trainer.wait_for("joined")
        for _ in range(2000):
            try:
                deaf.send(wire.encode(wire.StatisticsRequest()), socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
    trainer.has_all(1000, 2)


OTHER_PROTOCOL = """
from penstock import _version
_version.__version__ = "99.1.2"
import penstock
from penstock.feed import wire
wire.PROTOCOL = 999
try:
    penstock.attach("feed")
except penstock.errors.VersionMismatch as error:
    print(error)
"""


def test_a_trainer_of_another_protocol_gets_version_mismatch_with_both_versions(clean, serve):
    serve(rows())
    said = output_of(OTHER_PROTOCOL)
    for part in ("protocol 999", "penstock 99.1.2", f"penstock {penstock.__version__}", f"{wire.PROTOCOL}"):
        assert part in said
