"""Ranks decide together whether what they read is theirs."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from penstock.autosharing import ranks
from penstock.autosharing.ranks import Meeting
from penstock.autosharing.verdict import Declined
from penstock.fingerprint.comparison import Fingerprint


@pytest.fixture
def meetings(monkeypatch: pytest.MonkeyPatch) -> list[Meeting]:
    """The meetings of two ranks that have come to their first one."""
    store = dist.HashStore()
    monkeypatch.setattr(ranks, "default_store", lambda: store)
    monkeypatch.setattr(ranks, "PATIENCE_S", 0.1)
    found = [Meeting("feed", rank, 2, Fingerprint("a b")) for rank in range(2)]
    for meeting in found:
        meeting._number = 1
    return found


def test_who_says_it_after_another_rank_has_given_up_goes_alone_as_that_does(meetings: list[Meeting]):
    for meeting in meetings:
        with pytest.raises(Declined):
            meeting.agreed("")


def test_what_one_rank_refuses_all_refuse(meetings: list[Meeting]):
    store = ranks.default_store()
    store.set("penstock/feed/0/refusal/1", "of sample 3, batch[1] differs")
    assert meetings[0].agreed("") == "rank 1: of sample 3, batch[1] differs"
    assert meetings[1].agreed("of sample 3, batch[1] differs") == "of sample 3, batch[1] differs"
