"""A feeder hears all that a peer said before it left, whatever the peer had not read by then."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.feed.feeder.connections import Connections, Peer


@pytest.fixture
def heard() -> list[bytes]:
    """What has been heard, and an empty packet once the peer is gone."""
    return []


@pytest.fixture
def connections(tmp_path: Path, heard: list[bytes]) -> Iterator[Connections]:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(tmp_path / "socket"))
    listener.listen()

    def hear(peer: Peer, packet: bytes) -> None:
        peer.introduce()
        heard.append(packet)

    lock = threading.RLock()
    served = Connections(listener, lock, admit=lambda _: None, hear=hear, gone=lambda _: heard.append(b""))
    yield served
    served.close()


@pytest.mark.parametrize("unread", [0, 1, 8000])
def test_what_a_peer_said_last_is_heard_though_it_left_packets_unread(connections, tmp_path, heard, unread):
    """As it was found: a trainer that left at once after its last epoch had not said so."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as trainer:
        trainer.connect(str(tmp_path / "socket"))
        trainer.send(b"hello")
        while not heard:
            connections.poll_once(1)
        peers = list(connections.peers.values())
        for _ in range(unread):  # more than the kernel takes are queued, and are sent as there is room
            connections.send(peers, b"block" * 20)
        assert bool(peers[0].queue) == (unread > 1)
        trainer.send(b"all read")
        trainer.send(b"bye")
    while connections.peers:
        connections.poll_once(1)
    assert heard == [b"hello", b"all read", b"bye", b""]
