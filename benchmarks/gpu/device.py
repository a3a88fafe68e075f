"""What a measured trainer does on a GPU: reads each batch, or trains on it. Peers run this too."""

# torch's own annotations leave much of it unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle
from typing import Any

import torch
from benchmarks.measure.loop import Batches
from benchmarks.share.blocks import Blocks

_UNDER_WAY = 2
_CLASSES = 1000


def worked_on(source: Batches, order: dict[str, Any]) -> Batches:
    """Use each batch on the order's device as its work says: "read" or "train"."""
    device = order["device"]
    work = _read if order["work"] == "read" else _training(device, order["width"])
    # A feed's statistics() would be read in its arms alone, and count as theirs.
    return source._replace(batches=_paced(device, source.batches, work), latency_s=None)


def _paced(device: str, batches: Iterable[Any], work: Callable[[list[torch.Tensor]], None]) -> Iterator[Any]:
    """Yield batches, of which the device is never more than a few behind."""
    events: deque[torch.cuda.Event] = deque()
    for batch in batches:
        leaves = leaves_of(batch)
        if leaves[0].device.type != torch.device(device).type:
            raise RuntimeError(f"batches come on {leaves[0].device}, and were to be on {device}")
        work(leaves)
        if device != "cpu":
            events.append(torch.cuda.Event(blocking=True))
            events[-1].record()
            if len(events) > _UNDER_WAY:
                events.popleft().synchronize()
        yield batch


def leaves_of(batch: Any) -> list[Any]:
    return list(batch) if type(batch) in {tuple, list} else [batch]


def _read(leaves: list[torch.Tensor]) -> None:
    leaves[0].flatten(1)[:, ::4096].sum()


def _training(device: str, width: int) -> Callable[[list[torch.Tensor]], None]:
    """Make the training step of a ResNet-18 on uint8 images, n x height x width x 3, and labels."""
    from benchmarks.gpu.resnet import resnet18

    model: Any = resnet18(width, _CLASSES).to(device)
    if device != "cpu":  # on the CPU, torch 2.13 corrupts its heap with few channels
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    kind = torch.device(device).type

    def step(leaves: list[torch.Tensor]) -> None:
        images_NHWC, labels = leaves
        with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
            logits = model(_planes(images_NHWC, device))
            loss = torch.nn.functional.cross_entropy(logits, labels % _CLASSES)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def _planes(images_NHWC: torch.Tensor, device: str) -> torch.Tensor:
    images_NCHW = images_NHWC.permute(0, 3, 1, 2).float() / 255
    return images_NCHW.contiguous() if device == "cpu" else images_NCHW


class Moved:
    """Batches that this process copies to the device itself."""

    def __init__(self, batches: Iterable[Any], device: str) -> None:
        self._batches = batches
        self._device = device
        self.copied_bytes = 0  # bytes copied so far

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        for batch in self._batches:
            leaves = leaves_of(batch)
            self.copied_bytes += sum(leaf.nbytes for leaf in leaves)
            yield [leaf.to(self._device, non_blocking=True, copy=True) for leaf in leaves]


def own_copies(nbytes: int, device: str) -> Moved:
    """Make blocks that lie ready in memory, pinned if the device is a GPU."""
    blocks = [torch.as_tensor(block) for block in Blocks(nbytes, 4)]
    return Moved(cycle(blocks if device == "cpu" else [block.pin_memory() for block in blocks]), device)


def device_copies(nbytes: int, device: str) -> Iterator[torch.Tensor]:
    """Yield copies of blocks on the device: the least that a private batch can cost there."""
    blocks = [torch.as_tensor(block).to(device) for block in Blocks(nbytes, 4)]
    return (block.clone() for block in cycle(blocks))


def forget_memory(device: str) -> None:
    """Restart the count of the device's peak memory."""
    if device != "cpu":
        gc.collect()
        torch.cuda.init()  # before, there are no statistics, which torch 2.11 takes for a wrong device
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def memory_bytes(device: str) -> int:
    """Return the most device memory that this process's tensors have taken."""
    return 0 if device == "cpu" else torch.cuda.max_memory_allocated(device)
