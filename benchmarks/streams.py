"""Streams: a feed of a Kafka topic or a growing folder against its client, json.loads and consumers of one's own.

python -m benchmarks streams --json benchmarks/results/streams.json

The broker is the mock of Kafka's client, in a process of its own whose CPU time nobody is charged for; it has the
same two cores. Arms take turns.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer
from benchmarks.children import ENVIRONMENT, command
from benchmarks.claim import ResultsFile, claim, report

import penstock

PARTITIONS = 64
BATCH, LARGE_BATCH = 500, 2000
KB, LARGE = 1000, 110_000
RECORDS = 64 * 3200
"""As many of 1 KB as the mock keeps: 5 MB a partition, and room to spare."""
TRAINERS = 4
JSON_RECORDS = 600_000
WINDOW, SLOW_WINDOW_BYTES = "256MiB", 64 << 20
BARE, FED = "bare consume, records/s", "feed of bytes, records/s"
LOADS, FED_JSON = "json.loads, 2 processes, records/s", "feed of JSON, 2 workers, batches of {:,}, records/s"
JSON = "JSON records in batches of {:,}, of json.loads in as many processes"
CPU, BYTES = "CPU of four trainers on one feed, of four consumers", "broker's bytes, of four consumers"
NEXT = "from a state, in a cycle of 100 MB, to its next record"
MOST = {CPU: 0.35, BYTES: 0.27, "memory": 1.0, NEXT: 2.0}
CPU_ARMS = {
    "JSON in batches of 500": ("", BATCH),
    "JSON in batches of 2,000": ("", LARGE_BATCH),
    "by the consumers' function, in batches of 500": ("numbers", BATCH),
}
"""What a feed's ``decode=`` is, and its batches."""
FIELDS = ("user", "item", "price", "clicked", "hour", "country")


def json_record(i: int) -> bytes:
    """A click, 150 bytes long."""
    click = {
        "user": i,
        "item": i * 7 % 1000,
        "price": i / 8,
        "clicked": i % 3 == 0,
        "hour": i % 24,
        "country": "dk",
    }
    return json.dumps({**click, "agent": "Mozilla/5.0 (X11; Linux x86_64) Gecko"}).encode()


def numbers(record: bytes) -> dict[str, Any]:
    """What an online model takes of a click."""
    click = json.loads(record)
    return {name: click[name] for name in FIELDS[:5]}


def broker(kind: str, count: str) -> None:
    """Be a broker, and write records first: of one size, or JSON."""
    from tests.fakes.kafka import MockKafka

    mock = MockKafka(partitions=PARTITIONS)
    each = int(count) // PARTITIONS
    for partition in range(PARTITIONS):
        first = partition * each
        made = map(json_record, range(first, first + each)) if kind == "json" else [bytes(int(kind))] * each
        mock.append(partition, [*made])
    print(mock.brokers, flush=True)
    sys.stdin.read()
    mock.close()


@contextmanager
def child(*words: str) -> Iterator[subprocess.Popen[str]]:
    """Run a role of this module in a process of its own; it ends when its input does."""
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command("benchmarks.streams", *words), env={**os.environ, **ENVIRONMENT}, **pipes)
    try:
        yield process
    finally:
        process.stdin.close()
        process.wait(60)


@contextmanager
def brokers_of(kind: str, count: int) -> Iterator[str]:
    with child("broker", kind, str(count)) as process:
        yield process.stdout.readline().strip()


