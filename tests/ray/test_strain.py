"""Ray under strain: messages that are lost, and little memory."""

from __future__ import annotations

import json

import pytest

LOSES = {
    "RAY_testing_rpc_failure": json.dumps(
        {"*": {"num_failures": -1, "req_failure_prob": 10, "resp_failure_prob": 10}}
    )
}
"""Ray loses a tenth of all requests, and of all answers."""


@pytest.mark.soak
def test_messages_that_are_lost_within_ray_cost_no_sample(new_cluster, training, monkeypatch):
    new_cluster([{}], **LOSES)
    for name, value in LOSES.items():
        monkeypatch.setenv(name, value)
    run = training()
    run.goes_on(10)
    run.end()


def test_an_object_store_that_holds_few_blocks_is_enough(new_cluster, training):
    new_cluster([{}], store_bytes=80 << 20)
    run = training(width=300_000, window="128MiB", batch_size=40)
    run.is_made_by(1, 1)
    run.goes_on(5)
    run.end()
