"""Data-parallel scripts on one feed: all ranks begin one epoch together, and decide together if it is theirs."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.autosharing.running import Scripts, feeds_read
from tests.support.ports import free_port
from torch.distributed import HashStore

from penstock.autosharing import ranks as meetings
from penstock.autosharing.ranks import Meeting
from penstock.autosharing.verdict import Declined
from penstock.fingerprint.comparison import Fingerprint
from penstock.fingerprint.file_versions import DataFingerprint, FileVersion

pytestmark = pytest.mark.whole

N, EPOCHS, WORLD = 15, 2, 2


def ranks(scripts: Scripts, jobs: list[list[str]], **environment: str) -> tuple[list[list[list[list[int]]]], str]:
    """Run jobs of two ranks each; return the epochs of each rank, job by job, and what was said."""
    runs = []
    for job, words in enumerate(jobs):
        port = str(free_port())
        shared = {"WORLD_SIZE": str(WORLD), "LOCAL_WORLD_SIZE": str(WORLD), "MASTER_PORT": port, **environment}
        runs += [
            scripts.start(
                job,
                "ranks.py",
                *words,
                together=len(jobs),
                out=f"{job}-{rank}",
                **{"RANK": str(rank), "MASTER_ADDR": "127.0.0.1", **shared},
            )
            for rank in range(WORLD)
        ]
    for run in runs:
        assert run.wait() == 0, run.output
    said = "".join(run.output for run in runs)
    return [[scripts.seen(f"{job}-{rank}")["epochs"] for rank in range(WORLD)] for job in range(len(jobs))], said


def made_of(rank: int, data: str = "", nbytes: int = 1) -> Fingerprint:
    return Fingerprint("3 a", {}, DataFingerprint({data: FileVersion(nbytes)} if data else {}))


def ids(of_ranks: list[list[list[list[int]]]], epoch: int) -> Counter[int]:
    return Counter(i for rank in of_ranks for batch in rank[epoch] for i in batch)


def test_two_jobs_of_two_ranks_read_one_feed_as_many_batches_as_torch_counts(scripts: Scripts):
    jobs, said = ranks(scripts, [["--batch-size", "4"], ["--batch-size", "3", "--drop-last"]])
    assert len(feeds_read(said)) == 1 and "not shared" not in said
    for epoch in range(EPOCHS):
        padded = ids(jobs[0], epoch)
        assert set(padded) == set(range(N)) and padded.total() == 16  # 8 rows a rank, as DistributedSampler pads
        assert [len(rank[epoch]) for rank in jobs[0]] == [2, 2]
        cut = ids(jobs[1], epoch)
        assert [len(batch) for rank in jobs[1] for batch in rank[epoch]] == [3, 3, 3, 3]
        assert set(cut.values()) == {1}


def test_a_rank_that_looks_at_a_batch_alone_gets_it_and_the_epochs_are_shared(scripts: Scripts):
    jobs, said = ranks(scripts, [["--peek"]])
    assert "not shared" not in said
    assert len(feeds_read(said)) == 1
    for epoch in range(EPOCHS):
        assert set(ids(jobs[0], epoch)) == set(range(N))


@pytest.mark.parametrize(("how", "feeds"), [("--cycles", 1), ("--anew", 2)])
def test_ranks_meet_however_their_script_goes_about_its_loaders(scripts: Scripts, how: str, feeds: int):
    (job,), said = ranks(scripts, [[how]])
    assert "not shared" not in said and len(feeds_read(said)) == feeds
    for epoch in range(EPOCHS):
        assert set(ids(job, epoch)) == set(range(N))


def test_if_one_rank_s_samples_are_not_the_feed_s_all_ranks_use_their_own_loaders(scripts: Scripts):
    (job,), said = ranks(scripts, [["--odd"]])
    for epoch in range(EPOCHS):
        mine, others = ({i for batch in rank[epoch] for i in batch} for rank in job)
        assert max(mine) < N and min(others) >= 100
        assert len(mine) == len(others) == 8 and mine | {i - 100 for i in others} == set(range(N))
    assert said.count("is not shared: of sample ") == said.count("is not shared: rank 1: of sample ") == 1


def test_if_one_rank_s_samples_change_unseen_in_mid_training_all_ranks_leave_the_feed_at_one_epoch(scripts):
    (job,), said = ranks(scripts, [["--later"]])
    own = [any(i >= 100 for batch in epoch for i in batch) for epoch in job[1]]
    assert not any(own[:2]) and own[-1] and own == sorted(own)
    for epoch in range(len(own)):
        mine, others = ({i for batch in rank[epoch] for i in batch} for rank in job)
        assert mine | {i - 100 * own[epoch] for i in others} == set(range(N))
    assert said.count("is not shared: of sample ") == said.count("is not shared: rank 1: of sample ") == 1
    assert "did not come" not in said


def test_ranks_on_two_machines_read_no_feed(monkeypatch: pytest.MonkeyPatch):
    """As where Slurm starts them, which does not say how many there are on each."""
    store, names = HashStore(), iter(("one", "other"))
    monkeypatch.setattr(meetings, "default_store", lambda: store)
    monkeypatch.setattr(meetings, "_machine", lambda: next(names))
    with ThreadPoolExecutor(2) as pool:
        held = [pool.submit(Meeting("feed", rank, 2, made_of(rank)).hold) for rank in range(2)]
        for each in held:
            with pytest.raises(Declined, match="2 machines"):
                each.result()


def test_ranks_that_their_sampler_does_not_name_are_left_alone(scripts: Scripts):
    _, said = ranks(scripts, [["--no-sampler"]])
    assert "is not shared: 2 ranks run and its sampler names none" in said and not feeds_read(said)


def test_ranks_that_cannot_meet_say_after_3_s_for_whom_they_wait_and_then_why(monkeypatch, capsys):
    """Rank 0 has named its feed before a file was written to, rank 1 after that."""
    store = HashStore()
    monkeypatch.setattr(meetings, "default_store", lambda: store)
    monkeypatch.setattr(meetings, "_SAY_AFTER_S", 0.1)
    monkeypatch.setattr(meetings, "PATIENCE_S", 0.5)
    with ThreadPoolExecutor(2) as pool:
        rooms = [Meeting(f"feed-{rank}", rank, 2, made_of(rank, "run.log", 5 + rank)) for rank in range(2)]
        held = [pool.submit(room.hold) for room in rooms]
        for rank, each in enumerate(held):
            why = rf"rank {1 - rank} last asked for feed feed-{1 - rank}: .* run.log \({6 - rank} bytes then"
            with pytest.raises(Declined, match=why):
                each.result()
    said = capsys.readouterr().err
    assert all(f"rank {rank} waits 0.5 s at most for rank {1 - rank}" in said for rank in range(2))


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> list[Meeting]:
    """The meetings of two ranks that have come to their first one."""
    store = HashStore()
    monkeypatch.setattr(meetings, "default_store", lambda: store)
    monkeypatch.setattr(meetings, "PATIENCE_S", 0.1)
    found = [Meeting("feed", rank, 2, Fingerprint("a b")) for rank in range(2)]
    for meeting in found:
        meeting._number = 1
    return found


def test_who_says_it_after_another_rank_has_given_up_goes_alone_as_that_does(met: list[Meeting]):
    for meeting in met:
        with pytest.raises(Declined):
            meeting.agreed("")


def test_what_one_rank_refuses_all_refuse(met: list[Meeting]):
    store = meetings.default_store()
    store.set("penstock/feed/0/refusal/1", "of sample 3, batch[1] differs")
    assert met[0].agreed("") == "rank 1: of sample 3, batch[1] differs"
    assert met[1].agreed("of sample 3, batch[1] differs") == "of sample 3, batch[1] differs"
