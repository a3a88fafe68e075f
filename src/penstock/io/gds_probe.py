"""What ``io.gds`` tries in a child process: ``python -m penstock.io.gds_probe [FILE GPU]``.

Without a driver cuFile was seen to spin for ever, and with statistics to crash, at exit or when they are read,
so only this process turns them on. It prints cuFile's version, or how it reads the file into the GPU's memory.
"""

# cuda-bindings says nothing of its types.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportAttributeAccessIssue=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

_NBYTES = 4096


def main() -> None:
    """Run the child process."""
    try:
        from cuda.bindings import cufile

        if len(sys.argv) == 1:
            cufile.driver_open()
            print(version_of(cufile))
        else:
            print(_way(cufile, sys.argv[1], int(sys.argv[2])))
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {str(error).splitlines()[0]}")


def version_of(cufile: Any) -> str:
    number = cufile.get_version()
    return f"cuFile {number // 1000}.{number % 1000 // 10}"


def registered(cufile: Any, fd: int) -> int:
    """Register an open file with cuFile; return its handle."""
    described = cufile.Descr()
    described.type = cufile.FileHandleType.OPAQUE_FD
    described.handle.fd = fd
    described.fs_ops = 0  # the pointer to a user's own file system, which some versions leave uninitialised
    return cufile.handle_register(described.ptr)


def way(cufile: Any, handle: int, address: int) -> str:
    """Read from a file once; return how, by cuFile's own counters."""
    before = _counted(cufile)
    cufile.stats_start()
    cufile.read(handle, address, _NBYTES, 0, 0)
    cufile.stats_stop()
    more = {name: count - before[name] for name, count in _counted(cufile).items()}
    return next((name for name, count in more.items() if count), "way unknown (cuFile counted nothing)")


def _way(cufile: Any, path: str, gpu: int) -> str:
    address = _gpu_memory(gpu)
    cufile.set_stats_level(3)  # of each GPU; before the driver opens
    cufile.driver_open()
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    return way(cufile, registered(cufile, fd), address)


def _gpu_memory(gpu: int) -> int:
    from cuda.bindings import driver

    def checked(result: tuple[Any, ...]) -> Any:
        if int(result[0]):
            raise RuntimeError(result[0].name)
        return result[-1]

    checked(driver.cuInit(0))
    checked(driver.cuCtxSetCurrent(checked(driver.cuDevicePrimaryCtxRetain(checked(driver.cuDeviceGet(gpu))))))
    return int(checked(driver.cuMemAlloc(_NBYTES)))


def _counted(cufile: Any) -> dict[str, int]:
    told = cufile.StatsLevel3()
    cufile.get_stats_l3(told.ptr)
    stats = told.per_gpu_stats
    each = np.ravel(stats) if isinstance(stats, np.ndarray) else stats  # cuda-bindings 13.0 has a table of one row
    used = [each[i] for i in range(int(told.num_gpus))]
    return {
        "peer to peer (P2PDMA)": sum(int(gpu.n_p2p_reads) for gpu in used),
        "peer to peer (nvidia-fs)": sum(int(gpu.n_nvfs_reads) for gpu in used),
        "compatibility mode, through host memory": sum(int(gpu.n_posix_reads) for gpu in used),
    }


if __name__ == "__main__":
    main()
