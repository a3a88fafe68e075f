"""Readers on a real GPU: into its memory by way of the host's, and by GPUDirect Storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from penstock.contracts import ByteArray, Reader
from penstock.errors import ReaderUnavailable
from penstock.io.open import open_reader
from penstock.memory.cuda import CudaGpu
from penstock.testing.reader import MEMORY_BYTES, UNTOUCHED, ReaderContract, new_memory

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


class OnGpu(ReaderContract):
    mech = ""

    def make(self, memory: Any, depth: int) -> Reader:
        try:
            return open_reader(self.mech, memory, depth=depth, gpu=CudaGpu("cuda"), staging_bytes=1 << 17)
        except ReaderUnavailable as unavailable:
            pytest.skip(str(unavailable))

    def new_memory(self) -> Any:
        return torch.full((MEMORY_BYTES,), UNTOUCHED, dtype=torch.uint8, device="cuda")

    def fetched(self, memory: Any) -> ByteArray:
        return memory.cpu().numpy()


class TestPosixOnGpu(OnGpu):
    mech = "posix"


class TestUringOnGpu(OnGpu):
    mech = "uring"


class TestGds(OnGpu):
    mech = "gds"

    @pytest.fixture(autouse=True)
    def a_file_that_cufile_takes(self, tmp_path: Path) -> None:
        (tmp_path / "first").write_bytes(bytes(4096))
        with self.reading(self.new_memory()) as reader:
            try:
                reader.open(str(tmp_path / "first"))
            except ReaderUnavailable as refused:
                pytest.skip(str(refused))

    def test_the_way_is_named(self) -> None:
        with self.reading(self.new_memory()) as reader:
            reader.open(self.put("file", bytes(8192)))
            print(reader.path_taken)
            assert "peer to peer" in reader.path_taken or "compatibility mode" in reader.path_taken


def test_the_hosts_memory_is_pinned() -> None:
    reader = open_reader("posix", new_memory(), gpu=CudaGpu("cuda"))
    assert "pinned for cuda:0" in reader.path_taken
    reader.close()
