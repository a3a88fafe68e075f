"""The kernel that makes crops, compiled for the CPU, and the GPU's worker over a torch that has no GPU."""

from __future__ import annotations

import ctypes
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from enum import IntEnum
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from tests.sources.images.pictures import jpeg, noise

from penstock import ImageSource
from penstock.contracts import Region
from penstock.sources.images import gpu
from penstock.sources.images.batches import Crop, OutOfMemory
from penstock.sources.images.crops import Augmentation
from penstock.sources.workers import Here
from penstock.sources.workers.process import FarFailed

SIZES = (1, 2, 7, 16, 17, 32)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """Compile it for this machine."""
    compiled = tmp_path_factory.mktemp("kernel") / "crops.so"
    flags = ("-std=c++17", "-O2", "-ffp-contract=off", "-Wall", "-Werror", "-shared", "-fPIC", "-x", "c++")
    subprocess.run(["c++", *flags, gpu.HEADER, "-o", compiled], check=True)
    found = ctypes.CDLL(str(compiled)).penstock_crops
    found.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    return found


def augmentation(size: int, **how: Any) -> Augmentation:
    return Augmentation(**{
        "size": size, "crop": "rrc", "scale": (0.08, 1.0), "ratio": (3 / 4, 4 / 3), "flip": 0.5,
        "jitter": (0.0, 0.0, 0.0, 0.0), "shrink": "bilinear", **how,
    })  # fmt: skip


@pytest.mark.parametrize("count", [3000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_its_arithmetic_is_opencvs_bit_for_bit(kernel, count):
    draw, pixels = random.Random(count), np.random.default_rng(count)
    for number in range(count):
        size = draw.choice(SIZES)
        height, width = (
            size * draw.choice([1, 2, 3, 4, 5, 8, 12]) if number % 4 == 0 else draw.randint(1, 12 * size)
            for _ in range(2)
        )
        image = pixels.integers(0, 256, (height, width, 3), np.uint8)
        stored, strides = (image, (3 * width, 3, 1)) if number % 2 else (
            np.ascontiguousarray(image.transpose(2, 0, 1)), (width, 1, height * width)
        )  # fmt: skip
        mirrored = draw.random() < 0.5
        crop = np.array([stored.ctypes.data, *strides, height, width, mirrored], np.int64)
        made = np.empty((size, size, 3), np.uint8)
        kernel(crop.ctypes.data, made.ctypes.data, size, 1)
        resized = np.asarray(augmentation(size).resize(image)).reshape(made.shape)
        assert np.array_equal(made, resized[:, ::-1] if mirrored else resized), (size, height, width)


class Status(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


class Torch:
    """PyTorch whose GPU is the CPU; what is begun is done when it is waited for."""

    uint8, int64 = torch.uint8, torch.int64
    OutOfMemoryError = torch.OutOfMemoryError
    from_numpy, zeros = staticmethod(torch.from_numpy), staticmethod(torch.zeros)

    def __init__(self, kernel: Callable[..., None]) -> None:
        self.begun: list[Callable[[], None]] = []
        self.full = self.lost = False
        self._kernel = kernel
        stream = SimpleNamespace(cuda_stream=0)
        self.cuda = SimpleNamespace(
            is_available=lambda: True, current_device=lambda: 0, current_stream=lambda _: stream,
            get_device_capability=lambda _: (9, 0), synchronize=self.synchronize,
        )  # fmt: skip
        self.bindings = SimpleNamespace(
            cuInit=lambda _: (Status.CUDA_SUCCESS,), cuModuleLoadData=lambda code: (Status.CUDA_SUCCESS, code),
            cuModuleGetFunction=lambda module, name: (Status.CUDA_SUCCESS, (module, name)),
            cuLaunchKernel=self.launch,
        )  # fmt: skip

    def device(self, _: str, number: int) -> str:
        assert number == 0
        return "cpu"

    def empty(self, shape: Any, *, dtype: Any, device: str = "cpu", pin_memory: bool = False) -> Any:
        if self.full and not pin_memory:
            raise torch.OutOfMemoryError("CUDA out of memory: it is a test")
        return torch.full([shape] if isinstance(shape, int) else shape, 0xDB, dtype=dtype)

    def launch(self, _: Any, across: int, down: int, count: int, *rest: Any) -> tuple[Status]:
        (x, y, z, shared, stream, parameters, extra) = rest
        assert (z, shared, stream, extra) == (1, 0, 0, 0)
        at = np.ctypeslib.as_array(ctypes.cast(parameters, ctypes.POINTER(ctypes.c_uint64)), (3,)).tolist()
        crops, out = (ctypes.c_uint64.from_address(each).value for each in at[:2])
        size = ctypes.c_int32.from_address(at[2]).value
        assert across * x >= size > (across - 1) * x and down * y >= size
        self._kernel(crops, out, size, count)
        return (Status.CUDA_ERROR_ILLEGAL_ADDRESS if self.lost else Status.CUDA_SUCCESS,)

    def synchronize(self, _: Any) -> None:
        if self.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")


@pytest.fixture
def fake(kernel, monkeypatch: pytest.MonkeyPatch) -> Torch:
    its = Torch(kernel)

    def decode_jpeg(encoded: list[torch.Tensor], mode: str, device: str) -> list[torch.Tensor]:
        assert (mode, device) == ("RGB", "cpu") and all(each.dtype == torch.uint8 for each in encoded)
        if its.full:
            raise torch.OutOfMemoryError("CUDA out of memory: it is a test")
        found = list[torch.Tensor]()
        for each in encoded:
            try:
                pixels = simplejpeg.decode_jpeg(each.numpy().tobytes(), "RGB")
            except ValueError as error:
                raise RuntimeError("nvjpegDecodeBatched failed: it is a test") from error
            found.append(torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))))
        return found

    vision = SimpleNamespace(decode_jpeg=decode_jpeg, ImageReadMode=SimpleNamespace(RGB="RGB"))
    for name, module in (
        ("torch", its), ("torchvision", SimpleNamespace(io=vision)), ("torchvision.io", vision),
        ("cuda.bindings", SimpleNamespace(driver=its.bindings)),
    ):  # fmt: skip
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(gpu, "compile_for", lambda *_: b"code")
    monkeypatch.setattr(gpu, "lacks", str)
    return its


