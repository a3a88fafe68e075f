"""A feeder that lies: a trainer gets one ProtocolError that says who said what, and nothing worse."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import penstock
from penstock.feed import wire
from penstock.feed.endpoint import Endpoint
from penstock.feed.launch.feeds import feeds
from penstock.feed.settings import Settings
from penstock.feed.statistics import FeederStatistics
from penstock.fingerprint.comparison import Fingerprint
from penstock.memory.host_ring import WritableHostRing
from penstock.tree import Array, Branch, Constant, Node, Ragged, Strings

WINDOW = 1 << 20
LAYOUT = Branch("dict", ("id", "names"), (Array("numpy", "<i8", ()), Strings("list")))
NAMES = msgspec.msgpack.encode(list("abcdefghij"))
WELCOME = wire.Welcome("feed", 1, Settings(segments=2, window_bytes=WINDOW), ("host memfd",), 20, 2, 10, (0, 10))
BLOCK = wire.BlockAnnounced(0, 0, 0, 10, 0, (0, 128), (80, len(NAMES)), 0, LAYOUT)
NEXT = wire.BlockAnnounced(1, 0, 10, 10, 0, (0, 128), (80, len(NAMES)), 0)
STARTED = wire.Started(1, 0, 0)
NESTED = b"\x91" * 1100 + b"\xc0"


def but(message: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(message, **changes)


def layouts(node: Node, **changes: Any) -> list[Any]:
    return [STARTED, but(BLOCK, layout=node, leaf_offsets=(0,), leaf_bytes=(80,), **changes)]


class Liar:
    """Serves a feed, and says to every trainer what it is told to say."""

    def __init__(self, welcome: Any = WELCOME, said: Sequence[Any] = (), rings: int = 1) -> None:
        self._welcome, self._said, self._rings = welcome, said, rings
        self.ring = WritableHostRing.create(WINDOW)
        memory = self.ring.writable(0, 4096)
        memory[:80] = np.arange(10).view(np.uint8)
        memory[128 : 128 + len(NAMES)] = np.frombuffer(NAMES, np.uint8)
        self.fd = self.ring.fd
        self._endpoint = Endpoint("feed")
        lock = self._endpoint.acquire()
        assert lock is not None
        self._lock = lock
        self._listener = self._endpoint.listen()
        self._peers: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def __enter__(self) -> Liar:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for each in (self._listener, *self._peers):
            each.close()
        self._endpoint.remove(self._lock)
        self.ring.close()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self._peers.append(peer)
            with suppress(OSError):
                self._talk(peer)

    def _talk(self, peer: socket.socket) -> None:
        peer.settimeout(60)
        if not isinstance(wire.decode_from_trainer(peer.recv(wire.MAX_PACKET_BYTES)), wire.Hello):
            peer.send(packet_of(self._welcome))
            return
        socket.send_fds(peer, [packet_of(self._welcome)], [self.fd] * self._rings)
        peer.recv(wire.MAX_PACKET_BYTES)  # its Start
        for message in self._said:
            peer.send(packet_of(message))


def packet_of(message: Any) -> bytes:
    return message if isinstance(message, bytes) else wire.encode(message)


def trained(**options: Any) -> list[int]:
    with penstock.attach("feed", **options) as loader:
        return [int(i) for batch in loader for i in batch["id"]]


def test_what_this_file_calls_true_is_believed(clean):
    with Liar(said=[STARTED, BLOCK, NEXT]), penstock.attach("feed", 4) as loader:
        batches = list(loader)
        assert [int(i) for batch in batches for i in batch["id"]] == [*range(10), *range(10)]
        assert [name for batch in batches for name in batch["names"]] == list("abcdefghij") * 2


GREETINGS = {
    "no message": b"\xff\x00",
    "nested": NESTED,
    "no welcome": BLOCK,
    "bye": wire.Bye("because"),
    "another feed": but(WELCOME, name="other"),
    "no ring": but(WELCOME, rings=()),
    "too many rings": but(WELCOME, rings=("a", "b")),
    "segments that nobody has chosen": but(WELCOME, settings=Settings(window_bytes=WINDOW)),
    "no window": but(WELCOME, settings=Settings(segments=2, window_bytes=0)),
    "negative window": but(WELCOME, settings=Settings(segments=2, window_bytes=-4096)),
    "window beyond the file": but(WELCOME, settings=Settings(segments=2, window_bytes=WINDOW + 4096)),
    "huge window": but(WELCOME, settings=Settings(segments=2, window_bytes=2**63 - 1)),
    "no samples": but(WELCOME, samples=0),
    "batch of none": but(WELCOME, batch_size=0),
    "no segment": but(WELCOME, segment_starts=()),
    "segments backwards": but(WELCOME, segment_starts=(0, 10, 5)),
    "segments beyond": but(WELCOME, segment_starts=(0, 20)),
    "no epoch": but(WELCOME, settings=Settings(segments=2, window_bytes=WINDOW, epochs=0)),
    "no fingerprint": but(WELCOME, fingerprint=Fingerprint("")),
}


@pytest.mark.parametrize("greeting", GREETINGS.values(), ids=list(GREETINGS))
def test_a_greeting_that_makes_no_sense_is_one_error(clean, greeting):
    says = rf"the feeder \(process {os.getpid()}\) of feed 'feed' makes no sense: .*penstock stop feed"
    with Liar(greeting), pytest.raises(penstock.errors.ProtocolError, match=says):
        penstock.attach("feed")


STORIES = {
    "nested": [NESTED],
    "cut short": [wire.encode(STARTED)[:-1]],
    "welcome again": [WELCOME],
    "statistics unasked": [FeederStatistics("feed", 1, answers=False)],
    "starts beyond": [wire.Started(1, 0, 20)],
    "a cycle's end in a feed of known length": [STARTED, wire.CycleEnd(0, 10)],
    "before the start": [BLOCK],
    "no layout": [STARTED, but(BLOCK, layout=None)],
    "no rows": [STARTED, but(BLOCK, rows=0)],
    "negative rows": [STARTED, but(BLOCK, rows=-1)],
    "rows lost": [STARTED, but(BLOCK, sample=10)],
    "another cycle": [STARTED, but(BLOCK, cycle=1)],
    "the same rows again": [STARTED, BLOCK, but(BLOCK, number=1)],
    "more rows than a cycle": [STARTED, but(BLOCK, rows=30, leaf_bytes=(240, len(NAMES)))],
    "beyond the window": [STARTED, but(BLOCK, offset=WINDOW)],
    "far beyond the window": [STARTED, but(BLOCK, offset=1 << 40)],
    "before the window": [STARTED, but(BLOCK, offset=-4096)],
    "crooked": [STARTED, but(BLOCK, offset=1)],
    "a leaf beyond the window": [STARTED, but(BLOCK, leaf_offsets=(WINDOW, 128))],
    "a leaf before the window": [STARTED, but(BLOCK, leaf_offsets=(-4096, 128))],
    "a crooked leaf": [STARTED, but(BLOCK, leaf_offsets=(1, 128))],
    "a leaf too small": [STARTED, but(BLOCK, leaf_bytes=(72, len(NAMES)))],
    "a leaf too large": [STARTED, but(BLOCK, leaf_bytes=(88, len(NAMES)))],
    "a later block's leaf": [STARTED, BLOCK, but(NEXT, leaf_bytes=(0, len(NAMES)))],
    "a list beyond the window": [STARTED, but(BLOCK, leaf_bytes=(80, WINDOW))],
    "offsets missing": [STARTED, but(BLOCK, leaf_offsets=(0,))],
    "sizes missing": [STARTED, but(BLOCK, leaf_bytes=(80,))],
    "leaves missing": [STARTED, but(BLOCK, leaf_offsets=(), leaf_bytes=())],
    "no list": [STARTED, but(BLOCK, leaf_offsets=(0, 4096))],
    "a list cut short": [STARTED, but(BLOCK, leaf_bytes=(80, 3))],
    "no dtype": layouts(Array("numpy", "nonsense", ())),
    "objects": layouts(Array("numpy", "|O", ())),
    "a record": layouts(Array("numpy", "<f4,<i4", ())),
    "no torch dtype": layouts(Array("torch", "nonsense", ())),
    "a function of torch's": layouts(Array("torch", "load", ())),
    "a quantized dtype": layouts(Array("torch", "quint8", ())),
    "no library": layouts(Array("os", "<i8", ())),  # type: ignore[arg-type]
    "a negative axis": layouts(Array("numpy", "<i8", (-1,))),
    "a huge axis": layouts(Array("numpy", "<i8", (0, 2**48, 2**48))),
    "many axes": layouts(Array("numpy", "<i8", (1,) * 100)),
    "a constant that is none": layouts(Branch("tuple", (), (Array("numpy", "<i8", ()), Constant([1])))),
    "ragged rows of no dtype": layouts(Ragged(Array("numpy", "nonsense", ()), "ragged")),
    "ragged rows of nothing": layouts(Ragged(Array("numpy", "<i8", (0,)), "ragged")),
    "ragged rows of huge items": layouts(Ragged(Array("numpy", "<i8", (2**48, 2**48)), "ragged")),
    "ragged rows given as nobody knows": layouts(Ragged(Array("numpy", "<i8", ()), "nested")),  # type: ignore[arg-type]
    "keys of a list": layouts(Branch("list", ("a",), (Array("numpy", "<i8", ()),))),
    "keys missing": layouts(Branch("dict", (), (Array("numpy", "<i8", ()),))),
    "keys that cannot be": layouts(Branch("dict", ([],), (Array("numpy", "<i8", ()),))),
    "no container": layouts(Branch("set", ("a",), (Array("numpy", "<i8", ()),))),
}


def deep(levels: int) -> Node:
    node: Node = Array("numpy", "<i8", ())
    for _ in range(levels):
        node = Branch("list", (), (node,))
    return node


@pytest.mark.parametrize(
    "story",
    [*STORIES.values(), layouts(deep(101)), layouts(deep(400))],
    ids=[*STORIES, "101 levels", "400 levels"],
)
def test_a_story_that_makes_no_sense_is_one_error(clean, story):
    says = rf"the feeder \(process {os.getpid()}\) of feed 'feed' makes no sense: "
    with Liar(said=story), pytest.raises(penstock.errors.ProtocolError, match=says) as caught:
        trained(batch_size=7)
    assert len(str(caught.value)) < 1000


IDS = np.arange(10, dtype="<u4").tobytes()
PART = but(BLOCK, rows=12, kept=b"\xff\x03", ids=IDS)  # ten of twelve rows
PARTS: dict[str, list[Any]] = {
    "no ids": [STARTED, BLOCK],
    "ids of other rows": [STARTED, but(PART, ids=IDS[:-4])],
    "an id beyond": [STARTED, but(PART, ids=IDS[:-4] + b"\x14\0\0\0")],
    "a negative id": [STARTED, but(PART, ids=np.arange(-1, 9).tobytes())],
    "too few bits": [STARTED, but(PART, kept=b"\xff")],
    "too many bits": [STARTED, but(PART, kept=b"\xff\x03\0")],
    "a row beyond": [STARTED, but(PART, kept=b"\xff\x21")],
    "other rows than its leaves": [STARTED, but(PART, kept=b"\xff\x01", ids=IDS[:-4])],
    "leaves of no rows": [STARTED, but(PART, kept=b"\0\0", ids=b"")],
}


@pytest.mark.parametrize("story", PARTS.values(), ids=PARTS)
def test_a_part_that_makes_no_sense_is_one_error(clean, story):
    with Liar(said=story), pytest.raises(penstock.errors.ProtocolError, match="makes no sense: "):
        trained(batch_size=7, select=[1, 2, 3, 11])


def test_who_selects_nothing_gets_whole_blocks(clean):
    with Liar(said=[STARTED, PART]), pytest.raises(penstock.errors.ProtocolError, match="bytes to name them"):
        trained(batch_size=7)


def test_an_error_stays_one(clean):
    with Liar(said=[STARTED, but(BLOCK, rows=0)]), penstock.attach("feed", 7) as loader:
        for _ in range(3):
            with pytest.raises(penstock.errors.ProtocolError, match=r"rows"):
                next(iter(loader))


@pytest.mark.parametrize("borrow", [False, True])
def test_whole_batches_have_the_bytes_that_their_shapes_make(clean, borrow):
    welcome = but(WELCOME, settings=Settings(segments=2, window_bytes=WINDOW, whole_batches=True), batch_size=None)
    layout = Branch("dict", ("id",), (Array("numpy", "<i8", (5, 2)),))
    true = but(BLOCK, layout=layout, leaf_offsets=(0,), leaf_bytes=(80,))
    with Liar(welcome, [STARTED, true]), penstock.attach("feed", borrow=borrow) as loader:
        assert next(iter(loader))["id"].tolist() == np.arange(10).reshape(5, 2).tolist()
    for leaf_bytes in (0, 72, 800):
        with (
            Liar(welcome, [STARTED, but(true, leaf_bytes=(leaf_bytes,))]),
            pytest.raises(penstock.errors.ProtocolError),
        ):
            trained(borrow=borrow)


WORDS = [10, *range(1, 11)]
"""Of ten ragged rows with one item each: how many they are, and where each ends."""
HUGE = 2**63 - 1
RAGGED: dict[str, tuple[list[int], int]] = {
    "no word": ([], 0),
    "half a word": ([10], 4),
    "one word": ([10], 8),
    "no values": (WORDS, 88),
    "too few values": (WORDS, 124),
    "too many values": (WORDS, 132),
    "fewer rows": ([9, *range(1, 10)], 116),
    "more rows": ([11, *range(1, 12)], 140),
    "rows without end": ([HUGE, *range(1, 11)], 128),
    "negative rows": ([-1, *range(1, 11)], 128),
    "an end that falls": ([10, 1, 2, 3, 5, 4, 6, 7, 8, 9, 10], 128),
    "a negative end": ([10, -1, *range(2, 11)], 128),
    "an end far beyond": ([10, *range(1, 10), HUGE], 128),
    "an end far beyond, and back": ([10, 1, HUGE, -HUGE, 4, 5, 6, 7, 8, 9, 10], 128),
    "an end that overflows to the true one": ([10, *range(1, 10), 2**62 + 10], 128),
    "only the last far before": ([10, *range(1, 10), -HUGE], 128),
}


@pytest.mark.parametrize("options", [{}, {"borrow": True}, {"batch_size": 4}, {"select": [1, 5, 8]}], ids=str)
@pytest.mark.parametrize(("tale", "give"), [*zip(RAGGED, cycle(("ragged", "padded")), strict=False)])
def test_ragged_rows_that_make_no_sense_are_one_error(clean, tale, give, options):
    words, nbytes = RAGGED[tale]
    layout = Branch("dict", ("id", "x"), (Array("numpy", "<i8", ()), Ragged(Array("numpy", "<i4", ()), give)))
    block = but(BLOCK, layout=layout, leaf_bytes=(80, nbytes), ids=np.arange(10, dtype="<i4").tobytes())
    true = but(block, leaf_bytes=(80, 128))
    with Liar(said=[STARTED, true, but(true, number=1, sample=10)]) as liar:
        memory = liar.ring.writable(0, 4096)
        memory[128:256] = np.array([*np.array(WORDS).view("<i4"), *range(10)], "<i4").view(np.uint8)
        with penstock.attach("feed", **options) as loader:
            for batch in loader:
                rows = batch["x"].tolist() if give == "padded" else [row.tolist() for row in batch["x"]]
                assert rows == [[i] for i in batch["id"].tolist()]
    with Liar(said=[STARTED, block]) as liar:
        memory = liar.ring.writable(0, 4096)
        memory[128 : 128 + 8 * len(words)] = np.array(words, np.int64).view(np.uint8)
        with pytest.raises(penstock.errors.ProtocolError, match=r"makes no sense: .*ragged rows"):
            trained(**options)


@pytest.mark.parametrize(
    "then", [Ragged(Array("numpy", "<i8", ()), "ragged"), Array("numpy", "<i4", ()), Strings("list")], ids=str
)
def test_a_tree_that_changes_from_block_to_block_is_one_error(clean, then):
    first, later = (
        Branch("dict", ("id", "x"), (Array("numpy", "<i8", ()), x))
        for x in (Ragged(Array("numpy", "<i4", ()), "ragged"), then)
    )
    block = but(BLOCK, layout=first, leaf_bytes=(80, 128))
    said = [STARTED, block, but(block, number=1, sample=10, layout=later, leaf_bytes=(80, 40))]
    with Liar(said=said) as liar:
        liar.ring.writable(0, 4096)[128:216] = np.array(WORDS).view(np.uint8)
        with pytest.raises(penstock.errors.ProtocolError, match="its blocks changed: leaf batch"):
            trained(batch_size=15)


def test_whole_batches_may_have_any_number_of_ragged_rows_but_no_other_bytes(clean):
    welcome = but(WELCOME, settings=Settings(segments=2, window_bytes=WINDOW, whole_batches=True), batch_size=None)
    block = but(BLOCK, layout=Ragged(Array("numpy", "<i4", ()), "ragged"), leaf_offsets=(128,))
    for words, nbytes, true in (
        ([3, 1, 1, 2], 40, True),
        ([0], 8, True),
        ([HUGE, 1], 16, False),
        ([-1], 8, False),
    ):
        with Liar(welcome, [STARTED, but(block, leaf_bytes=(nbytes,))]) as liar:
            memory = liar.ring.writable(0, 4096)
            memory[128 : 128 + 8 * len(words)] = np.array(words, np.int64).view(np.uint8)
            with penstock.attach("feed") as loader:
                if true:
                    assert len(next(iter(loader))) == words[0]
                    continue
                with pytest.raises(penstock.errors.ProtocolError, match="ragged rows"):
                    next(iter(loader))


@pytest.mark.parametrize("kind", ["regular file", "unsealed", "pipe"])
def test_a_ring_that_may_shrink_under_a_trainer_is_refused(clean, tmp_path, kind):
    """Reading behind a file's end kills a process."""
    with Liar(said=[STARTED, BLOCK]) as liar:
        if kind == "regular file":
            (tmp_path / "ring").write_bytes(bytes(WINDOW))
            other = os.open(tmp_path / "ring", os.O_RDWR)
        elif kind == "unsealed":
            other = os.memfd_create("ring")
            os.ftruncate(other, WINDOW)
        else:
            other, end = os.pipe()
            os.close(end)
        liar.fd = other
        with pytest.raises(penstock.errors.ProtocolError, match="not in the file"):
            penstock.attach("feed")
        os.close(other)


