"""GPUs that count what is copied to them from the host, where it is copied."""

from __future__ import annotations

from penstock.contracts import ByteArray, DeviceBytes
from penstock.memory.cuda import CudaGpu
from penstock.testing.fake_gpu import FakeGpu


class CountingGpu(CudaGpu):
    """A GPU that counts.

    Attributes:
        copied_bytes: From the host, by this process's feed or trainer, so far.
    """

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.copied_bytes = 0

    def copy(self, to: DeviceBytes, origin: ByteArray, *, pinned: bool) -> None:
        super().copy(to, origin, pinned=pinned)
        self.copied_bytes += origin.nbytes


def counting_gpu(device: str) -> CountingGpu | FakeGpu:
    """The GPU of this name; ``"cpu"`` is one that is none, which counts too and tries everything out."""
    return FakeGpu() if device == "cpu" else CountingGpu(device)
