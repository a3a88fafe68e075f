"""What a feeder and its workers use."""

from __future__ import annotations

import os
import threading
import time

from penstock.feed.statistics import FeederUsage
from penstock.linux.process import children, children_cpu_s, io_bytes_of, private_bytes

_LOOK_S = 1.0


class UsageMeter:
    """Looks at this process and its workers, once a second at most; any thread may read it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looked_s = time.monotonic()
        self._newest = FeederUsage(cpu_s=time.process_time())

    def read(self) -> FeederUsage:
        """Return what they use, as it was a second ago or later."""
        with self._lock:
            now_s = time.monotonic()
            if now_s - self._looked_s >= _LOOK_S:
                self._newest, self._looked_s = self._look(now_s - self._looked_s), now_s
            return self._newest

    def _look(self, since_s: float) -> FeederUsage:
        workers = children(os.getpid())
        pids = [os.getpid(), *workers]
        used_s = time.process_time() + children_cpu_s(workers)
        read_bytes, written_bytes = map(sum, zip(*map(io_bytes_of, pids), strict=True))
        before = self._newest  # what a worker used that ends meanwhile may be missing once
        return FeederUsage(
            cpu_s=max(used_s, before.cpu_s),
            cores=max(0.0, used_s - before.cpu_s) / since_s,
            private_bytes=sum(map(private_bytes, pids)),
            read_bytes=max(read_bytes, before.read_bytes),
            write_bytes=max(written_bytes, before.write_bytes),
            processes=len(pids),
        )
