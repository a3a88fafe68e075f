"""Objects: the contract against a local S3 server, and a server that misbehaves."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import psutil
import pytest
from tests.forked import eventually
from tests.io.faulty_store import CONTENT, FaultyStore, faulty_store
from tests.io.reading import read_once
from tests.object_store import put, set_environment
from tests.support.contracts import only

from penstock.contracts import ByteArray, Completed, Reader
from penstock.errors import ReaderUnavailable, ReadFailed
from penstock.io.object_store import ObjectQueue
from penstock.io.open import open_reader
from penstock.io.reader import QueueReader
from penstock.testing.faulty_queue import FaultyQueue
from penstock.testing.reader import ReaderContract, extents_of, new_memory, read_all


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    with faulty_store() as faulty:
        set_environment(monkeypatch, faulty.url)
        yield faulty


@pytest.mark.usefixtures("s3")
class TestObject(ReaderContract):
    def make(self, memory: ByteArray, depth: int) -> Reader:
        return open_reader("object", memory, depth=depth)

    def put(self, name: str, content: bytes) -> str:
        return put(f"a folder/{name}%20é", content)

    def missing(self) -> str:
        return "s3://bucket/missing"

    def test_a_file_that_shrinks_fails_the_extents_that_are_gone(self) -> None:
        """An object that is replaced is another one: nothing of it is mixed with the first."""
        memory = new_memory()
        with self.reading(memory) as reader:
            path = self.put("file", bytes(8192))
            file, _ = reader.open(path)
            self.put("file", b"x" * 8192)
            done = read_all(reader, extents_of(file, [0, 4096], [4096, 4096], [0, 4096]))
        assert sorted(done.failures) == [0, 1]
        assert done.failures[0].errno == errno.ESTALE
        assert "has been replaced" in str(done.failures[0])
        assert (memory == 0xA5).all()

    def test_nothing_stays_open_after_close(self) -> None:
        """Connections are closed by obstore's own threads, a moment later."""
        with faulty_store() as store:
            with self.reading(new_memory()) as reader:
                reader.open(f"{store.url}/good")
                assert connections(store)
            eventually(lambda: not connections(store))


@only("every_byte", "than_the_depth", "fails_alone", "that_shrinks", "written_after_close")
class TestFaultyObject(TestObject):
    def make(self, memory: ByteArray, depth: int) -> Reader:
        return QueueReader(FaultyQueue(ObjectQueue(depth), seed=3, shorts=0.4, repeats=0.2), memory)


def connections(store: FaultyStore) -> int:
    """Those of this process to the store."""
    port = store.server_address[1]
    return sum(each.raddr.port == port for each in psutil.Process().net_connections("tcp4") if each.raddr)


def read(memory: ByteArray, path: str, offsets: list[int], nbytes: int = 100) -> Completed:
    """Through a reader that does not wait long."""
    queue = ObjectQueue(4, timeout_s=0.3, retries=2, retry_s=5.0)
    return read_once(QueueReader(queue, memory), path, offsets, nbytes)


@pytest.mark.usefixtures("s3")
def test_a_bucket_that_does_not_exist_is_named_in_the_stores_words() -> None:
    with pytest.raises(ReadFailed, match=r"s3://no-such/key .*NoSuchBucket: The specified bucket") as caught:
        read(new_memory(), "s3://no-such/key", [0])
    assert caught.value.errno == errno.ENOENT


@pytest.mark.usefixtures("s3")
def test_an_empty_object_can_be_opened() -> None:
    with closing(open_reader("object", new_memory())) as reader:
        assert reader.open(put("empty", b"")).nbytes == 0


