"""Nodes that would make other samples, or none, make no blocks; they are named, with the reason."""

from __future__ import annotations

import pytest
from tests.faults.sources import make
from tests.forked import eventually

from penstock.contracts import Cursor
from penstock.sources.remote import maker
from penstock.sources.remote.remote_source import RemoteSource


def test_nodes_without_the_data_with_other_data_or_that_fail_at_a_sample_cost_none(cluster, training, tmp_path):
    other = tmp_path / "other"
    other.write_text("1")
    without, others = cluster.add(NODE_DATA=str(tmp_path / "missing")), cluster.add(NODE_DATA=str(other))
    cluster.add(NODE_BAD="399")
    run = training()
    run.is_made_by(3, 3)
    run.tells(without.id[:6], "it cannot load the data: ", "FileNotFoundError", str(tmp_path / "missing"))
    run.tells(others.id[:6], "it makes batch['payload'] of sample ", " otherwise than the feeder")
    run.goes_on(20)
    run.end()


def test_a_data_set_that_raises_everywhere_is_the_same_error_as_without_ray(cluster, train, shard):
    order = {"source": {"kind": "records", "folder": shard, "bad": 333}, "options": {"linger": 0.5}}
    errors = []
    for workers in ("ray", None):
        order["options"]["workers"] = workers
        trainers = [train(name=f"with {workers}", batch_size=size, **order) for size in (7, 32, 77)]
        errors += [trainer.fails("SourceError", "sample 333 cannot be decoded") for trainer in trainers]
        assert all(trainer.wait() == 0 for trainer in trainers)
    assert len({error["message"].replace("with ray", "with None") for error in errors}) == 1


@pytest.mark.parametrize("what", ["Penstock", "Python"])
def test_nodes_with_another_version_make_no_blocks(cluster, shard, monkeypatch, what):
    here = maker.versions()
    with monkeypatch.context() as patch:
        patch.setattr(maker, "versions", lambda: tuple(f"{each}.1" if what in each else each for each in here))
        records = make("records", folder=shard)
        source = RemoteSource(records, records, None, segments=None, seed=0)
    version = next(each for each in here if what in each)
    try:

        def all_nodes_are_out() -> bool:
            ids = [int(i) for block in source.open(Cursor(0, 0)) for i in block.tree["id"]]
            assert sorted(ids) == list(range(400))
            return source.description.count(f"it runs {version} where the feeder has {version}.1") == 2

        eventually(all_nodes_are_out)
    finally:
        source.close()
