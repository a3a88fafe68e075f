"""Messages between a trainer and a feeder: small and typed, one per packet.

The socket is a Unix one of type SEQPACKET: packets have bounds, and the
kernel reports at once that the other side has died. The rings' descriptors
travel with the Welcome. Nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

import msgspec

from penstock.contracts import Known
from penstock.errors import ProtocolError
from penstock.feed.settings import Settings
from penstock.feed.statistics import FeederStatistics
from penstock.fingerprint.batch import LeafDigest
from penstock.fingerprint.comparison import Fingerprint
from penstock.memory.slots import end_of_leaves
from penstock.tree import Node

PROTOCOL = 22
MAX_PACKET_BYTES = 192 << 10
"""Below the default limit of a Unix socket's send buffer (net.core.wmem_default)."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**48)]
Cycle = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
Some = Annotated[int, msgspec.Meta(ge=1, le=2**48)]
MOST_WORDS = 200
Words = Annotated[str, msgspec.Meta(max_length=MOST_WORDS)]
MOST_WITNESSES = 8
WitnessNumber = Annotated[int, msgspec.Meta(ge=0, lt=MOST_WITNESSES)]


class Selected(msgspec.Struct):
    """A trainer takes some samples only: a file with a bit for each comes with its Hello.

    ``digest`` is that of the selection, and ``fd`` the file's descriptor in the trainer.
    """

    digest: str
    fd: int


class Hello(msgspec.Struct, tag="hello"):
    """A trainer introduces itself. Every version understands the first three fields.

    ``registers`` says that it may register the ring with a GPU, ``starts`` that it can start a feed, and
    ``follows`` that a file of its environment says which feed it reads.
    """

    protocol: int
    version: str
    pid: int
    batch_size: Positive | None = None
    borrow: bool = False
    rank: Count = 0
    world: Positive = 1
    group: str = ""
    registers: bool = False
    selected: Selected | None = None
    starts: bool = False
    follows: bool = False


class Start(msgspec.Struct, tag="start"):
    """Send me blocks from this position; if it is None, from where you choose, and not before ``epoch_*``.

    ``serial`` identifies this start, which may be sent twice; ``epoch`` is the
    number of the trainer's epoch, and ``epoch_*`` where that began (or may begin).
    ``known`` is what it knows of the joints there, and ``leaves`` says that it can read elsewhere if it would
    wait for the feed for cycles. ``way`` says in words how its batches come out of the ring.
    """

    serial: Positive
    cycle: Cycle | None
    sample: Count
    epoch: Cycle
    epoch_cycle: Count
    epoch_sample: Count
    known: Known = Known()
    leaves: bool = False
    way: Words = ""


class EpochBegun(msgspec.Struct, tag="epoch"):
    """My epoch of this number begins here."""

    epoch: Cycle
    cycle: Count
    sample: Count


class Release(msgspec.Struct, tag="release"):
    """I no longer need these blocks, by ordinal: the first announced to me is 0.

    May be sent twice. ``waited_ms`` is for how long I have waited for blocks by now, and ``left_out`` how many
    rows of cycles filled no step of all ranks.
    """

    blocks: list[Count]
    waited_ms: Count = 0
    left_out: Count = 0


class Read(msgspec.Struct, tag="read"):
    """I wait for a block. I have read those before this ordinal, and may hold some of them."""

    before: Count


class Detach(msgspec.Struct, tag="rest"):
    """I read no more. I still need the blocks with these ordinals, until I release them."""

    keep: list[Count]


class Starved(msgspec.Struct, tag="starved"):
    """I wait for a block, and hold views of others."""

    serial: Count


class StatisticsRequest(msgspec.Struct, tag="ask"):
    """Tell me your statistics. With ``sends``, I am to send you trainers: wait for them."""

    sends: bool = False


class FingerprintRequest(msgspec.Struct, tag="ask fingerprint"):
    """Tell me what your loader was made of. The answer is MadeOf."""


class WitnessRequest(msgspec.Struct, tag="ask witness"):
    """Tell me what your loader makes of a few samples. The answer is a Witness of this number, now or later."""

    number: WitnessNumber


class Stop(msgspec.Struct, tag="stop"):
    """End the feed. The answer is a Bye."""

    pid: int


class MoveTrainer(msgspec.Struct, tag="move trainer"):
    """Have the trainer of this process move to the feed of this name. The answer is the Move, or Rejected.

    With ``now`` it goes on there from its place; a feed that does not run is started first. ``why`` is for its
    user.
    """

    pid: Positive
    to: str
    now: bool = False
    why: str = ""


class Stay(msgspec.Struct, tag="stay"):
    """I do not leave for the feed of this name, or could not start it."""

    to: str


class Welcome(msgspec.Struct, tag="welcome"):
    """The feeder admits a trainer.

    ``rings`` names the feed's rings, whose descriptors come with it in this order;
    each holds every block, at equal offsets, and the last is on the host. ``block_rows``
    is the number of rows of a full block; ``batch_size`` and ``drop_last`` are the defaults
    of trainers; ``order`` is a digest of what decides the order of samples; ``anywhere`` says that an epoch may
    begin at any block, not only where a segment does, and ``joins`` that it makes a joint there; with
    ``at_joints`` only some blocks are fit for one.
    """

    name: str
    pid: int
    settings: Settings
    rings: tuple[str, ...]
    samples: Some | None
    batches: Count | None
    batch_size: Positive | None
    segment_starts: tuple[Count, ...]
    block_rows: Positive | None = None
    drop_last: bool = False
    order: str = ""
    anywhere: bool = False
    joins: bool = False
    at_joints: bool = False
    fingerprint: Fingerprint | None = None


