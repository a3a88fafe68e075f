from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.forked import ForkServer, eventually


def test_each_of_many_processes_that_end_at_once_is_told_of(tmp_path: Path) -> None:
    ends = tmp_path / "ends.py"
    ends.write_text("import os, sys\nos._exit(int(sys.argv[1]))\n")
    server = ForkServer(tmp_path, [])
    order = {"run": str(ends), "directory": str(tmp_path), "environment": dict(os.environ), "process_group": None}
    files = {"output": os.devnull, "errors": os.devnull, "forks_feeders": False}

    def told(status: int) -> int:
        pid = server.fork(**order, **files, arguments=[str(status)])
        answer = tmp_path / str(pid)
        eventually(answer.exists, f"nobody told how process {pid} ended")
        return int(answer.read_text())

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(told, range(200))) == list(range(200))
    server.close()