@pytest.mark.parametrize("prefix", ["s3://bucket/", "{url}/folder/"])
@pytest.mark.parametrize(
    ("fault", "number", "words"),
    [
        ("busy", errno.EIO, r"SlowDown: Please reduce your request rate.*503.*tried 3 times"),
        ("expired", errno.EACCES, r"ExpiredToken: The provided token has expired.*403.*credentials"),
        ("silent", errno.ETIMEDOUT, r"did not answer in full within 0.3 s; tried 3 times"),
        ("cut", errno.EIO, r"connection ended before the body did"),
        ("short", errno.EPROTO, r"announced 100 bytes, and sent 99"),
        ("long", errno.EPROTO, r"announced 100 bytes, and sent 104"),
        ("elsewhere", errno.EIO, r"Requested 4096..4196, got 4097..4197"),
        ("whole", errno.EOPNOTSUPP, r"whole objects only, no ranges"),
        ("grown", errno.ESTALE, r"replaced since it was opened: 16,384 bytes of .* then, 16,385 bytes"),
        ("rewritten", errno.ESTALE, r'replaced since it was opened: .*W/"one" then, .*W/"two" now'),
    ],
)
def test_an_extent_fails_with_path_offset_and_what_the_store_did(store, prefix, fault, number, words):
    memory = new_memory()
    path = prefix.format(url=store.url) + fault
    failure = read(memory, path, [4096]).failures[0]
    assert (failure.path, failure.offset, failure.errno) == (path, 4096, number)
    assert failure.args[0].startswith(f"100 bytes at 4,096 of {path}: ")
    with pytest.raises(ReadFailed, match=words):
        raise failure
    assert (memory == 0xA5).all(), "nothing half-written"


@pytest.mark.parametrize("fault", ["busy-once", "cut-once"])
def test_what_passes_is_tried_again(store: FaultyStore, fault: str) -> None:
    memory = new_memory()
    assert not read(memory, f"s3://bucket/{fault}", [512]).failures
    assert memory[512:612].tobytes() == CONTENT[512:612]
    assert store.asked[fault] == 2


def test_the_others_come_though_one_store_fails(store: FaultyStore) -> None:
    memory = new_memory()
    reader = QueueReader(ObjectQueue(8, timeout_s=0.3, retries=0), memory)
    good, bad = (reader.open(f"s3://bucket/{name}").file for name in ("good", "silent"))
    extents = extents_of(good, [4096 * i for i in range(4)], [4096] * 4, [4096 * i for i in range(4)])
    done = read_all(reader, extents._replace(files=np.array([good, bad, good, good])))
    reader.close()
    assert set(done.failures) == {1}
    for start in (0, 8192, 12288):
        assert memory[start : start + 4096].tobytes() == CONTENT[start : start + 4096]


def test_a_server_that_is_not_there_is_an_error_of_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    with faulty_store() as gone:
        url = gone.url
    set_environment(monkeypatch, url)
    for path in ("s3://bucket/key", f"{url}/key"):
        with pytest.raises(ReadFailed, match="Connection refused; tried 3 times"):
            read(new_memory(), path, [0])


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://penstock.invalid/key", "lookup address"),
        *((f"http://{rest}", "opened by object") for rest in ("[::1/x", "127.0.0.1:99999/x", "127.0.0.1:9/x\0y")),
    ],
)
def test_a_host_that_does_not_exist_and_an_address_that_makes_no_sense_are_told(url: str, words: str) -> None:
    with pytest.raises(ReadFailed, match=words):
        read(new_memory(), url, [0])


def test_an_endpoint_that_is_no_url_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, "storage:9000")
    with pytest.raises(ReadFailed, match=r"AWS_ENDPOINT_URL=storage:9000 is no URL"):
        read(new_memory(), "s3://bucket/key", [0])


def test_more_requests_than_threads_all_come(store: FaultyStore) -> None:
    memory = new_memory()
    reader = open_reader("object", memory, depth=300)
    assert not read_once(reader, f"{store.url}/good", [50 * i for i in range(300)], 50).failures
    assert memory[:15_000].tobytes() == CONTENT[:15_000]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/data/train.tar", "mech='posix'"),
        ("s3://bucket", "no s3://bucket/key"),
        ("https://bucket.example/key?X-Amz-Signature=1", "has a query"),
        ("ftp://host/key", "no http"),
    ],
)
def test_a_path_that_is_no_object_is_refused_with_the_way_out(path: str, words: str) -> None:
    refused = pytest.raises(ReaderUnavailable, match=words)
    with closing(open_reader("object", new_memory())) as reader, refused:
        reader.open(path)


def test_without_obstore_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ReaderUnavailable, match=r'pip install "penstock\[s3\]"'):
        open_reader("object", new_memory())


@pytest.mark.whole
def test_the_way_is_named() -> None:
    with closing(open_reader("object", new_memory(), depth=20)) as reader:
        assert reader.path_taken.startswith("obstore ")
        assert "20 requests" in reader.path_taken