def test_a_batch_is_what_workers_make_of_it(fake):
    device, how = gpu.TorchvisionDevice(16), augmentation(16)
    images = [jpeg(noise(40 + number, 60 - number, number), "444") for number in range(9)]
    damaged = images[4][:200] + images[4][400:]
    frames = device.decode(
        [*images, damaged, images[0]], [(40 + n, 60 - n) for n in range(9)] + [(44, 56), (1, 1)]
    )
    assert [frame is None for frame in frames] == [False] * 9 + [True, True]
    crops = [Crop(n, Region(n, 2 * n, 40 - n, 30), n % 2 == 1) for n in range(9)]
    made = device.finish(frames, crops)
    device.synchronize()
    for n, pixels in enumerate(made):
        whole = simplejpeg.decode_jpeg(images[n], "RGB")
        resized = how.resize(whole[n:40, 2 * n : 2 * n + 30])
        assert np.array_equal(pixels, resized[:, ::-1] if n % 2 else resized)


def test_all_of_a_source_comes_as_from_workers(fake, tmp_path: Path):
    for number in range(70):
        kind = ("444", "420", "411")[number % 3]
        (tmp_path / f"{number:02}.jpg").write_bytes(jpeg(noise(40, 90, number), kind))

    def made(**options: Any) -> list[np.ndarray]:
        with closing(ImageSource(tmp_path, size=24, batch_size=64, workers=1, crops=2, **options)) as source:
            source._blocks.work_here()
            if make is not None:
                source._blocks._workers = partial(Here, make)
                source._blocks._forget()
            return [images.copy() for images in source]

    make: Any = None
    expected = made()
    make = gpu._writer
    found = made()
    assert len(found) == len(expected) and all(map(np.array_equal, found, expected))


def test_a_full_gpu_and_a_lost_one_are_told_apart(fake):
    device = gpu.TorchvisionDevice(16)
    image = jpeg(noise(40, 60), "444")
    fake.full = True
    with pytest.raises(OutOfMemory):
        device.decode([image], [(40, 60)])
    fake.full = False
    frames = device.decode([image], [(40, 60)])
    fake.full = True
    with pytest.raises(OutOfMemory):
        device.finish(frames, [Crop(0, Region(0, 0, 40, 60), False)])
    fake.full, fake.lost = False, True
    with pytest.raises(RuntimeError, match="illegal memory access"):
        device.synchronize()


@pytest.mark.parametrize("lacks", ["torch", "torchvision", "cuda"])
def test_a_package_that_lacks_is_one_sentence(monkeypatch, lacks):
    monkeypatch.setattr(gpu, "find_spec", lambda name: None if name == lacks else object())
    with pytest.raises(
        FarFailed, match=rf"{lacks}.* is not installed \(pip install .penstock\[gpu\]. torchvision\)"
    ):
        gpu.TorchvisionDevice(16)


def test_a_torchvision_that_decodes_nothing_on_a_gpu_is_one_sentence(fake):
    fake.lost = True
    with pytest.raises(
        FarFailed, match="it decodes no JPEG by torchvision: CUDA refused: CUDA_ERROR_ILLEGAL_ADDRESS"
    ):
        gpu.TorchvisionDevice(16)


def test_no_gpu_is_one_sentence(fake, monkeypatch):
    monkeypatch.setattr(fake.cuda, "is_available", lambda: False)
    with pytest.raises(FarFailed, match="no GPU that it can use"):
        gpu.TorchvisionDevice(16)
