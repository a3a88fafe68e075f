"""`penstock run --on ray`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tests.forked import ForkServer
from tests.ray.clusters import RayCluster
from tests.runs.elsewhere import Elsewhere
from tests.runs.running import UNWATCHED, Launch, launches


@pytest.fixture
def launch(servers: dict[str, ForkServer], tmp_path: Path) -> Iterator[Callable[..., Launch]]:
    with launches(Launch, servers, tmp_path) as start:
        yield start


@pytest.mark.usefixtures("cluster")
class TestRay(Elsewhere):
    on = "ray"

    @pytest.fixture
    def there_with_python_path(
        self, there: Callable[..., Launch], new_cluster: Callable[..., RayCluster]
    ) -> Callable[[Path], Callable[..., Launch]]:
        def start(folder: Path) -> Callable[..., Launch]:
            new_cluster([{"PYTHONPATH": str(folder)}])
            return there

        return start

    def test_what_a_node_sent_before_it_died_stays(self, there, cluster: RayCluster):
        one = there(*UNWATCHED, "train.py", "wait")
        one.wait_until_said("run 0 of ['wait']\n")
        for raylet in [psutil.Process(node.raylet) for node in cluster.nodes]:
            for process in (raylet, *raylet.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):  # others end with their raylet
                    process.kill()
        assert one.wait() == 1
        record = one.record()
        assert record.status == "lost" and record.reason.startswith("its node reports no more: ")
        assert one.kept() == "run 0 of ['wait']\n"


def test_without_a_cluster_nothing_starts(launch):
    one = launch("--on", "ray", "true")
    assert one.wait() == 2
    assert "no Ray cluster answers at 127.0.0.1:1" in one.errors and one.errors.count("\n") == 1
    assert one.records() == []
