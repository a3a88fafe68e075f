"""TensorSocket's producer, started by the sharing benchmarks; it ends with its input."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch
from benchmarks.measure.loop import heard_lines, reply
from benchmarks.share.blocks import ROWS, Blocks
from benchmarks.share.jpeg import make_loader
from tensorsocket import TensorProducer
from tensorsocket.producer import TensorPool

BLOCKS_PER_PASS = 1024


class TorchBlocks:
    """Ready blocks in the form of TensorSocket's batches: tuples of tensors."""

    def __init__(self, nbytes: int) -> None:
        self._blocks = Blocks(nbytes, BLOCKS_PER_PASS)

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[tuple[torch.Tensor]]:
        for block in self._blocks:
            yield (torch.from_numpy(block),)


def loader_of(workload: dict[str, Any]) -> Any:
    if workload["kind"] == "jpeg":
        return make_loader(workload["folder"], workers=workload["workers"], batch_size=ROWS)
    return TorchBlocks(workload["block_bytes"])


class CountingPool(TensorPool):
    """Counts the blocks and bytes that TensorSocket copies to the GPU here, if there is one."""

    blocks = copied_bytes = 0

    def assign(self, data: tuple[torch.Tensor, ...]) -> Any:
        self.blocks += len(data[0]) // ROWS
        self.copied_bytes += sum(leaf.nbytes for leaf in data)
        return super().assign(data)


def answer(heard: Iterator[bytes], pool: CountingPool) -> None:
    """Answer each request with the counts; end with the input."""
    for _ in heard:
        reply({"copied_bytes": pool.copied_bytes, "blocks": pool.blocks})
    os._exit(0)


def main() -> None:
    reply({"pid": os.getpid()})
    heard = heard_lines()
    order = json.loads(next(heard))
    port, ack_port, *heart_ports = order["ports"]
    if order.get("device", "cpu") != "cpu" and not torch.cuda.is_available():
        reply(
            {"error": f"{order['device']}: torch {torch.__version__} of TensorSocket's environment finds no GPU"}
        )
        return
    producer = TensorProducer(loader_of(order["workload"]), port, ack_port, tuple(heart_ports))
    producer.pool = pool = CountingPool(producer.pool.max_size)
    threading.Thread(target=answer, args=(heard, pool), daemon=True).start()
    # A consumer that comes late waits for the next epoch: begin when all are there.
    while len(producer.hb.consumers) < order["trainers"]:
        time.sleep(0.1)
    time.sleep(2.0)  # an acknowledgement sent before its socket is connected is lost, and costs 10 s
    while True:
        for _ in producer:
            pass


if __name__ == "__main__":
    main()
