"""A click model learns online from a Kafka topic: two trainings on one stream, which come, leave and come back.

python examples/stream.py

It starts the mock broker that comes with Kafka's client, writes clicks to it and starts the trainings. With a
broker of your own, whose topic has JSON records such as {"user": 3, "item": 5, "price": 1.5, "clicked": true}:

python examples/stream.py train --log kafka://broker:9092/clicks --lr 0.05
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from confluent_kafka import Producer
from torch import nn

import penstock

USERS, ITEMS = 50, 20


def write_clicks(producer: Producer, topic: str, per_s: int, ends: threading.Event) -> None:
    """Write clicks until it is told to end; which items a user likes stays the same."""
    random = np.random.default_rng(0)
    likes = random.normal(size=(USERS, ITEMS))
    while not ends.wait(0.1):
        for _ in range(per_s // 10):
            user, item, price = int(random.integers(USERS)), int(random.integers(ITEMS)), float(random.random())
            clicked = bool(random.random() < 1 / (1 + np.exp(3 * price - 2 * likes[user, item])))
            click = {"user": user, "item": item, "price": round(price, 3), "clicked": clicked}
            producer.produce(topic, json.dumps(click))
        producer.poll(0)
    producer.flush(5)


def make_stream(log: str) -> penstock.StreamSource:
    """Read the clicks: a cycle is 1,000 of them, or those of two seconds."""
    return penstock.StreamSource(log, decode=decode, cycle=1000, close_after="2s", batch_size=100, workers=1)


def decode(record: bytes) -> dict[str, np.float32 | int]:
    """Return a click's values: a price may be a whole number in JSON, and is a float in every batch."""
    click = json.loads(record)
    return {
        "user": click["user"],
        "item": click["item"],
        "price": np.float32(click["price"]),
        "clicked": np.float32(click["clicked"]),
    }


class ClickModel(nn.Module):
    """A factorization of users and items, and what the price does."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(USERS, width), nn.Embedding(ITEMS, width)
        self.price = nn.Linear(1, 1)

    def forward(self, user: torch.Tensor, item: torch.Tensor, price: torch.Tensor) -> torch.Tensor:
        return (self.users(user) * self.items(item)).sum(1) + self.price(price[:, None]).squeeze(1)


def train(log: str, lr: float, cycles: int, state: Path | None) -> None:
    """Learn from each click once, after a prediction; go on from a state if there is one."""
    torch.manual_seed(0)
    model, loss_of = ClickModel(), nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr)
    with penstock.share(partial(make_stream, log), "clicks", batch_size=50, framework="torch") as loader:
        if state is not None and state.exists():
            saved = torch.load(state)
            loader.load_state_dict(saved["loader"])
            model.load_state_dict(saved["model"])
            print(f"lr {lr}: goes on with epoch {loader.epoch}", flush=True)
        for _ in range(cycles):
            clicks, total = 0, 0.0
            for batch in loader:
                loss = loss_of(model(batch["user"], batch["item"], batch["price"]), batch["clicked"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                clicks, total = clicks + len(batch["user"]), total + len(batch["user"]) * loss.item()
            print(f"lr {lr}: {clicks} clicks, loss before learning {total / max(1, clicks):.3f}", flush=True)
        if state is not None:
            torch.save({"loader": loader.state_dict(), "model": model.state_dict()}, state)


def main() -> None:
    """Start a broker, who writes, and the trainings."""
    producer = Producer({"bootstrap.servers": "", "test.mock.num.brokers": 1, "log_level": 0})
    broker = next(iter(producer.list_topics("clicks").brokers.values()))
    log, ends = f"kafka://{broker.host}:{broker.port}/clicks", threading.Event()
    writer = threading.Thread(target=write_clicks, args=(producer, "clicks", 1500, ends))
    writer.start()

    def training(lr: str, cycles: str, *more: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, __file__, "train", "--log", log, "--lr", lr, "--cycles", cycles, *more]
        )

    with tempfile.TemporaryDirectory() as folder:
        saves = "--state", str(Path(folder) / "state")
        first = training("0.05", "3", *saves)
        time.sleep(2)
        second = training("0.01", "6")
        first.wait()  # it leaves, and comes back with the click that is next for it
        again = training("0.05", "3", *saves)
        failed = [each.args for each in (first, second, again) if each.wait()]
    ends.set()
    writer.join()
    producer.close()
    if failed:
        sys.exit(f"failed: {failed}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", nargs="?", choices=["train"], help="only train, from --log")
    parser.add_argument("--log", help="kafka://BROKER/TOPIC, or watch:FOLDER")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--cycles", type=int, default=10)
    parser.add_argument("--state", type=Path, help="where it goes on from, and saves its place")
    asked = parser.parse_args()
    if asked.role:
        train(asked.log, asked.lr, asked.cycles, asked.state)
    else:
        main()
