"""Blocks that other machines make: what that costs, and what becomes of it when they fail.

pip install "penstock[ray,images]" pandas
python -m benchmarks.cluster --images FOLDER --json benchmarks/results/cluster.json

All nodes are raylets of this machine, so they and the trainers share its cores; the head has none. A machine that
trains is a directory of feeds. Arms take turns. Batches are of 128 images of 224 pixels, 19 MB.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.cache import images_per_s
from benchmarks.claim import claim, report
from benchmarks.cluster.machines import Machines, Measured, Nodes, machines, nodes
from benchmarks.cluster.network import network
from benchmarks.cluster.streaming import streaming_split
from benchmarks.cluster.trainer import FEED
from benchmarks.measure.family import Family, family

import penstock
from penstock.sources.images.decoders import DECODER

CORES = 2
FAULT_S = 30.0
LINK_MBIT_PER_S = 200
IMAGE_BYTES = 224 * 224 * 3
_FEED: dict[str, Any] = {"batch_size": 128, "window": "512MiB"}
_SLOWER = 5
_USUAL_RATE = 215.0
"""Of each of two trainers, where one of Ray Data's stands still."""
_WARM_S = 4.0
_BEFORE_FAULT_S = 3.0
_HEAD_BACK_S = 45.0


class Run(NamedTuple):
    """What trainers got, and the CPU time of all processes for each sample that one of them got."""

    got: list[Measured]
    cpu_ms: float
    blocks: Any = None

    @property
    def rows_per_s(self) -> float:
        return sum(each.rows_per_s for each in self.got)