class Rejected(msgspec.Struct, tag="rejected"):
    """The feeder does not admit this peer. Every version understands these fields."""

    reason: str
    version: str
    protocol: int


class Started(msgspec.Struct, tag="started"):
    """Your Start of this serial was received: your blocks begin here; those sent before it are void."""

    serial: Count
    cycle: Count
    sample: Count


class Apart(msgspec.Struct, tag="apart"):
    """From the position of your Start of this serial on, this feed's order is another than that of your epoch."""

    serial: Count


class InForce(msgspec.Struct, tag="joints"):
    """These joints are in force, and alive; or a stream's cycles begin here.

    Comes before the blocks of a new cycle, and when others begin.
    """

    known: Known


class BlockAnnounced(msgspec.Struct, tag="block"):
    """A block lies in the ring for you, until you release it.

    ``leaf_offsets`` count from ``offset`` and are aligned; ``layout`` is sent only
    when it differs from the layout of the block before. ``ids`` are the samples'
    numbers in the data set (``named_rows.encode_ids``); none if the source does not know. ``kept`` are those
    of its rows that the block has (``named_rows.encode_kept``); empty if it has all of them.
    """

    number: Count
    cycle: Count
    sample: Count
    rows: Positive
    offset: Count
    leaf_offsets: tuple[Count, ...]
    leaf_bytes: tuple[Count, ...]
    published_ns: int
    layout: Node | None = None
    ids: bytes = b""
    kept: bytes = b""

    @property
    def nbytes(self) -> int:
        """Bytes from its offset to the end of its last leaf."""
        return end_of_leaves(self.leaf_offsets, self.leaf_bytes)


class CycleEnd(msgspec.Struct, tag="cycle end"):
    """A cycle of a source of unknown length ends here."""

    cycle: Count
    samples: Count


class Failed(msgspec.Struct, tag="failed"):
    """The source failed; there will be no more blocks. ``raised`` names Python's own exception that it raised."""

    kind: str
    message: str
    traceback_text: str
    raised: str = ""


class Evicted(msgspec.Struct, tag="evicted"):
    """You held the feed back for too long; your blocks may be overwritten from now on."""

    message: str


class Stuck(msgspec.Struct, tag="stuck"):
    """You were starved: your own views leave no room for the next block."""

    serial: Count
    message: str


class Move(msgspec.Struct, tag="move"):
    """Begin your next epoch on the feed of this name, if it has the same samples in the same order.

    With ``now``, go on there from your place. It may be the present feed after all. ``why`` is for the user.
    """

    to: str
    now: bool = False
    why: str = ""


class Prepare(msgspec.Struct, tag="prepare"):
    """Start the feed of this name in the background, and read on here.

    It is to prepare from this position of an epoch that began at ``epoch_*``; ``known`` is of the joints there.
    """

    to: str
    cycle: Cycle
    sample: Count
    epoch_cycle: Count
    epoch_sample: Count
    known: Known


class MadeOf(msgspec.Struct, tag="made of"):
    """The fingerprint of what the feed's loader was made of; None if ``share`` did not start the feed."""

    fingerprint: Fingerprint | None


class Witness(msgspec.Struct, tag="witness"):
    """What the feeder's loader makes of the samples with these ids, for a trainer to compare with its own.

    Without ``leaves`` it is being made, and comes in a later message; ``why`` says why there is none. ``made_s``
    is how long ``make_loader`` took.
    """

    number: WitnessNumber
    ids: tuple[Count, ...] = ()
    leaves: tuple[LeafDigest, ...] | None = None
    why: str = ""
    made_s: float = 0.0


class Bye(msgspec.Struct, tag="bye"):
    """The feed ends, for this reason; empty if every trainer has had its epochs."""

    reason: str


FromTrainer = (
    Hello
    | Start
    | EpochBegun
    | Release
    | Read
    | Detach
    | Starved
    | StatisticsRequest
    | FingerprintRequest
    | WitnessRequest
    | Stop
    | MoveTrainer
    | Stay
)
FromFeeder = (
    Welcome
    | Rejected
    | Started
    | Apart
    | InForce
    | BlockAnnounced
    | CycleEnd
    | Failed
    | Evicted
    | Stuck
    | Move
    | Prepare
    | MadeOf
    | Witness
    | Bye
    | FeederStatistics
)

_T = TypeVar("_T")
encode = msgspec.msgpack.Encoder().encode


UNDECODABLE = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError, MemoryError)
"""What decoding raises: RecursionError for arrays nested a thousand deep, ValueError for bad text."""


def _decoder(kind: type[_T]) -> Callable[[bytes | bytearray | memoryview], _T]:
    decode: Callable[[bytes | bytearray | memoryview], _T] = msgspec.msgpack.Decoder(kind).decode

    def decoded(packet: bytes | bytearray | memoryview) -> _T:
        try:
            return decode(packet)
        except UNDECODABLE as error:
            raise ProtocolError(f"a message was not understood: {error}") from None

    return decoded


decode_from_trainer: Callable[[bytes | bytearray | memoryview], FromTrainer] = _decoder(FromTrainer)  # type: ignore[arg-type]
decode_from_feeder: Callable[[bytes | bytearray | memoryview], FromFeeder] = _decoder(FromFeeder)  # type: ignore[arg-type]
"""Both decoders raise ProtocolError, and nothing else, for a packet that is no such message."""
