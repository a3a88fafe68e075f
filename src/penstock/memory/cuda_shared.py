"""GPU memory that several processes map, as a file descriptor: CUDA's virtual memory management.

CUDA Driver API, "Virtual Memory Management": memory is created outside any
allocator, exported as a POSIX file descriptor, and mapped by each process that
gets the descriptor. It is freed with the last process that maps it.
"""

# cuda-bindings has no annotations, and torch's leave much of torch.cuda unknown.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false

from __future__ import annotations

import os
from collections import deque
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from penstock.errors import DeviceUnavailable
from penstock.linux.when_gone import in_python, when_gone

_dead: deque[tuple[int, ExitStack]] = deque()
"""Mappings that nothing refers to any more: the GPU's index, and what unmaps them."""


class SharedMemory:
    """One range of GPU memory, mapped into this process until nothing refers to it.

    It is made here unless ``fd`` describes that of another process; ``device`` is the GPU's index in this process.
    """

    def __init__(self, torch: Any, device: int, nbytes: int, fd: int | None = None) -> None:
        driver = driver_calls()
        cuda = _Calls(torch, device, nbytes)
        self.nbytes = nbytes  # size, a multiple of ``granularity``
        kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        if fd is None:
            handle = _created(driver, cuda)
        else:
            handle = cuda.checked(driver.cuMemImportFromShareableHandle(fd, kind))
        mapping = ExitStack()
        try:
            address = cuda.checked(driver.cuMemAddressReserve(nbytes, 0, 0, 0))
            mapping.callback(driver.cuMemAddressFree, address, nbytes)
            cuda.checked(driver.cuMemMap(address, nbytes, 0, handle, 0))
            mapping.callback(driver.cuMemUnmap, address, nbytes)
            flags = driver.CUmemAccess_flags
            access = driver.CUmemAccessDesc()
            access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            access.location.id = device
            # No trainer can write to what others read.
            access.flags = (
                flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if fd is None else flags.CU_MEM_ACCESS_FLAGS_PROT_READ
            )
            cuda.checked(driver.cuMemSetAccess(address, nbytes, [access], 1))
            self.fd = cuda.checked(driver.cuMemExportToShareableHandle(handle, kind, 0)) if fd is None else fd
        except BaseException:  # for example, this GPU has no access to that one's memory
            mapping.close()
            raise
        finally:
            cuda.checked(driver.cuMemRelease(handle))  # the mapping holds it
        self.address = int(address)  # where it is mapped
        # At the interpreter's exit kernels may still read it, and the driver takes it back anyway.
        when_gone(self, in_python(partial(_died, torch, device, mapping, os.getpid())))

    def span(self, offset: int, nbytes: int) -> Span:
        """Return a range that torch can make a tensor of; it holds the mapping."""
        return Span(self, offset, nbytes)


class Span:
    """A range of GPU memory under the CUDA Array Interface, version 3."""

    __slots__ = ("__cuda_array_interface__", "__weakref__", "_memory")

    def __init__(self, memory: SharedMemory, offset: int, nbytes: int) -> None:
        self._memory = memory
        self.__cuda_array_interface__ = {
            "data": (memory.address + offset, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


def unmap_dead(torch: Any) -> None:
    """Unmap what nothing refers to any more, once no kernel can read it.

    Unmapping does not wait for kernels: one that still reads there fails with
    an illegal address. Does nothing while this thread captures a CUDA graph,
    which waiting would break.
    """
    while _dead and not torch.cuda.is_current_stream_capturing():
        try:
            device, mapping = _dead.popleft()
        except IndexError:  # another thread unmaps too
            return
        torch.cuda.synchronize(device)
        mapping.close()


def granularity(torch: Any, device: int) -> int:
    """Return the unit of shared memory's size on this GPU, in bytes."""
    driver = driver_calls()
    least = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    return int(
        _Calls(torch, device, 0).checked(driver.cuMemGetAllocationGranularity(_properties(driver, device), least))
    )


class _Calls:
    """Checks driver calls; an error names the bytes asked for, and the GPU's free memory."""

    def __init__(self, torch: Any, device: int, nbytes: int) -> None:
        self.torch, self.device, self.nbytes = torch, device, nbytes

    def checked(self, result: tuple[Any, ...]) -> Any:
        """Return the value of a driver call, without its status."""
        status, *values = result
        if int(status):
            asked = f" for {self.nbytes:,} bytes" if self.nbytes else ""
            free, total = self.torch.cuda.mem_get_info(self.device)
            raise DeviceUnavailable(
                f"CUDA refused{asked}: {status.name}; {free:,} of the GPU's {total:,} bytes are free"
            )
        return values[0] if values else None


def _created(driver: Any, cuda: _Calls) -> Any:
    """Create memory; if the GPU is full, torch's unused cache is freed first."""
    properties = _properties(driver, cuda.device)
    created = driver.cuMemCreate(cuda.nbytes, properties, 0)
    if created[0].name == "CUDA_ERROR_OUT_OF_MEMORY":
        cuda.torch.cuda.empty_cache()
        created = driver.cuMemCreate(cuda.nbytes, properties, 0)
    return cuda.checked(created)


def _died(torch: Any, device: int, mapping: ExitStack, pid: int) -> None:
    if os.getpid() == pid:  # a forked child must not call CUDA
        _dead.append((device, mapping))  # a second time, there is nothing to unmap
        unmap_dead(torch)


def _properties(driver: Any, device: int) -> Any:
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = device
    properties.requestedHandleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    return properties


def capture_mode() -> tuple[Any, Any] | None:
    """Return what exchanges how this thread meets others' captures of graphs, and the relaxed way, if known."""
    with suppress(DeviceUnavailable):
        driver = driver_calls()
        return driver.cuThreadExchangeStreamCaptureMode, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    return None


def driver_calls() -> Any:
    """Return the driver's functions.

    Raises:
        DeviceUnavailable: cuda-bindings is not installed, or CUDA does not start.
    """
    try:
        from cuda.bindings import driver
    except ImportError:
        raise DeviceUnavailable(
            'a ring on a GPU needs cuda-bindings: pip install "penstock[gpu]"; memory="host" needs nothing'
        ) from None
    (status,) = driver.cuInit(0)
    if int(status):
        raise DeviceUnavailable(f"CUDA does not start: {status.name}")
    return driver