class Bench:
    """Runs trainers on one cluster."""

    def __init__(self, images: str, seconds: float, repeats: int) -> None:
        self._images, self._seconds, self._repeats = images, seconds, repeats
        self.measured: dict[str, list[Any]] = {}

    @contextmanager
    def started(self, count: int, **feed: Any) -> Generator[Machines]:
        with tempfile.TemporaryDirectory() as place, machines(Path(place)) as found:
            found.start(count, images=self._images, **_FEED, **feed)
            found.measure(_WARM_S)
            yield found

    def run(self, members: Family, cluster: Nodes | None, count: int = 1, **feed: Any) -> Run:
        with self.started(count, **feed) as found:
            before_s, before = members.cpu_s(), cluster.score(FEED).passed if cluster else None
            got = found.measure(self._seconds)
            cpu_s = members.cpu_s() - before_s
            after = cluster.score(FEED).passed if cluster else None
        rows = sum(each.rows_per_s for each in got) * self._seconds
        blocks = None if after is None else (after.made - before.made, after.again - before.again)
        return Run(got, cpu_s * 1000 / rows, blocks)

    def turns(self, arms: dict[str, Callable[[], Run]]) -> dict[str, list[Run]]:
        found: dict[str, list[Run]] = {arm: [] for arm in arms}
        for turn in range(self._repeats):
            for arm, run in arms.items():
                found[arm].append(one := run())
                blocks = "" if one.blocks is None else f", blocks made and made again {one.blocks}"
                rate = f"{one.rows_per_s:,.0f} images/s, {one.cpu_ms:.2f} CPU-ms each{blocks}"
                print(f"{turn + 1} of {self._repeats}: {arm}: {rate}; {one.got[0].source}", flush=True)
                self.measured.setdefault(arm, []).append({"images_per_s": one.rows_per_s, "cpu_ms": one.cpu_ms})
        return found

    def one_feed(self) -> list[Any]:
        """Decode on another node, and here: by a decoder of whole images, as pip installs it, and the fastest."""
        claims: list[Any] = []
        for decoder, words in (("simplejpeg", "whole images"), ("", "the fastest decoder")):
            os.environ[DECODER] = decoder
            with family() as members, nodes(CORES):
                here, there = self.turns(
                    {
                        f"{words}, {CORES} workers here": lambda it=members: self.run(it, None, workers=CORES),
                        f"{words}, {CORES} of another node": lambda it=members: self.run(it, None, workers="ray"),
                    }
                ).values()
            pairs = list(zip(there, here, strict=True))
            rates = [one.rows_per_s / other.rows_per_s for one, other in pairs]
            beyond_ms = [one.cpu_ms - other.cpu_ms for one, other in pairs]
            what = f"images/s of {CORES} decoders of another node, against the same {CORES} here ({words})"
            claims += [
                claim(what, "x", rates, least=0.88),
                claim(f"CPU a sample beyond the decode, other node ({words})", "ms", beyond_ms, most=0.3),
            ]
        return claims

    def across(self) -> list[Any]:
        """Feed several machines from one decode."""
        claims: list[Any] = []
        with family() as members, nodes(CORES) as cluster:
            feed: dict[str, Any] = {"workers": "ray", "across": True}
            counts = (1, 2, 4)
            runs = self.turns(
                {f"{n} machines": lambda n=n: self.run(members, cluster, count=n, **feed) for n in counts}
            )
        alone, *others = runs.values()
        for count, found in zip(counts[1:], others, strict=True):
            made = [one.blocks[0] / (one.blocks[0] - one.blocks[1]) for one in found]
            cpu = [one.cpu_ms * count / first.cpu_ms for one, first in zip(found, alone, strict=True)]
            claims += [
                claim(f"{count} machines, one decode: blocks made, of distinct ones", "x", made, most=1.02),
                claim(f"{count} machines, one decode: CPU of all, against one feed's", "x", cpu, most=1.5),
            ]
        return claims

    def stopped(self) -> list[Any]:
        """Stop one of two machines for a while."""
        rates: dict[bool, list[float]] = {False: [], True: []}
        with family(), nodes(CORES):
            for _ in range(self._repeats):
                for fault, found in rates.items():
                    with self.started(2, workers="ray", across=True) as two:
                        two.begin(FAULT_S)
                        if fault:
                            two.stop(1)
                            time.sleep(FAULT_S)
                            two.stop(1, signal.SIGCONT)
                        one, other = two.ended()
                    assert one.wrong == other.wrong == 0
                    found.append(one.rows_per_s)
                    print(f"{'other machine stopped' if fault else 'no fault'}: {one}", flush=True)
        self.measured["other machine stopped"], self.measured["no fault"] = rates[True], rates[False]
        return [
            claim(
                f"a machine stopped for {FAULT_S:.0f} s: the other's images/s, against no fault",
                "x",
                [one / other for one, other in zip(rates[True], rates[False], strict=True)],
                least=0.97,
            )
        ]

    def faults(self) -> list[Any]:
        """Kill and freeze what makes blocks; the longest gap at a trainer."""
        claims: list[Any] = []
        faults: dict[str, tuple[bool, Callable[[Nodes], Any]]] = {
            "node killed": (False, lambda it: it.cluster.remove_node(it.nodes[0], allow_graceful=False)),
            "node frozen": (False, lambda it: [each.suspend() for each in it.processes(0)]),
            "head killed": (False, lambda it: it.cluster.head_node.kill_gcs_server(check_alive=False)),
            "conductor killed": (True, lambda it: it.conductor().kill()),
        }
        for name, (across, fault) in faults.items():
            gaps: list[float] = []
            wrong = 0
            for _ in range(self._repeats):
                with family(), nodes(1, 1) as cluster, self.started(1, workers="ray", across=across) as found:
                    found.begin(_BEFORE_FAULT_S * 5)
                    time.sleep(_BEFORE_FAULT_S)
                    fault(cluster)
                    (got,) = found.ended()
                    print(f"{name}: {got}", flush=True)
                    for process in cluster.processes(0) if name == "node frozen" else ():
                        process.resume()
                gaps.append(got.gap_s)
                wrong += got.wrong
            self.measured[name] = gaps
            claims += [
                claim(f"{name}: longest gap at a trainer", "s", gaps, most=2),
                claim(f"{name}: samples lost or repeated", "", [wrong], most=0),
            ]
        return claims

    def head_back(self) -> list[Any]:
        """Kill a cluster's head while trainers read, and start another at its address."""
        waits: list[float] = []
        wrong = 0
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        for _ in range(self._repeats):
            with ExitStack() as stack:
                with nodes(1, port=port) as cluster:
                    found = stack.enter_context(self.started(1, workers="ray"))
                    found.begin(_HEAD_BACK_S)
                    cluster.cluster.head_node.kill_gcs_server(check_alive=False)
                    time.sleep(_BEFORE_FAULT_S)
                with nodes(1, port=port):
                    began = time.monotonic()
                    while "made by" not in found.source(0):
                        time.sleep(0.05)
                    waits.append(time.monotonic() - began)
                    (got,) = found.ended()
                    print(f"head back: remote again after {waits[-1]:.1f} s: {got}", flush=True)
                    wrong += got.wrong
        self.measured["head back"] = waits
        return [
            claim("head back: remote again after", "s", waits, most=15),
            claim("head back: samples lost or repeated", "", [wrong], most=0),
        ]

    def beside(self) -> list[Any]:
        """Two trainers, one of them five times slower or killed: a feed across machines, and streaming_split."""
        rates: dict[str, list[float]] = {}
        lost: dict[str, list[int]] = {}
        still: list[list[bool]] = []
        for _ in range(self._repeats):
            with family(), nodes(CORES) as cluster, tempfile.TemporaryDirectory() as place:
                split = partial(streaming_split, cluster, Path(place), self._images, _FEED["batch_size"])
                both = split((0.0, 0.0), None)
                delay_s = _SLOWER * _FEED["batch_size"] / (both.rows_per_s or _USUAL_RATE)
                slow, killed = split((0.0, delay_s), None), split((0.0, delay_s), _BEFORE_FAULT_S / 2)
            rates.setdefault("streaming_split", []).append(slow.rows_per_s / (both.rows_per_s or _USUAL_RATE))
            lost.setdefault("streaming_split", []).append(killed.lost)
            still.append([each.rows_per_s == 0 for each in (both, slow, killed)])
            with family(), nodes(CORES):
                fast, _ = self._two(0.0)
                delay_s = _SLOWER * _FEED["batch_size"] / fast.rows_per_s
                beside_slow, _ = self._two(delay_s)
                survivor, _ = self._two(delay_s, kill=True)
            rates.setdefault("a feed across machines", []).append(beside_slow.rows_per_s / fast.rows_per_s)
            lost.setdefault("a feed across machines", []).append(survivor.wrong)
            print(f"beside: {rates}, lost {lost}, stood still {still}", flush=True)
        self.measured["fast trainer beside one 5 times slower, of beside one as fast"] = [rates]
        self.measured["samples lost when a trainer is killed"] = [lost]
        self.measured["streaming_split stood still: both fast, one slow, one killed"] = still
        return []

    def _two(self, delay_s: float, *, kill: bool = False) -> list[Measured]:
        """Train on two machines, the second of which takes longer for a batch, or is killed."""
        feed: dict[str, Any] = {**_FEED, "images": self._images, "workers": "ray", "across": True}
        with tempfile.TemporaryDirectory() as place, machines(Path(place)) as found:
            found.start(1, **feed)
            found.start(1, **feed, delay_s=delay_s)
            found.measure(_WARM_S)
            found.begin(self._seconds)
            if kill:
                time.sleep(_BEFORE_FAULT_S / 2)
                found.stop(1, signal.SIGKILL)
                return [next(found.ended()), Measured(0.0, 0.0, 0, "killed")]
            return list(found.ended())

    def paper(self) -> list[Any]:
        """Predict what 2 and 4 machines cost and reach, from what one does; each has a core, a node and a link."""
        across: dict[str, Any] = {"workers": "ray", "across": True}
        decode_ms, found = [], {(n, link): list[Run]() for link in (None, LINK_MBIT_PER_S) for n in (1, 2, 4)}
        elsewhere: list[Run] = []
        for _ in range(self._repeats):
            decode_ms.append(self._decode_ms())
            with family() as members, network(1) as net:
                elsewhere.append(self.run(members, None, **across))
            for (count, link), runs in found.items():
                with family() as members, network(count, link) as net:
                    runs.append(one := self.run(members, None, count=count, enter=net.enter, **across))
                each = f"{one.rows_per_s / count:,.0f} images/s and {one.cpu_ms:.2f} CPU-ms each"
                print(f"{count} machines, links of {link} Mbit/s: {each}", flush=True)
        alone_ms = median(one.cpu_ms for one in found[1, None])
        sent_ms = median(one.cpu_ms for one in elsewhere) - alone_ms
        made_ms = median(decode_ms)
        self.measured["constants"] = [{"decode_ms": made_ms, "transfer_ms": sent_ms, "one_machine_ms": alone_ms}]
        claims: list[Any] = []
        for count in (2, 4):
            away = 1 - 1 / count
            said_ms = alone_ms + (sent_ms - made_ms) * away
            said_rate = LINK_MBIT_PER_S * 125_000 / (IMAGE_BYTES * away)
            linked = found[count, LINK_MBIT_PER_S]
            predictions = {
                f"{count} machines: CPU an image and machine": [
                    said_ms / one.cpu_ms for one in found[count, None]
                ],
                f"{count} machines, links of {LINK_MBIT_PER_S} Mbit/s: images/s of each": [
                    said_rate * count / one.rows_per_s for one in linked
                ],
            }
            for what, found_to_be in predictions.items():
                off = [abs(each - 1) for each in found_to_be]
                claims.append(claim(f"{what}, predicted against measured: off by", "", off, most=0.15))
        return claims

    def _decode_ms(self) -> float:
        """CPU time of decoding an image, in one process."""
        source = penstock.ImageSource(self._images, size=224, batch_size=128, workers=1)
        source.work_here()
        images_per_s(source, 0)
        before = time.process_time()
        images_per_s(source, 1)
        return (time.process_time() - before) * 1000 / source.samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", required=True, help="folder of images")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument(
        "--only",
        default="one_feed,across,stopped,faults,head_back,beside,paper",
        help="parts; the last needs root",
    )
    arguments = parser.parse_args()
    bench = Bench(os.path.abspath(arguments.images), arguments.seconds, arguments.repeats)
    claims = [one for part in arguments.only.split(",") for one in getattr(bench, part)()]
    print("medians:", {arm: round(median(found), 2) for arm, found in bench.measured.items() if _plain(found)})
    report(claims, arguments.json, measured=bench.measured)


def _plain(found: list[Any]) -> bool:
    return all(isinstance(each, float) for each in found)


if __name__ == "__main__":
    main()
