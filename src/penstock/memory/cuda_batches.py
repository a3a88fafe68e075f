"""Many copies from host memory to a GPU in one call of the driver (CUDA 12.8, ``cuMemcpyBatchAsync``)."""

# cuda-bindings has no annotations.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportAttributeAccessIssue=false

from __future__ import annotations

from typing import Any

from penstock.basics.terminal import say_once
from penstock.contracts import Ids
from penstock.errors import DeviceUnavailable
from penstock.memory.cuda_shared import driver_calls


class BatchCopies:
    """Copies of several runs of bytes each, if the driver and cuda-bindings know such.

    cuda-bindings 12 returns the number of a copy that failed besides, which 13 does not.
    """

    def __init__(self) -> None:
        self._works = True

    def begin(self, stream: int, to: int, origin: int, starts: Ids, sizes: Ids) -> bool:
        """Begin to copy runs of pinned memory, one behind the other; return whether that is possible.

        Args:
            stream: CUDA's number of the stream; not the default one, which the driver refuses.
            to: Address on the device of the first run.
            origin: Address on the host from which runs are counted.
            starts: Where they begin, in bytes.
            sizes: How long they are, in bytes.
        """
        if not self._works or not stream:
            return False
        try:
            driver = driver_calls()
            call: Any = driver.cuMemcpyBatchAsync
            attributes = driver.CUmemcpyAttributes()
            attributes.srcAccessOrder = driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
            places = to + sizes.cumsum() - sizes
            there, here = (
                [driver.CUdeviceptr(address) for address in each.tolist()] for each in (places, origin + starts)
            )
            status, *_ = call(there, here, sizes.tolist(), len(sizes), [attributes], [0], 1, stream)
        except (AttributeError, RuntimeError, DeviceUnavailable):  # too old, or not installed
            self._works = False
            return False
        if int(status):
            say_once(f"CUDA refuses to copy chosen rows in one call ({status.name}): they are copied run by run")
        return not int(status)