def own(brokers: str, count: str, decodes: str) -> None:
    """Be a training with a consumer of its own: it counts records, or makes batches of them."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "own", "enable.auto.commit": False})
    consumer.assign([TopicPartition("clicks", n, OFFSET_BEGINNING) for n in range(PARTITIONS)])
    seen, began = 0, 0.0
    while seen < int(count):
        messages = consumer.consume(500, 1.0)
        if not began and messages:
            began, cpu_s = time.perf_counter(), _cpu_s()
            continue
        records = [message.value() for message in messages]
        if decodes == "yes":
            clicks = [numbers(record) for record in records]
            _ = {name: np.array([click[name] for click in clicks]) for name in FIELDS[:5]}
        seen = max(seen, 500) + len(records)
    print(
        json.dumps({"s": time.perf_counter() - began, "cpu_s": _cpu_s() - cpu_s, "records": seen - 500}),
        flush=True,
    )
    consumer.close()


def _cpu_s() -> float:
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def make(log: str, cycle: int, decode: Any, workers: int, batch: int = BATCH) -> penstock.StreamSource:
    return penstock.StreamSource(log, decode, cycle=cycle, close_after="2s", batch_size=batch, workers=workers)


def feeder(log: str, cycle: str, decode: str, workers: str, window: str, batch: str) -> None:
    """Be a feeder until the input ends; then tell what it used."""
    by = {"bytes": bytes, "numbers": numbers, "": None}[decode]
    source = make(log, int(cycle), by, int(workers), int(batch))
    with penstock.Feeder(source, "streams", window=window, linger=None) as made:
        import threading

        thread = threading.Thread(target=made.run)
        thread.start()
        began_s = made.statistics().usage.cpu_s  # as consumers are counted from when they read
        print("ready", flush=True)
        sys.stdin.read()
        used_s = made.statistics().usage.cpu_s - began_s
    thread.join()
    print(json.dumps({"cpu_s": used_s}), flush=True)


def trainer(count: str, delay_ms: str, batch_size: str = str(BATCH)) -> None:
    """Be a training that reads so many records."""
    seen, rows, marks, delay_s = 0, 0, [], float(delay_ms) / 1000
    with penstock.attach("streams", int(batch_size), framework="numpy", wait_s=30) as loader:
        began_cpu_s = _cpu_s()
        while seen < int(count):
            for batch in loader:
                rows = len(batch if isinstance(batch, list) else batch["user"])
                seen += rows
                if delay_s:
                    time.sleep(delay_s)
            marks.append((seen, time.perf_counter()))
        cpu_s = _cpu_s() - began_cpu_s
    (first, began), (last, ended) = marks[0], marks[-1]
    print(json.dumps({"records": last - first, "s": ended - began, "cpu_s": cpu_s, "all": seen}), flush=True)


@contextmanager
def feeding(
    log: str, cycle: int, decode: str, workers: int, window: str = WINDOW, batch: int = BATCH
) -> Iterator[Any]:
    with child("feeder", log, str(cycle), decode, str(workers), window, str(batch)) as process:
        process.stdout.readline()
        yield process


def told(*roles: tuple[str, ...]) -> list[dict[str, Any]]:
    """Run roles at once; return what each says."""
    processes = [
        subprocess.Popen(
            command("benchmarks.streams", *role),
            env={**os.environ, **ENVIRONMENT},
            stdout=subprocess.PIPE,
            text=True,
        )
        for role in roles
    ]
    return [json.loads(process.communicate(timeout=600)[0].splitlines()[-1]) for process in processes]


def lo_bytes() -> int:
    """Bytes that went over the loopback so far: the broker's, as nobody else uses it."""
    return int(Path("/sys/class/net/lo/statistics/rx_bytes").read_text())


def rate(found: dict[str, Any]) -> float:
    return found["records"] / found["s"]


