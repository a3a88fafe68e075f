"""GPUs that count the bytes copied to them from the host."""

from __future__ import annotations

from tests.fakes.gpu import FakeGpu

from penstock.contracts import ByteArray, DeviceBytes
from penstock.memory.cuda import CudaGpu


class CountingGpu(CudaGpu):
    """A GPU that counts the bytes copied to it."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.copied_bytes = 0  # bytes that this process has copied from the host so far

    def copy(self, to: DeviceBytes, origin: ByteArray, *, pinned: bool) -> None:
        super().copy(to, origin, pinned=pinned)
        self.copied_bytes += origin.nbytes


def counting_gpu(device: str) -> CountingGpu | FakeGpu:
    """Return the GPU of this name; ``"cpu"`` is a fake GPU, which counts too."""
    return FakeGpu() if device == "cpu" else CountingGpu(device)
