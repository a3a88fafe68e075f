"""Worker processes of this machine pass the contract of workers."""

from __future__ import annotations

import pytest

from penstock.sources.workers.pool import WorkerPool
from penstock.testing import workers


@pytest.mark.usefixtures("new_pythons")
class TestWorkerPool(workers.WorkersContract):
    def make(self, count: int) -> WorkerPool[tuple[str, str], str]:
        return WorkerPool(count, workers.__name__)
