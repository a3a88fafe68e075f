"""A node at the other end of a link that goes down and up, loses packets, or is slow."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tests.ray.clusters import LOOPBACK, RayCluster

NAME = f"pt{os.getpid()}"
NEAR, FAR = f"{NAME}a", f"{NAME}b"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def works(*words: str) -> bool:
    with suppress(OSError):
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    return False


def free_network() -> str:
    """The first three numbers of a network that no link here has: a test that was killed leaves its own behind."""
    taken = {link.address for links in psutil.net_if_addrs().values() for link in links}
    return next(network for number in range(256) if f"{(network := f'10.203.{number}')}.1" not in taken)


@pytest.fixture(scope="module")
def link() -> Iterator[tuple[str, str]]:
    """The addresses of both ends of a link to a network namespace, which is another machine to Ray."""
    if not works("ip", "netns", "add", NAME):
        pytest.skip("network namespaces need root")
    try:
        network = free_network()
        here, there = f"{network}.1", f"{network}.2"
        ip("link", "add", NEAR, "type", "veth", "peer", "name", FAR, "netns", NAME)
        ip("addr", "add", f"{here}/24", "dev", NEAR)
        ip("link", "set", NEAR, "up")
        ip("-n", NAME, "addr", "add", f"{there}/24", "dev", FAR)
        ip("-n", NAME, "link", "set", FAR, "up")
        ip("-n", NAME, "link", "set", "lo", "up")
        yield here, there
    finally:
        works("ip", "link", "del", NEAR)
        ip("netns", "del", NAME)


@pytest.fixture
def netem(link: tuple[str, str], request: pytest.FixtureRequest) -> Iterator[None]:
    """Have the link lose or delay packets."""
    if not works("tc", "qdisc", "add", "dev", NEAR, "root", "netem", *request.param):
        pytest.skip("this kernel has no netem")
    yield
    works("tc", "qdisc", "del", "dev", NEAR, "root")


@pytest.fixture
def far_node(
    link: tuple[str, str], new_cluster: Callable[..., RayCluster], monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A cluster of a node here and another at the end of the link."""
    monkeypatch.setenv("PENSTOCK_RAY_OPEN", "1")
    here, there = link
    cluster = new_cluster([{}], address=here)
    start = [Path(sys.executable).with_name("ray"), "start", f"--address={cluster.address}", "--block"]
    options = [f"--node-ip-address={there}", "--num-cpus=1", f"--object-store-memory={100 << 20}"]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    inherited |= dict.fromkeys(LOOPBACK, "1")
    with subprocess.Popen(
        ["ip", "netns", "exec", NAME, *start, *options], env=inherited, stdout=subprocess.DEVNULL
    ) as ray:
        yield
        started = [psutil.Process(ray.pid), *psutil.Process(ray.pid).children(recursive=True)]
        for process in started:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(started[1:])


def test_blocks_keep_coming_while_the_link_to_a_node_is_down(far_node, training):
    run = training()
    run.is_made_by(2, 2)
    run.goes_on(20)
    ip("link", "set", NEAR, "down")
    try:
        gap_s = run.goes_on(20)
        print(f"link down: the longest gap at a trainer was {gap_s:.2f} s")
        run.is_made_by(1, 1)
    finally:
        ip("link", "set", NEAR, "up")
    run.is_made_by(2, 2)
    run.end()


@pytest.mark.parametrize("netem", [["loss", "30%"], ["delay", "200ms"]], ids=" ".join, indirect=True)
def test_a_link_that_loses_packets_or_is_slow_costs_no_sample(netem, far_node, training):
    run = training()
    run.goes_on(20)
    run.end()
