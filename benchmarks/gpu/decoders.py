"""Decoders of JPEGs on a GPU, and what follows there: crop, resize, mirror, and the copy to the host."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import simplejpeg
from benchmarks.gpu.evidence import unpack
from benchmarks.gpu.record import ROOT

from penstock.contracts import ByteArray
from penstock.sources.images.crops import Augmentation, draws_of

SIDE = 224
_KINDS = {"engines": "HW_GPU_ONLY", "gpu": "GPU_ONLY", "hybrid": "HYBRID_CPU_GPU"}
BACKENDS = {"torchvision": ("torchvision",), "nvimagecodec": tuple(_KINDS)}
AUGMENTATION = Augmentation(SIDE, "rrc", (0.08, 1.0), (3 / 4, 4 / 3), 0.5, (0.0, 0.0, 0.0, 0.0), "bilinear")
KERNEL = r"""
extern "C" __global__ void finish(const unsigned long long* images, const int* how, unsigned char* out, int side) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y, i = blockIdx.z;
  if (x >= side || y >= side) return;
  const int* a = how + 8 * i;  // strides of y, x, colour; top, left, height, width; mirrored
  const unsigned char* from = (const unsigned char*)images[i] + (long long)a[3] * a[0] + (long long)a[4] * a[1];
  int h = a[5], w = a[6], down = min(max(h / side, 1), 4), right = min(max(w / side, 1), 4);
  float sum[3] = {0, 0, 0};
  for (int j = 0; j < down; ++j) for (int k = 0; k < right; ++k) {
    float v = min(max((y * down + j + .5f) * h / (side * down) - .5f, 0.f), h - 1.f);
    float u = min(max((x * right + k + .5f) * w / (side * right) - .5f, 0.f), w - 1.f);
    int top = (int)v, left = (int)u;
    long long y0 = (long long)top * a[0], y1 = (long long)min(top + 1, h - 1) * a[0];
    long long x0 = (long long)left * a[1], x1 = (long long)min(left + 1, w - 1) * a[1];
    v -= top; u -= left;
    for (int c = 0; c < 3; ++c) {
      const unsigned char* p = from + c * (long long)a[2];
      sum[c] += (1 - v) * ((1 - u) * p[y0 + x0] + u * p[y0 + x1]) + v * ((1 - u) * p[y1 + x0] + u * p[y1 + x1]);
    }
  }
  unsigned char* to = out + (((long long)i * side + y) * side + (a[7] ? side - 1 - x : x)) * 3;
  for (int c = 0; c < 3; ++c) to[c] = (unsigned char)(sum[c] / (down * right) + .5f);
}
"""


class Frame(NamedTuple):
    """A decoded image where a decoder left it."""

    address: int
    height: int
    width: int
    strides: tuple[int, int, int]  # bytes from one row, pixel and colour to the next
    held: Any  # what owns the memory


class Decoder(Protocol):
    """Decodes a list of JPEGs as one batch; None for each that it does not take."""

    def decode(self, encoded: Sequence[Any]) -> list[Frame | None]: ...

    def encoded(self, jpeg: bytes) -> Any: ...

    def pixels(self, frame: Frame) -> ByteArray: ...


class Finisher(Protocol):
    def __call__(self, frames: list[Frame | None], cycle: int) -> int: ...


class GpuSide:
    """One process's loop: decode a batch, finish it, have it in memory that others can read."""

    def __init__(self, decoder: Decoder, finish: Finisher, jpegs: Sequence[bytes], batch: int = 128) -> None:
        self.decoder, self.batch, self.failed = decoder, batch, 0
        self._finish, self._cycle = finish, 0
        encoded = [decoder.encoded(jpeg) for jpeg in jpegs]
        taken = [each for each in encoded if _is_taken(decoder, each)]
        if not taken:
            raise RuntimeError("it takes none of these JPEGs")
        self.refused = len(encoded) - len(taken)
        self._source = cycle(taken)

    def __call__(self, count: int = 0) -> int:
        """Prepare a batch; return how many images of it came."""
        frames = self.decoder.decode(list(islice(self._source, count or self.batch)))
        self._cycle += 1
        done = self._finish(frames, self._cycle)
        self.failed += len(frames) - done
        return done


def _is_taken(decoder: Decoder, encoded: Any) -> bool:
    try:
        return decoder.decode([encoded])[0] is not None
    except RuntimeError:
        return False


