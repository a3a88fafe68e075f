"""The process trees of runs: what they have used is added up once, whoever has ended meanwhile."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace
from tests.forked import eventually
from tests.runs.listeners.kept import DOUBLE_FORKS, FEEDS, NEW_WORKERS, SHORT_CHILDREN, Kept

from penstock.runs.listeners.contract import Tree, WatchedRun
from penstock.runs.listeners.processes import NeverFalling, Processes


@pytest.fixture
def processes() -> Iterator[Processes]:
    made = Processes()
    yield made
    made.close()


@pytest.fixture
def kept() -> Iterator[type[Kept]]:
    runs: list[Kept] = []

    class Closed(Kept):
        def __init__(self, *args: object, **named: object) -> None:
            super().__init__(*args, **named)  # type: ignore[arg-type]
            runs.append(self)

    yield Closed
    for run in runs:
        run.close()


def until(found, what):
    """Look until it is so."""
    return eventually(lambda: what(seen := found()) and seen)


def tree(processes: Processes, *runs: WatchedRun) -> Tree:
    return processes.look(time.time(), runs).trees[runs[0].id]


@pytest.mark.parametrize(
    "code",
    [
        SHORT_CHILDREN.format(count=60, pause_s=0.006),
        NEW_WORKERS.format(epochs=3, seconds=0.06),
        DOUBLE_FORKS.format(count=20, seconds=0.02),
        "burn(0.3); signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    ],
    ids=["short children", "new workers", "double forks", "alone"],
)
def test_the_cpu_time_of_a_run_is_that_of_getrusage_and_never_falls(kept, processes, code):
    run = kept(code)
    seen = [0.0]
    while not select.select([run.process.stdout], [], [], 0.05)[0]:
        seen.append(tree(processes, run.watched).cpu_s)
    used_s = run.used_s()
    seen.append(tree(processes, run.watched).cpu_s)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(used_s, abs=0.021)  # two figures, each cut off to a hundredth
    assert seen[-1] < 0.9 or seen[len(seen) // 2] > 0


@pytest.mark.parametrize("look_s", [0.02, 0.6])
@pytest.mark.parametrize(
    "ends",
    ["os.wait(); time.sleep(0.5)", "os.wait()", "os.kill(os.getpid(), 9)"],
    ids=["lingers", "ends with its workers", "is killed before them"],
)
def test_a_feeder_and_its_workers_are_not_the_runs_while_they_live_and_after(kept, processes, ends, look_s):
    each_s = 0.5 if look_s < 0.1 else 1.0
    run = kept(FEEDS.format(seconds=each_s, ends=ends))
    most = 0
    while not select.select([run.process.stdout], [], [], look_s)[0]:
        seen = tree(processes, run.watched)
        most = max(most, len(seen.pids))
    used_s = run.used_s()
    assert used_s > 2 * each_s + 0.2, "the kernel counts them to the keeper"
    # What they used since the last look is taken for the run's: of that, nobody knows whose it was.
    of_run_s = tree(processes, run.watched).cpu_s
    unknown_s = 2 * look_s if look_s > 0.1 else 0.0
    assert -0.15 <= of_run_s - (used_s - 2 * each_s) <= 0.15 + unknown_s
    assert most <= 3, "but for the moment until it has a name"


@pytest.mark.parametrize("is_read_again", [False, True])
def test_a_worker_that_ends_after_its_feeder_was_read_is_not_the_runs_either(
    kept, processes, tmp_path, is_read_again
):
    """Its feeder may have waited for it by then, and end before the next look."""
    ends = tmp_path / "ends"
    waits = f"[time.sleep(0.01) for _ in iter(lambda: os.path.exists({str(ends)!r}), True)]"
    run = kept(FEEDS.format(seconds=0.3, ends=f"{waits}; os.wait(); signal.pause()"))

    def of_feed():
        tree(processes, run.watched)
        found = [each for each in processes._trees["a"].members.values() if each.feeds]
        return len(found) == 2 and min(each.used[0] for each in found) >= 29 and found

    feeder, worker = eventually(of_feed)
    read = worker.stat

    def read_once_it_has_ended():
        ends.touch()
        eventually(lambda: not Path(f"/proc/{worker.pid}").exists())
        return read()

    worker.stat = read_once_it_has_ended
    tree(processes, run.watched)
    if is_read_again:
        tree(processes, run.watched)
    os.kill(feeder.pid, signal.SIGKILL)
    used_s = run.used_s()
    assert used_s > 0.7, "the kernel counts them to the keeper"
    assert tree(processes, run.watched).cpu_s < used_s - 0.45


def test_two_runs_side_by_side_have_their_own_processes_only(kept, processes):
    sleeping = "children = [subprocess.Popen(['sleep', '60']) for _ in range(3)]\ntime.sleep(60)"
    first, second = kept(sleeping, "a"), kept("time.sleep(60)", "b")

    def look():
        return processes.look(time.time(), [first.watched, second.watched]).trees

    trees = until(look, lambda trees: len(trees["a"].pids) == 4 and trees["b"].rss_bytes > 1 << 20)
    assert trees["b"].pids == (second.watched.pid,)
    assert trees["a"].pids[0] == first.watched.pid
    assert set(trees["a"].pids) == {
        first.watched.pid,
        *(child.pid for child in psutil.Process(first.watched.pid).children()),
    }
    assert trees["a"].threads == 4
    assert trees["a"].rss_bytes > trees["b"].rss_bytes


def test_an_orphan_stays_in_its_run(kept, processes):
    code = "if os.fork():\n time.sleep(0.3)\nelse:\n if os.fork(): os._exit(0)\n time.sleep(60)"
    run = kept(code)
    left = until(lambda: tree(processes, run.watched).pids, lambda pids: pids and run.watched.pid not in pids)
    assert psutil.Process(left[0]).ppid() == run.process.pid


def test_bytes_of_children_that_have_ended_count(kept, processes, tmp_path):
    code = (
        "for i in range(5):\n"
        " if os.fork() == 0:\n"
        f"  fd = os.open(f'{tmp_path}/{{i}}', os.O_WRONLY | os.O_CREAT)\n"
        "  os.write(fd, bytes(1 << 20)); os.fsync(fd); os._exit(0)\n"
        " os.wait()\n"
    )
    run = kept(code)
    run.used_s()
    assert tree(processes, run.watched).write_bytes >= 5 << 20


def test_a_run_that_began_before_its_first_look_is_counted_from_its_beginning(kept, processes):
    run = kept("burn(0.2)")
    used_s = run.used_s()
    assert tree(processes, run.watched).cpu_s == pytest.approx(used_s, abs=0.021)


def test_the_time_of_a_child_that_nobody_waits_for_is_kept(kept, processes):
    code = (
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "for _ in range(2):\n"
        " if os.fork() == 0:\n  burn(0.3); sys.stdin.readline(); os._exit(0)\n"
        "time.sleep(60)"
    )
    run = kept(code)
    before_s = until(lambda: tree(processes, run.watched), lambda tree: tree.cpu_s >= 0.5).cpu_s
    for child in psutil.Process(run.watched.pid).children():
        os.kill(child.pid, signal.SIGKILL)
    until(lambda: tree(processes, run.watched).pids, lambda pids: len(pids) == 1)
    assert tree(processes, run.watched).cpu_s >= before_s


def test_the_time_for_which_a_run_finds_no_free_cpu_is_counted_and_kept(kept, processes):
    code = (
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "if os.fork() == 0:\n burn(0.5); os._exit(0)\n"
        "burn(0.5); os.wait(); time.sleep(60)"
    )
    run, alone = kept(code), kept("time.sleep(60)", "b")
    both = [run.watched, alone.watched]
    ends = until(lambda: processes.look(time.time(), both).trees, lambda trees: trees["a"].cpu_s >= 0.9)
    assert ends["a"].delayed_s >= 0.25  # one of the two waits at each moment, until the other has ended
    assert ends["b"].delayed_s <= ends["a"].delayed_s / 2
    assert processes.look(time.time(), both).trees["a"].delayed_s >= ends["a"].delayed_s


def test_a_run_whose_feed_finds_no_free_cpu_finds_none_itself(kept, processes):
    code = (
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "for _ in range(2):\n if os.fork() == 0:\n"
        "  open('/proc/self/comm', 'w').write('penstock-feed'); burn(0.5); os._exit(0)\n"
        "time.sleep(60)"
    )
    run = kept(code)
    end = until(lambda: tree(processes, run.watched), lambda tree: tree.delayed_s >= 0.25)
    assert end.cpu_s <= 0.2


def test_a_run_whose_keeper_has_ended_is_left_out(kept, processes):
    run, other = kept("time.sleep(60)"), kept("time.sleep(60)", "b")
    assert len(processes.look(1.0, [run.watched, other.watched]).trees) == 2
    os.kill(run.watched.pid, signal.SIGKILL)
    run.used_s()
    run.close()
    tick = processes.look(2.0, [run.watched, other.watched])
    assert list(tick.trees) == ["b"]
    assert tick.runs == (other.watched,)


def test_another_process_with_the_keepers_number_is_not_the_keeper(kept, processes):
    run = kept("time.sleep(60)")
    pid, started = run.watched.keeper
    assert not processes.look(1.0, [replace(run.watched, keeper=(pid, started - 1))]).trees


def test_nothing_is_held_open_of_runs_that_have_ended(kept, processes):
    before = len(os.listdir("/proc/self/fd"))
    run = kept("children = [subprocess.Popen(['sleep', '60']) for _ in range(3)]\ntime.sleep(60)")
    until(lambda: tree(processes, run.watched).pids, lambda pids: len(pids) == 4)
    assert not processes.look(2.0, []).trees
    run.close()
    assert len(os.listdir("/proc/self/fd")) <= before + 2  # the pipes of the test's own


def test_a_sum_that_is_short_once_waits_and_one_that_is_short_twice_goes_on():
    sum_ = NeverFalling()
    assert [sum_.of(counted) for counted in (5, 10, 4, 12, 14)] == [5, 10, 10, 12, 14]
    assert [sum_.of(counted) for counted in (4, 5, 6, 7)] == [14, 14, 15, 16]