def raw(results: dict[str, list[float]], repeats: int) -> None:
    with brokers_of(str(KB), RECORDS) as brokers:
        for _ in range(repeats):
            (bare,) = told(("own", brokers, str(RECORDS), "no"))
            with feeding(f"kafka://{brokers}/clicks", RECORDS // 16, "bytes", 1):
                (fed,) = told(("trainer", str(RECORDS), "0"))
            results.setdefault(BARE, []).append(rate(bare))
            results.setdefault(FED, []).append(rate(fed))


def loads(path: Path, part: str, of: str) -> None:
    """Be a process that calls json.loads for its part of the lines."""
    lines = path.read_bytes().splitlines()[int(part) :: int(of)]
    began = time.perf_counter()
    for line in lines:
        json.loads(line)
    print(json.dumps({"records": len(lines), "s": time.perf_counter() - began}), flush=True)


def decoding(results: dict[str, list[float]], repeats: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log" / "clicks.jsonl"
        path.parent.mkdir()
        path.write_bytes(b"".join(json_record(i) + b"\n" for i in range(JSON_RECORDS)))
        for _ in range(repeats):
            both = told(("loads", str(path), "0", "2"), ("loads", str(path), "1", "2"))
            results.setdefault(LOADS, []).append(sum(map(rate, both)))
            for batch in (BATCH, LARGE_BATCH):
                with feeding(f"watch:{path.parent}", JSON_RECORDS // 16, "", 2, batch=batch):
                    (fed,) = told(("trainer", str(JSON_RECORDS), "0", str(batch)))
                results.setdefault(FED_JSON.format(batch), []).append(rate(fed))


def four(results: dict[str, list[float]], repeats: int) -> None:
    count = PARTITIONS * 20_000
    with brokers_of("json", count) as brokers:
        for _ in range(repeats):
            began = lo_bytes()
            alone = told(*[("own", brokers, str(count), "yes")] * TRAINERS)
            own_bytes = lo_bytes() - began
            own_s = sum(each["cpu_s"] for each in alone) * count / (count - 500)
            for arm, (decode, batch) in CPU_ARMS.items():
                began = lo_bytes()
                with feeding(f"kafka://{brokers}/clicks", count // 8, decode, 2, batch=batch) as process:
                    fed = told(*[("trainer", str(count // 8 * 7), "0", str(batch))] * TRAINERS)
                    process.stdin.close()
                    feeder_s = json.loads(process.stdout.readlines()[-1])["cpu_s"]
                records = sum(each["all"] for each in fed) / TRAINERS
                shared_s = (feeder_s + sum(each["cpu_s"] for each in fed)) * count / records
                results.setdefault(f"{CPU}: {arm}", []).append(shared_s / own_s)
                results.setdefault(BYTES, []).append((lo_bytes() - began) / own_bytes)


def memory(results: dict[str, list[float]], repeats: int, size: int, cycle: int, count: int) -> None:
    """Watch a feeder while one trainer takes ten times as long as the other."""
    with brokers_of(str(size), count) as brokers:
        log = f"kafka://{brokers}/clicks"
        with feeding(log, cycle, "bytes", 1, str(SLOW_WINDOW_BYTES)), child("trainer", str(count // 4), "2"):
            most, until = 0, time.monotonic() + 25
            with child("trainer", str(count // 4), "20"):
                while time.monotonic() < until:
                    time.sleep(0.2)
                    for feed in penstock.feeds():
                        most = max(most, feed.usage.private_bytes + feed.resident_bytes)
        allowed = SLOW_WINDOW_BYTES + 2 * cycle * size + (256 << 20)
        results.setdefault(f"memory with records of {size:,} B, of what is allowed", []).append(most / allowed)


def restart(results: dict[str, list[float]], repeats: int) -> None:
    count = PARTITIONS * 1600
    with brokers_of(str(KB), count) as brokers:
        log = f"kafka://{brokers}/clicks"
        with penstock.share(partial(make, log, count, bytes, 1), "first", 500, linger=0.0) as loader:
            next(iter(loader))
            state = loader.state_dict()
        for turn in range(repeats):
            began = time.perf_counter()
            with penstock.share(partial(make, log, count, bytes, 1), f"again-{turn}", 500, linger=0.0) as loader:
                loader.load_state_dict(state)
                next(iter(loader))
                results.setdefault(NEXT, []).append(time.perf_counter() - began)


PARTS = {
    "raw": raw,
    "decoding": decoding,
    "four": four,
    "small": partial(memory, size=KB, cycle=50_000, count=RECORDS),
    "large": partial(memory, size=LARGE, cycle=1000, count=PARTITIONS * 40),
    "restart": restart,
}


def main(
    only: Annotated[str, typer.Option(help=f"Parts, of {', '.join(PARTS)}.")] = ",".join(PARTS),
    repeats: Annotated[int, typer.Option(help="Turns of each part, but for those of memory.")] = 5,
    file: ResultsFile = None,
) -> None:
    results: dict[str, list[float]] = {}
    for name in only.split(","):
        PARTS[name](results, repeats)
        print(name, {what: f"{median(values):.3g}" for what, values in results.items()}, flush=True)

    judged = [claim(what, unit, values, **target) for what, unit, values, target in _claims(results)]
    report(judged, file, date=time.strftime("%Y-%m-%d"), **results)


def _claims(results: dict[str, list[float]]) -> Iterator[tuple[str, str, list[float], dict[str, float]]]:
    for what, one, other, least in (
        ("records of 1 KB, of bare consume(500)", FED, BARE, 0.6),
        *((JSON.format(size), FED_JSON.format(size), LOADS, 0.8) for size in (BATCH, LARGE_BATCH)),
    ):
        if one in results:
            ratios = [a / b for a, b in zip(results[one], results[other], strict=True)]
            yield what, "x", ratios, {"least": least}
    for what, values in results.items():
        most = next((most for name, most in MOST.items() if what.startswith(name)), None)
        if most is not None:
            yield what, "s" if what == NEXT else "x", values, {"most": most}


if __name__ == "__main__":
    {
        "broker": broker,
        "own": own,
        "feeder": feeder,
        "trainer": trainer,
        "loads": lambda path, *rest: loads(Path(path), *rest),
    }[sys.argv[1]](*sys.argv[2:])