class Torchvision:
    """``torchvision.io.decode_jpeg``: on a stream of its own, which nobody else's waits for."""

    def __init__(self) -> None:
        import torch
        from torchvision.io import ImageReadMode, decode_jpeg

        self._torch, self._decode, self._mode = torch, decode_jpeg, ImageReadMode.RGB

    def encoded(self, jpeg: bytes) -> Any:
        return self._torch.frombuffer(bytearray(jpeg), dtype=self._torch.uint8)

    def decode(self, encoded: Sequence[Any]) -> list[Frame | None]:
        tensors = self._decode(list(encoded), mode=self._mode, device="cuda")
        self._torch.cuda.synchronize()
        return [_planar(tensor) for tensor in tensors]

    def pixels(self, frame: Frame) -> ByteArray:
        return frame.held.permute(1, 2, 0).cpu().numpy()


def _planar(tensor: Any) -> Frame:
    colour, row, pixel = tensor.stride()
    return Frame(tensor.data_ptr(), tensor.shape[1], tensor.shape[2], (row, pixel, colour), tensor)


class TorchFinisher:
    """Torchvision's own way to crops: image by image."""

    def __call__(self, frames: list[Frame | None], cycle: int) -> int:
        import torch
        from torchvision.transforms.v2.functional import resized_crop

        done = []
        for (top, left, height, width, mirrored), frame in zip(boxes(frames, cycle), frames, strict=True):
            if frame is not None:
                crop = resized_crop(frame.held, top, left, height, width, [SIDE, SIDE], antialias=True)
                done.append(crop.flip(2) if mirrored else crop)
        torch.stack(done).cpu()
        return len(done)


class NvImageCodec:
    """One backend of nvImageCodec alone; the engines do not wait for the caller's stream, so we do."""

    def __init__(self, stream: Any, backend: str, *, fancy: bool) -> None:
        from nvidia import nvimgcodec

        self._stream, self._opened = stream, nvimgcodec.CodeStream
        kind = getattr(nvimgcodec.BackendKind, _KINDS[backend])
        self._decoder = nvimgcodec.Decoder(
            device_id=0, max_num_cpu_threads=2, backends=[nvimgcodec.Backend(kind)],
            options=f":fancy_upsampling={int(fancy)}",
        )  # fmt: skip
        self._how = nvimgcodec.DecodeParams(apply_exif_orientation=False, color_spec=nvimgcodec.ColorSpec.SRGB)

    def encoded(self, jpeg: bytes) -> Any:
        return jpeg

    def decode(self, encoded: Sequence[Any]) -> list[Frame | None]:
        self._stream.synchronize()
        streams = [self._opened(each) for each in encoded]
        images = self._decoder.decode(streams, params=self._how, cuda_stream=self._stream.ptr)
        return [None if image is None else _interleaved(image) for image in images]

    def pixels(self, frame: Frame) -> ByteArray:
        self._stream.synchronize()
        return np.array(frame.held.cpu())


def _interleaved(image: Any) -> Frame:
    told = image.__cuda_array_interface__
    height, width, colours = told["shape"]
    if colours != 3:
        raise RuntimeError(f"an image came with {colours} colours")
    return Frame(told["data"][0], height, width, told.get("strides") or (width * 3, 3, 1), image)


class CupyFinisher:
    """Crops, resizes and mirrors a batch in one kernel, and copies it to pinned memory and from there on."""

    def __init__(self, cupy: Any, stream: Any, most: int = 128) -> None:
        self._cupy, self._stream = cupy, stream
        self._kernel = cupy.RawKernel(KERNEL, "finish")
        nbytes = most * SIDE * SIDE * 3
        self._out = cupy.empty(nbytes, cupy.uint8)
        self._pinned = np.frombuffer(cupy.cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes)
        self._slot = np.zeros(nbytes, np.uint8)

    def __call__(self, frames: list[Frame | None], cycle: int) -> int:
        how = [(*frame.strides, *box) for frame, box in zip(frames, boxes(frames, cycle), strict=True) if frame]
        if not how:
            return 0
        at = [frame.address for frame in frames if frame]
        nbytes, tiles = len(how) * SIDE * SIDE * 3, SIDE // 16
        with self._stream:
            images, ways = self._cupy.asarray(np.array(at, np.uint64)), self._cupy.asarray(np.array(how, np.int32))
            self._kernel((tiles, tiles, len(how)), (16, 16, 1), (images, ways, self._out, np.int32(SIDE)))
            self._out[:nbytes].get(stream=self._stream, out=self._pinned[:nbytes], blocking=False)
        self._stream.synchronize()
        self._slot[:nbytes] = self._pinned[:nbytes]
        return len(how)