def test_a_ring_keeps_its_size_for_ever():
    ring = WritableHostRing.create(WINDOW)
    for size in (0, WINDOW - 1, WINDOW + 1):
        with pytest.raises(PermissionError):
            os.ftruncate(ring.fd, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(ring.fd, fcntl.F_ADD_SEALS, 0)
    ring.close()


TRAINER = """
import sys, penstock
try:
    with penstock.attach("feed", 7, borrow={borrow}) as loader:
        for batch in loader:
            bytes(batch["id"])
except penstock.errors.ProtocolError as error:
    print("one error:", error)
"""


@pytest.mark.parametrize(("tale", "borrow"), [("beyond the window", False), ("a leaf beyond the window", True)])
def test_a_trainer_without_asserts_survives_a_block_outside_the_window(clean, tale, borrow):
    with Liar(said=STORIES[tale]):
        ran = subprocess.run(
            [sys.executable, "-O", "-c", TRAINER.format(borrow=borrow)],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("one error: the feeder")


def test_a_failure_of_a_strange_kind_is_a_source_error(clean):
    for kind in ("annotations", "PenstockError", "ReadFailed", "", "__name__"):
        with (
            Liar(said=[STARTED, wire.Failed(kind, "broken", "")]),
            pytest.raises(penstock.errors.SourceError, match="broken"),
        ):
            trained()


@pytest.mark.parametrize("packet", [NESTED, b"\xff", BLOCK], ids=["nested", "no message", "block"])
def test_a_feeder_that_answers_nonsense_is_listed_as_one_that_does_not_answer(clean, packet):
    with Liar(packet):
        (found,) = feeds()
        assert (found.name, found.pid, found.answers) == ("feed", os.getpid(), False)


# --- types ---------------------------------------------------------------------------------------

NAMED = Branch("module_of_the_test:Pair", ("id",), (Array("numpy", "<i8", ()),))


@pytest.fixture
def module(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that can be imported, and leaves a mark when it is."""
    mark = tmp_path / "imported"
    code = f"""
from typing import NamedTuple

open({str(mark)!r}, "w").close()

class Pair(NamedTuple):
    id: object
"""
    (tmp_path / "module_of_the_test.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield mark
    sys.modules.pop("module_of_the_test", None)


def untold(layout: Node, says: str) -> None:
    """A trainer of this layout cannot build its batches."""
    with (
        Liar(said=layouts(layout)),
        penstock.attach("feed", 10) as loader,
        pytest.raises(penstock.errors.UnsupportedLeaf, match=says),
    ):
        next(iter(loader))


def test_a_feeder_cannot_make_a_trainer_import_a_module(clean, module):
    untold(NAMED, "has not imported module_of_the_test: import module_of_the_test in the training script")
    assert not module.exists()


def test_a_type_of_a_module_that_the_script_has_imported_is_found(clean, module):
    import module_of_the_test  # type: ignore[import-not-found]

    with Liar(said=layouts(NAMED)), penstock.attach("feed", 10) as loader:
        batch = next(iter(loader))
        assert type(batch) is module_of_the_test.Pair
        assert batch.id.tolist() == list(range(10))


def test_a_type_with_other_fields_here_is_told(clean, module):
    import module_of_the_test  # type: ignore[import-not-found] # noqa: F401

    for keys in (("other",), ("__class__",)):
        untold(but(NAMED, keys=keys), r"fields \['\w+'\], which has \['id'\] here")


def test_a_name_is_not_looked_up_by_what_a_module_would_import_for_it(clean, tmp_path, monkeypatch):
    """Some modules import others when an attribute of theirs is asked for."""
    (tmp_path / "lazy_module_of_the_test.py").write_text("def __getattr__(name): raise SystemExit(name)")
    monkeypatch.syspath_prepend(str(tmp_path))
    import lazy_module_of_the_test  # type: ignore[import-not-found] # noqa: F401

    untold(but(NAMED, kind="lazy_module_of_the_test:Pair"), "no namedtuple or dataclass here")
    untold(but(NAMED, kind="ast:Name"), "no namedtuple or dataclass here")
