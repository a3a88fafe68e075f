"""CUDA's driver and its compiler, by cuda-bindings."""

# cuda-bindings has no annotations.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingImports=false
# pyright: reportAttributeAccessIssue=false, reportMissingTypeStubs=false, reportUnknownArgumentType=false

from __future__ import annotations

from pathlib import Path
from typing import Any


class CudaRefused(Exception):
    """What CUDA, or its compiler, said."""


def value_of(result: tuple[Any, ...]) -> Any:
    """Return the value of a call, without its status; raise CudaRefused for a status that is none of success."""
    status, *values = result
    if int(status):
        raise CudaRefused(f"CUDA refused: {status.name}")
    return values[0] if values else None


def compile_for(header: Path, architecture: str, *options: str) -> bytes:
    """Compile a file by NVRTC to machine code of a GPU's architecture, such as "sm_90".

    Raises ImportError, RuntimeError where a library lacks, or CudaRefused.
    """
    from cuda.bindings import nvrtc

    program = value_of(nvrtc.nvrtcCreateProgram(header.read_bytes(), header.name.encode(), 0, [], []))
    given = [each.encode() for each in (f"--gpu-architecture={architecture}", "--std=c++17", *options)]
    status, *_ = nvrtc.nvrtcCompileProgram(program, len(given), given)
    if int(status):
        log = b" " * value_of(nvrtc.nvrtcGetProgramLogSize(program))
        value_of(nvrtc.nvrtcGetProgramLog(program, log))
        raise CudaRefused(f"NVRTC cannot compile {header.name} for {architecture}: {log.decode()}")
    cubin = b" " * value_of(nvrtc.nvrtcGetCUBINSize(program))
    value_of(nvrtc.nvrtcGetCUBIN(program, cubin))
    value_of(nvrtc.nvrtcDestroyProgram(program))
    return cubin
