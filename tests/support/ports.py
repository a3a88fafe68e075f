"""Free ports for servers of tests."""

from __future__ import annotations

import random
import socket
from contextlib import suppress


def free_port() -> int:
    """Return a port that nobody listens at, below those that the kernel gives to connections.

    One of the kernel's own may be taken by a connection before the server listens, or by who connects too early:
    such a connection is to itself, and the server cannot begin.
    """
    while True:
        port = random.randrange(10_000, _first_of_the_kernels())
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def _first_of_the_kernels() -> int:
    with open("/proc/sys/net/ipv4/ip_local_port_range") as told:
        return int(told.read().split()[0])
