"""Decoding on a GPU: the far side of images, by torchvision's decoder and a kernel of ours behind it.

Its process uses the first GPU that it sees, in a context of its own. No GPU has run this file as it stands; what
one has run is torchvision's decoder, asked in the same way (docs/hardware.md).
Documentation: torchvision, ``decode_jpeg``; CUDA Driver API, cuModuleLoadData, cuLaunchKernel.
"""

# torch, torchvision and cuda-bindings are not fully annotated.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingImports=false
# pyright: reportAttributeAccessIssue=false, reportMissingTypeStubs=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg  # pyright: ignore[reportMissingTypeStubs]

from penstock.contracts import ByteArray, Region
from penstock.gpus.driver import compile_for, value_of
from penstock.sources.images.batches import BatchStep, Crop, OutOfMemory
from penstock.sources.images.recipe import ImageRecipe
from penstock.sources.samples.worker import BlockShape, SampleWriter
from penstock.sources.workers.far import FarSide
from penstock.sources.workers.process import FarFailed, serve_batches

GPU_SIDE = FarSide(__name__, "the GPU")
HEADER = Path(__file__).with_name("crops.cuh")
_TILE = 16


def lacks() -> str:
    """Say which package lacks for a GPU to decode; empty if none does."""
    for package in ("torch", "torchvision", "cuda"):  # the last is of cuda-bindings
        if not find_spec(package):
            name = "cuda-bindings" if package == "cuda" else package
            return f'{name} is not installed (pip install "penstock[gpu]" torchvision)'
    return ""


class TorchvisionDevice:
    """Decodes by ``torchvision.io.decode_jpeg``, whose streams nobody else's wait for."""

    def __init__(self, size: int) -> None:
        if why := lacks():
            raise FarFailed(why)
        import torch
        from cuda.bindings import driver
        from torchvision.io import ImageReadMode, decode_jpeg

        if not torch.cuda.is_available():
            raise FarFailed("PyTorch has no GPU that it can use")
        self._torch, self._driver = torch, driver
        self._read, self._mode = decode_jpeg, ImageReadMode.RGB
        self._size = size
        self._device = torch.device("cuda", torch.cuda.current_device())
        self._stream = torch.cuda.current_stream(self._device)
        self._pinned = torch.empty(0, dtype=torch.uint8)
        self._in_use: list[Any] = []  # what kernels and copies under way refer to
        major, minor = torch.cuda.get_device_capability(self._device)
        value_of(driver.cuInit(0))
        torch.zeros(1, device=self._device)  # makes its context the current one
        self._module = value_of(driver.cuModuleLoadData(compile_for(HEADER, f"sm_{major}{minor}", "--fmad=false")))
        self._kernel = value_of(driver.cuModuleGetFunction(self._module, b"penstock_crops"))
        self._try()

    def _try(self) -> None:
        """Decode one image: what libraries load with the first one is not to be measured, or missing, later."""
        jpeg, side = simplejpeg.encode_jpeg(np.zeros((64, 64, 3), np.uint8)), 64
        try:
            frame = self._decoded([self._torch.from_numpy(np.frombuffer(jpeg, np.uint8).copy())])[0]
            self.finish([frame], [Crop(0, Region(0, 0, side, side), False)])
            self.synchronize()
        except Exception as error:  # whatever these libraries raise
            raise FarFailed(f"it decodes no JPEG by torchvision: {error}") from error

    def decode(self, jpegs: Sequence[bytes], sizes: Sequence[tuple[int, int]]) -> Sequence[Any]:
        encoded = [self._torch.from_numpy(np.frombuffer(jpeg, np.uint8).copy()) for jpeg in jpegs]
        try:
            frames = self._decoded(encoded)
        except self._torch.OutOfMemoryError:
            raise OutOfMemory from None
        except RuntimeError:  # one that it does not take fails all
            frames = [*map(self._alone, encoded)]
        return [
            frame if frame is not None and tuple(frame.shape) == (3, *size) else None
            for frame, size in zip(frames, sizes, strict=True)
        ]

    def finish(self, frames: Sequence[Any], crops: Sequence[Crop]) -> ByteArray:
        torch, size, nbytes = self._torch, self._size, len(crops) * self._size**2 * 3
        if self._pinned.nbytes < nbytes:
            self._pinned = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        words = torch.empty((len(crops), 7), dtype=torch.int64, pin_memory=True)
        words.numpy()[:] = [_words(frames[crop.image], crop) for crop in crops]
        try:
            there = words.to(self._device, non_blocking=True)
            out = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        except torch.OutOfMemoryError:
            raise OutOfMemory from None
        given = [np.array([each], kind) for each, kind in (
            (there.data_ptr(), np.uint64), (out.data_ptr(), np.uint64), (size, np.int32),
        )]  # fmt: skip
        parameters = np.array([each.ctypes.data for each in given], np.uint64)
        tiles = -(-size // _TILE)
        shape = tiles, tiles, len(crops), _TILE, _TILE, 1
        value_of(
            self._driver.cuLaunchKernel(
                self._kernel, *shape, 0, self._stream.cuda_stream, parameters.ctypes.data, 0
            )
        )
        self._pinned[:nbytes].copy_(out, non_blocking=True)
        self._in_use = [words, there, out, frames]
        return self._pinned[:nbytes].numpy().reshape(len(crops), size, size, 3)

    def synchronize(self) -> None:
        self._torch.cuda.synchronize(self._device)
        self._in_use.clear()

    def _decoded(self, encoded: Sequence[Any]) -> Sequence[Any]:
        return self._read([*encoded], mode=self._mode, device=self._device)

    def _alone(self, encoded: Any) -> Any:
        try:
            return self._decoded([encoded])[0]
        except self._torch.OutOfMemoryError:
            raise OutOfMemory from None
        except RuntimeError:
            return None


def _words(frame: Any, crop: Crop) -> tuple[int, ...]:
    """Return a crop as the kernel takes it: see crops.cuh."""
    colour, row, pixel = frame.stride()
    region = crop.region
    first = frame.data_ptr() + region.top * row + region.left * pixel
    return first, row, pixel, colour, region.height, region.width, int(crop.mirrored)


def _writer(recipe: ImageRecipe, shape: BlockShape, *memory: Any) -> SampleWriter:
    step = BatchStep(recipe, TorchvisionDevice(recipe.augmentation.size))
    return SampleWriter(recipe, shape, *memory, step=step)


def main(fd: int) -> None:
    """Be the far side."""
    serve_batches(fd, _writer)
