"""Messages come out as they went in, and no packet crashes whoever hears it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

import penstock
from penstock.contracts import Known
from penstock.feed import wire
from penstock.feed.endpoint import Endpoint
from penstock.feed.settings import Settings
from penstock.feed.statistics import FeederStatistics, TrainerStatistics
from penstock.tree import Array, Branch, Constant, Strings

TRAINER = TrainerStatistics(1, 2, True, 0, 1, 3, "reading", 4, 5, 6, 7, 0.5, "")
LAYOUT = Branch(
    "dict",
    ("x", 1, None, b"\xff"),
    (Array("torch", "bfloat16", (3, 4)), Strings("tuple"), Constant(b"\x00"), Branch("tuple", (), ())),
)
FROM_TRAINER: list[Any] = [
    wire.Hello(1, "0.1.0", 42),
    wire.Hello(1, "0.1.0", 42, 128, True, 3, 4, "host:29500:"),
    wire.Start(1, None, 0, 0, 0, 0),
    wire.Start(2, 3, 17, 2, 2, 5),
    wire.Read(3),
    wire.Starved(3),
    wire.Detach([4]),
    wire.EpochBegun(1, 2, 3),
    wire.Release([]),
    wire.Release([1, 2, 2**40]),
    wire.StatisticsRequest(),
    wire.Stop(7),
    wire.MoveTrainer(7, "b/ü"),
    wire.MoveTrainer(7, "b/ü", now=True),
]
FROM_FEEDER: list[Any] = [
    wire.Welcome("a/ü", 42, Settings(), ("host memfd",), None, None, None, (0,)),
    wire.Welcome(
        "a", 42, Settings(4, 1, 4096, 5, 2, 0.5, 3.0, True), ("ring on GPU-1", "host twin"), 100, 10, 10, (0, 50)
    ),
    wire.Rejected("because", "0.1.0", 1),
    wire.Started(3, 1, 2),
    wire.Stuck(3, "you hold it"),
    wire.BlockAnnounced(1, 2, 3, 4, 5, (0, 64, 128), (6, 0, 7), 8),
    wire.BlockAnnounced(1, 2, 3, 4, 5, (0, 64, 128), (6, 0, 7), 8, LAYOUT),
    wire.CycleEnd(1, 2),
    wire.Failed("SourceError", "message", "traceback", "ValueError"),
    wire.Evicted("too slow"),
    wire.Move("b/ü", now=True),
    wire.Prepare("b", 1, 30, 1, 10, Known(opened=1, alive=(10,))),
    wire.Bye(""),
    FeederStatistics("a", 1, "s", "host memfd", window_bytes=4096, samples_per_s=0.1, trainers=(TRAINER,)),
]


@pytest.mark.parametrize("message", FROM_TRAINER, ids=repr)
def test_what_a_trainer_says_is_what_the_feeder_hears(message):
    assert wire.decode_from_trainer(wire.encode(message)) == message


@pytest.mark.parametrize("message", FROM_FEEDER, ids=lambda m: type(m).__name__)
def test_what_a_feeder_says_is_what_the_trainer_hears(message):
    heard = wire.decode_from_feeder(wire.encode(message))
    assert heard == message
    assert type(heard) is type(message)


def test_a_constant_keeps_its_type():
    for value in (True, 1, 1.0, "1", b"1", None, 2**63, -(2**63)):
        heard = msgspec.msgpack.decode(wire.encode(Constant(value)), type=Constant).value
        assert (type(heard), heard) == (type(value), value)


def heard_or_refused(packet: bytes) -> None:
    for decode in (wire.decode_from_trainer, wire.decode_from_feeder):
        with suppress(penstock.errors.ProtocolError):
            decode(packet)


@settings(max_examples=examples(300))
@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(packet):
    heard_or_refused(packet)


@pytest.mark.parametrize("levels", [100, 1_100, 190_000])
@pytest.mark.parametrize("within", [b"", wire.encode(wire.Release([]))[:-1], wire.encode(wire.Bye(""))[:-1]])
def test_containers_in_one_another_are_refused_however_deep(within, levels):
    for each in (b"\x91", b"\x81\xa0"):
        for decode in (wire.decode_from_trainer, wire.decode_from_feeder):
            with pytest.raises(penstock.errors.ProtocolError, match="not understood"):
                decode(within + each * levels + b"\xc0")


@settings(max_examples=examples(300))
@given(st.sampled_from([*FROM_TRAINER, *FROM_FEEDER]), st.data())
def test_any_damaged_message_is_a_message_or_refused(message, data):
    packet = bytearray(wire.encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        packet[data.draw(st.integers(0, len(packet) - 1))] = data.draw(st.integers(0, 255))
    heard_or_refused(bytes(packet[: data.draw(st.integers(0, len(packet)))]))


@pytest.mark.parametrize(
    "message",
    [
        wire.Start(1, -1, 0, 0, 0, 0),
        wire.Start(1, 0, -1, 0, 0, 0),
        wire.Start(1, 2**62, 0, 0, 0, 0),
        wire.Release([-1]),
        wire.Hello(1, "0", 1, 0),
        wire.Hello(1, "0", 1, None, False, -1, 2),
        wire.Hello(1, "0", 1, None, False, 0, 0),
        wire.EpochBegun(0, 0, 2**60),
    ],
    ids=repr,
)
def test_numbers_out_of_range_are_refused(message):
    with pytest.raises(penstock.errors.ProtocolError, match="not understood"):
        wire.decode_from_trainer(wire.encode(message))


HELLO = wire.Hello(wire.PROTOCOL, "test", 1)
START, REST, BEGUN = wire.Start(1, None, 0, 0, 0, 0), wire.Detach([]), wire.EpochBegun(0, 0, 0)


@pytest.fixture
def well_fed(serve):
    serve(penstock.ArraySource({"id": np.arange(100)}, batch_size=10, segments=4), window="1MiB")
    with penstock.attach("feed", 8) as loader:
        yield loader


@pytest.mark.parametrize(
    ("packets", "says"),
    [
        ([b"\xc1"], "not understood"),
        ([b"GET / HTTP/1.1"], "not understood"),
        ([b"\x81\xa4type\xa5hello"], "not understood"),
        ([wire.encode(HELLO) + b"x"], "not understood"),
        ([wire.Release([1])], "says hello first"),
        ([START], "says hello first"),
        ([HELLO, wire.Release([5])], "was never sent"),
        ([HELLO, wire.Detach([0])], "holds a block that it was never sent"),
        ([HELLO, REST, START], "after it said that it reads no more"),
        ([HELLO, REST, BEGUN], "after it said that it reads no more"),
        ([HELLO, BEGUN], "before it has started"),
        ([HELLO, START, wire.EpochBegun(0, 0, 100)], "sample 100 of a cycle of 100"),
        ([HELLO, wire.Start(1, 0, 0, 0, 0, 100)], "sample 100 of a cycle of 100"),
        ([HELLO, wire.Start(1, 0, 100, 0, 0, 0)], "sample 100 of a cycle of 100"),
        ([HELLO, HELLO], "makes no sense"),
        ([wire.Hello(wire.PROTOCOL, "test", 1, rank=4, world=4)], "makes no sense"),
        ([wire.Hello(99, "9.9", 1)], f"protocol 99 (penstock 9.9), the feeder {wire.PROTOCOL} (penstock "),
    ],
)
def test_nonsense_is_answered_with_its_reason(well_fed, packets, says):
    assert well_fed.name == "feed"
    with Endpoint("feed").connect() as peer:
        peer.settimeout(20)
        for packet in packets:
            peer.send(packet if isinstance(packet, bytes) else wire.encode(packet))
        heard: list[Any] = []
        while packet := peer.recv(wire.MAX_PACKET_BYTES):
            heard.append(wire.decode_from_feeder(packet))
    assert isinstance(heard[-1], wire.Rejected)
    assert says in heard[-1].reason
