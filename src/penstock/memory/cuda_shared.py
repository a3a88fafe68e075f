"""GPU memory that several processes map, as a file descriptor: CUDA's virtual memory management.

CUDA Driver API, "Virtual Memory Management": memory is created outside any
allocator, exported as a POSIX file descriptor, and mapped by whoever is handed
that descriptor. It goes with the last process that maps it.
"""

# cuda-bindings has no annotations.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false

from __future__ import annotations

import weakref
from contextlib import ExitStack
from typing import Any

from penstock.errors import DeviceUnavailable


class SharedMemory:
    """One range of GPU memory, mapped into this process until nothing refers to it.

    Args:
        device: The number of the GPU in this process.
        nbytes: A multiple of ``granularity``.
        fd: A descriptor of memory that another process made; None to make it here.

    Attributes:
        address: Where it is mapped.

    Raises:
        DeviceUnavailable: there is not so much memory, or it cannot be shared with this GPU.
    """

    def __init__(self, device: int, nbytes: int, fd: int | None = None) -> None:
        driver = _driver()
        self.nbytes = nbytes
        kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        if fd is None:
            handle = _checked(driver.cuMemCreate(nbytes, _properties(driver, device), 0), nbytes)
        else:
            handle = _checked(driver.cuMemImportFromShareableHandle(fd, kind), nbytes)
        mapping = ExitStack()
        try:
            address = _checked(driver.cuMemAddressReserve(nbytes, 0, 0, 0), nbytes)
            mapping.callback(driver.cuMemAddressFree, address, nbytes)
            _checked(driver.cuMemMap(address, nbytes, 0, handle, 0), nbytes)
            mapping.callback(driver.cuMemUnmap, address, nbytes)
            flags = driver.CUmemAccess_flags
            access = driver.CUmemAccessDesc()
            access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            access.location.id = device
            # A trainer cannot write to what the others read.
            access.flags = (
                flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if fd is None else flags.CU_MEM_ACCESS_FLAGS_PROT_READ
            )
            _checked(driver.cuMemSetAccess(address, nbytes, [access], 1), nbytes)
            self.fd = _checked(driver.cuMemExportToShareableHandle(handle, kind, 0), nbytes) if fd is None else fd
        except BaseException:  # such as: this GPU has no access to that one's memory
            mapping.close()
            raise
        finally:
            _checked(driver.cuMemRelease(handle), nbytes)  # the mapping keeps it
        self.address = int(address)
        weakref.finalize(self, mapping.close)

    def span(self, offset: int, nbytes: int) -> Span:
        """A range of it, in a form that torch makes a tensor of, and that keeps the mapping."""
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


def granularity(device: int) -> int:
    """What the size of shared memory on this GPU must be a multiple of, in bytes."""
    driver = _driver()
    least = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    return int(_checked(driver.cuMemGetAllocationGranularity(_properties(driver, device), least), 0))


def _properties(driver: Any, device: int) -> Any:
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = device
    properties.requestedHandleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    return properties


def _driver() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError:
        raise DeviceUnavailable(
            'a ring on a GPU needs cuda-bindings: pip install "penstock[gpu]"; memory="host" needs nothing'
        ) from None
    _checked(driver.cuInit(0), 0)
    return driver


def _checked(result: tuple[Any, ...], nbytes: int) -> Any:
    """What a driver call returned beside its status."""
    status, *values = result
    if int(status):
        asked = f" for {nbytes:,} bytes" if nbytes else ""
        raise DeviceUnavailable(f"CUDA refused{asked}: {status.name}{_free()}")
    return values[0] if values else None


def _free() -> str:
    """How much memory the current GPU has left, in words."""
    import torch

    if not torch.cuda.is_available():
        return ""
    free, total = torch.cuda.mem_get_info()
    return f"; {free:,} of the GPU's {total:,} bytes are free"