class Fake:
    """Stands in for a decoder on a GPU: libjpeg-turbo's pixels."""

    def encoded(self, jpeg: bytes) -> Any:
        return jpeg

    def decode(self, encoded: Sequence[Any]) -> list[Frame | None]:
        images = [simplejpeg.decode_jpeg(jpeg, "RGB") for jpeg in encoded]
        return [Frame(each.ctypes.data, *each.shape[:2], each.strides, each) for each in images]

    def pixels(self, frame: Frame) -> ByteArray:
        return frame.held


class FakeFinisher:
    """The same by the product's code on the CPU."""

    def __call__(self, frames: list[Frame | None], cycle: int) -> int:
        to = np.empty((SIDE, SIDE, 3), np.uint8)
        for (top, left, height, width, _), frame in zip(boxes(frames, cycle), frames, strict=True):
            if frame is not None:
                draws = np.zeros(64)
                AUGMENTATION.finish(frame.held[top : top + height, left : left + width], draws, to)
        return sum(frame is not None for frame in frames)


def boxes(frames: list[Frame | None], cycle: int) -> list[tuple[int, int, int, int, int]]:
    """Draw top, left, height and width of each image's crop, and whether it is mirrored, as ``ImageSource``."""
    drawn: list[tuple[int, int, int, int, int]] = []
    for frame, draws in zip(frames, draws_of(0, cycle, 0, len(frames), 1), strict=True):
        region = AUGMENTATION.region(frame.height, frame.width, draws[0]) if frame else (0, 0, 1, 1)
        drawn.append((*region, int(draws[0][40] < AUGMENTATION.flip)))
    return drawn


def pixels(decoder: Decoder, jpegs: Sequence[bytes], most: int = 40) -> dict[str, dict[str, float]]:
    """Compare with the CPU's pixels, by subsampling."""
    groups: dict[str, list[bytes]] = defaultdict(list)
    for jpeg in jpegs:
        groups[str(simplejpeg.decode_jpeg_header(jpeg)[3])].append(jpeg)
    told: dict[str, dict[str, float]] = {}
    for name, group in groups.items():
        counts, failed = np.zeros(256, np.int64), 0
        frames = decoder.decode([decoder.encoded(jpeg) for jpeg in group[:most]])
        for jpeg, frame in zip(group, frames, strict=False):
            if frame is None:
                failed += 1
                continue
            ours = simplejpeg.decode_jpeg(jpeg, "RGB").astype(np.int16)
            counts += np.bincount(np.abs(ours - decoder.pixels(frame)).ravel(), minlength=256)
        share = counts.cumsum() / max(1, counts.sum())
        mean = float(counts @ np.arange(256)) / max(1, int(counts.sum()))
        p999, largest = int(np.searchsorted(share, 0.999)), int(np.flatnonzero(counts).max(initial=0))
        told[name] = {"images": len(frames), "failed": failed, "mean": mean, "p99.9": p999, "max": largest}
    return told


def opened(step: str, data: Path, *, fake: bool) -> tuple[Callable[..., Decoder], dict[str, Finisher]]:
    """Return what makes a decoder of a kind, and the ways to finish batches."""
    if fake:
        return lambda *_: Fake(), {"kernel": FakeFinisher()}
    import cupy

    if step == "nvimagecodec":
        unpacked = ROOT / "build" / "gpu-decoders"
        if refused := unpack(data / "nv", unpacked):
            raise RuntimeError("; ".join(refused))
        sys.path.append(str(unpacked))  # not for the workers, which would decode with it

    cupy.cuda.Device(0).use()
    stream = cupy.cuda.Stream(non_blocking=True)
    kernel = CupyFinisher(cupy, stream)
    if step == "torchvision":  # its tensors are ready before the kernel begins
        return lambda *_: Torchvision(), {"kernel": kernel, "own": TorchFinisher()}
    return lambda backend, fancy: NvImageCodec(stream, backend, fancy=fancy), {"kernel": kernel}
