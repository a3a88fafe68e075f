"""`penstock run --watch-dataloader`: what is kept of unmodified scripts, and that they notice nothing."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.autosharing.running import feeds_read
from tests.inject.conftest import DATA, Watched, series

import penstock
from penstock.runs.store import Store

pytestmark = pytest.mark.whole

NOTICES = """
def show(what, batches):
    for batch in batches: print(what, torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.tolist, batch))
    print(what, "then", torch.initial_seed(), torch.rand(2).tolist())

if __name__ == "__main__":
    print([entry for entry in sys.path if "penstock" in entry], "sitecustomize" in sys.modules)
    torch.manual_seed(7)
    own = torch.Generator().manual_seed(3)
    none = DataLoader(Rows(), 4, shuffle=True)
    two = DataLoader(Rows(), 4, shuffle=True, num_workers=2, generator=own)
    kept = DataLoader(Rows(), 4, shuffle=True, num_workers=2, persistent_workers=True)
    for epoch in range(2):
        show("none", none); show("two", two); show("kept", kept)
    print("own", own.get_state().sum().item())
    show("spawned", DataLoader(Rows(), 4, num_workers=1, multiprocessing_context="spawn"))
    show("stream", DataLoader(Stream(), 4)); show("streams", DataLoader(Stream(), 3, num_workers=2))
    show("zip", [a["id"].tolist() + b["id"].tolist() for a, b in zip(none, none)])
    for batch in kept: break
    show("after a break", kept)
    it = iter(none)
    print(len(it), it is iter(it), type(it).__name__, type(it).__qualname__, type(it).__module__)
    print(isinstance(it, torch.utils.data.dataloader._SingleProcessDataLoaderIter), it._dataset_kind)
    print(len(iter(two)._workers), kept._iterator._persistent_workers, none._get_iterator.__name__)
    for act in (lambda: pickle.dumps(it), lambda: copy.deepcopy(it)):
        try: act()
        except Exception as error: print(type(error), error)
    print(list(map(len, it)), [next(it, "over") for _ in range(2)])
    pickle.loads(pickle.dumps(none))
    for workers in (0, 2):
        try: list(DataLoader(Rows(bad=5), 2, num_workers=workers))
        except KeyError as error:
            print(type(error), error)
            frames = traceback.extract_tb(error.__traceback__)
            print([frame.name for frame in frames if "penstock" not in frame.filename])
    def rest(loader): yield from loader
    generator = rest(none); next(generator); generator.close()
    print(torch.rand(1))
"""


def test_a_script_notices_nothing(launch: Callable[..., Any], tmp_path: Path):
    (tmp_path / "train.py").write_text(DATA + NOTICES)
    alone = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    one = launch("--watch-dataloader", "--listeners", "none", "train.py")
    assert one.wait() == 0, one.errors
    assert one.output.splitlines() == alone.stdout.splitlines()
    told, _, last = one.errors.rpartition("penstock: run ")
    assert told == alone.stderr and last.count("\n") == 1
    assert "KeyError" in one.output and "cannot be pickled" in one.output


def test_waits_are_kept_unless_that_is_refused_and_a_run_ends_with_what_to_change_first(launch, tmp_path: Path):
    (tmp_path / "train.py").write_text(
        DATA
        + """
class Slow(Rows):
    def __getitem__(self, i): time.sleep(0.1); return i
for batch in DataLoader(Slow(30), 4): time.sleep(0.01)
"""
    )
    one = launch("--listeners", "proc,host", "train.py")
    assert one.wait() == 0, one.errors
    assert "% of its time for data" in one.errors and "More: penstock runs show" in one.errors
    two = launch("-n", "2", "--listeners", "none", "train.py")
    assert two.wait() == 0, two.errors
    assert "waits" in two.output and "%" in two.output.splitlines()[-1]
    none = launch("--no-watch-dataloader", "--listeners", "none", "train.py")
    assert none.wait() == 0, none.errors
    with Store.open(tmp_path / "store") as store:
        assert "feed.wait_s" not in store.names(none.records()[-1].id)
        assert "feed.wait_s" in store.names(one.records()[0].id)


def test_what_is_waited_for_is_kept(watched: Watched):
    found = watched(
        """
class Slow(Rows):
    def __getitem__(self, i): time.sleep(0.02); return i
train, validation = DataLoader(Slow(20), 4), DataLoader(Slow(3), 2)
for epoch in range(2):
    for batch in train: time.sleep(0.1)
    for batch in validation: pass
"""
    )
    assert found["feed.batches"][-1] == 14 and found["feed.samples"][-1] == 46
    assert len(found["feed.main.epoch_s"]) == 2 and "feed.epoch_s" not in found
    assert (found["feed.main.batches"], found["feed.main.samples"]) == ([10], [40])
    assert 46 * 0.02 <= found["feed.wait_s"][-1] <= found["feed.loop_s"][-1] - 1.0
    assert sum(found["feed.main.epoch_s"]) <= found["feed.loop_s"][-1]
    for name in ("feed.wait_s", "feed.loop_s", "feed.batches", "feed.samples"):
        assert found[name] == sorted(found[name])


TRAINS = """
model = torch.nn.Linear(1, 1)
def made(): return torch.optim.SGD(model.parameters(), lr=1e-3)
def step(optimizer, *rows):
    optimizer.zero_grad(); sum(model(each["drawn"][:, None]).sum() for each in rows).backward(); optimizer.step()
@torch.no_grad()
def evaluate(loader):
    for batch in loader: model(batch["drawn"][:, None])
"""
TRAININGS = {  # with how many epochs, batches and samples
    "a validation of more batches": (
        """
train, validation, optimizer = DataLoader(Rows(30), 10), DataLoader(Rows(50), 1), made()
for epoch in range(2):
    for batch in train: step(optimizer, batch)
    evaluate(validation)
""",
        (2, 6, 60),
    ),
    "evaluations before": (
        """
train, validation = DataLoader(Rows(30), 10), DataLoader(Rows(50), 1, num_workers=1, persistent_workers=True)
evaluate(validation); evaluate(validation)
optimizer = made()
for batch in validation: break
for epoch in range(2):
    for batch in train: step(optimizer, batch)
""",
        (2, 6, 60),
    ),
    "two loaders in one loop, the longer first": (
        """
optimizer, kept = made(), DataLoader(Rows(30), 10, num_workers=1, persistent_workers=True)
for epoch in range(3):
    for pair in zip(DataLoader(Rows(50), 10), kept): step(optimizer, *pair)
    evaluate(DataLoader(Rows(50), 1))
""",
        (3, 21, 210),
    ),
    "two optimizers, and a validation within": (
        """
train, validation, one, two = DataLoader(Rows(30), 10), DataLoader(Rows(50), 1), made(), made()
for epoch in range(2):
    for batch in train:
        evaluate(validation)
        step(one, batch); step(two, batch)
""",
        (2, 6, 60),
    ),
    "an outer loop that does not train": (
        """
optimizer = made()
for task in DataLoader(Rows(2), 1):
    for batch in DataLoader(Rows(30), 10): step(optimizer, batch)
""",
        (2, 6, 60),
    ),
    "a step that is compiled": (
        """
optimizer = made()
compiled = torch.compile(optimizer.step, backend="eager")
for epoch in range(2):
    for batch in DataLoader(Rows(30), 10):
        model(batch["drawn"][:, None]).sum().backward()
        compiled()
    evaluate(DataLoader(Rows(50), 1))
""",
        (2, 6, 60),
    ),
    "it ends with a test": (
        """
optimizer = made()
for epoch in range(2):
    for batch in DataLoader(Rows(30), 10): step(optimizer, batch)
if not os.fork():
    evaluate(DataLoader(Rows(500), 1))
    sys.exit()
os.wait()
""",
        (2, 6, 60),
    ),
}


@pytest.mark.parametrize("what", TRAININGS)
def test_an_epoch_is_that_of_a_training(watched, launched, tmp_path: Path, what: str):
    text, (epochs, batches, samples) = TRAININGS[what]
    found = (launched if what.startswith("two optimizers") else watched)(TRAINS + text)
    assert len(found["feed.epoch_s"]) == epochs
    assert (found["feed.train.batches"][-1], found["feed.train.samples"][-1]) == (batches, samples)
    assert sum(found["feed.epoch_s"]) <= found["feed.train.loop_s"][-1] + 0.1 <= found["feed.loop_s"][-1] + 0.1
    frame = penstock.load_runs(store=tmp_path / "store")
    assert frame[["epoch_s", "samples"]].values.tolist() == [[sum(found["feed.epoch_s"]) / epochs, samples]]


def test_no_loader_and_no_batch_raises_or_loses_what_is_logged_because_it_is_watched(watched):
    found = watched(
        """
import collections, penstock
B = collections.namedtuple("B", "image shape")
class NoShape: shape = None
class Equal(DataLoader):
    def __eq__(self, other): return isinstance(other, Equal)
def nested(rows): return torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
for make in (nested, lambda rows: NoShape(), lambda rows: B(torch.zeros(4, 2), torch.zeros(2))):
    assert len(list(Equal(Stream(), 4, collate_fn=make))) == 3
    for i in range(10): penstock.log(loss=i)
"""
    )
    assert found["loss"] == list(range(10)) * 3
    assert found["feed.batches"][-1] == 9 and "feed.samples" not in found


def test_a_script_that_can_neither_import_penstock_nor_start_a_thread_goes_on(watched):
    found = watched(
        """
sys.modules["penstock.runs.inside.run"] = None
assert len(list(DataLoader(Rows(), 4))) == 3
del sys.modules["penstock.runs.inside.run"]
threading.stack_size(1 << 46)
assert len(list(DataLoader(Rows(), 5))) == 2
"""
    )
    assert (found["feed.batches"][-1], found["feed.samples"][-1]) == (2, 10), "kept when the script ends"


def test_every_kind_of_loop_is_counted(launched: Watched):
    found = launched(
        """
def work():
    for _ in DataLoader(Rows(8), 4): pass
if __name__ == "__main__":
    kept = DataLoader(Rows(), 4, num_workers=2, persistent_workers=True)
    for epoch in range(3):
        for batch in kept: pass                                     # 9 batches, 30 rows, 3 epochs
    for batch in kept: break                                        # 1, 4
    for batch in DataLoader(Stream(), 4, num_workers=2): pass       # 4, 10
    for a, b in zip(DataLoader(Rows(), 5), DataLoader(Rows(), 5)):  # 4, 20
        for batch in DataLoader(Rows(2), 1): pass                   # 4, 4
    for batch in DataLoader(Rows(), 4, collate_fn=lambda rows: [[row] for row in rows]): pass  # 3, 10
    threads = [threading.Thread(target=work) for _ in range(2)]     # 4, 16
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    for batch in DataLoader(Rows(4), 4, num_workers=1, multiprocessing_context="spawn"): pass  # 1, 4
"""
    )
    assert (found["feed.batches"][-1], found["feed.samples"][-1]) == (30, 98)


def test_ranks_count_once_and_child_processes_are_watched(launched: Watched):
    ranks = """
import torch.distributed as dist
from torch.utils.data.distributed import DistributedSampler
dist.init_process_group("gloo")
loader = DataLoader(Rows(40), 4, sampler=DistributedSampler(Rows(40)))
for epoch in range(2):
    for batch in loader:
        if dist.get_rank() == 1: time.sleep(0.1)
        dist.barrier()
dist.destroy_process_group()
"""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    found = launched(ranks, *torchrun, "train.py")
    assert (found["feed.batches"][-1], found["feed.samples"][-1]) == (20, 80), "those of both ranks"
    assert len(found["feed.main.epoch_s"]) == 2
    assert 1.0 <= found["feed.loop_s"][-1] <= 1.0 + 2 * sum(found["feed.main.epoch_s"])


def test_processes_one_after_the_other_add_up(launched: Watched):
    text = "for batch in DataLoader(Rows(), 4): pass\n"
    found = launched(text, "sh", "-c", f"{sys.executable} train.py && {sys.executable} train.py")
    assert (found["feed.batches"][-1], found["feed.samples"][-1]) == (6, 20)


def test_the_feeder_of_share_is_not_hooked(launched: Watched, tmp_path: Path):
    found = launched(
        """
import penstock
def make():
    from torch.utils.data import DataLoader
    variables = [os.environ.get("PENSTOCK_INJECT"), "inside/site" in os.environ["PYTHONPATH"]]
    print(DataLoader._get_iterator.__module__, *variables, file=open("feeder", "w"))
    return DataLoader(Rows(), 4)
if __name__ == "__main__":
    assert "PENSTOCK_INJECT" in os.environ and DataLoader._get_iterator.__wrapped__
    with penstock.share(make, "hooked") as loader:
        for batch in loader: pass
    penstock.stop("hooked")
""",
        PENSTOCK_DIR=str(tmp_path / "feeds"),
        PYTHONPATH=os.pathsep.join(entry for entry in sys.path if entry),
    )
    assert (tmp_path / "feeder").read_text() == "torch.utils.data.dataloader None False\n"
    assert (found["feed.batches"][-1], found["feed.samples"][-1]) == (3, 10)


CLOCKED = """
def clocked(make, epochs, persistent):
    waited = 0.0
    began = time.monotonic()
    epochs_s = []
    for epoch in range(epochs):
        since = time.monotonic()
        it = iter(make if persistent else make())
        while True:
            try: batch = next(it)
            except StopIteration: break
            finally: waited += time.monotonic() - since
            time.sleep(0.02)
            since = time.monotonic()
        epochs_s.append(time.monotonic() - began - sum(epochs_s))
    return waited, sum(epochs_s), epochs_s

if __name__ == "__main__":
    workers = int(sys.argv[1])
    if workers: loader = DataLoader(Rows(100), 4, shuffle=True, num_workers=workers, persistent_workers=True)
    else: loader = lambda: DataLoader(Rows(100), 4, shuffle=True)
    print(repr(clocked(loader, 3, bool(workers))))
"""


@pytest.mark.parametrize(("way", "workers"), [("--share", "2"), ("autoshare()", "0")])
def test_the_start_of_a_feed_is_waited_for_as_the_script_s_own_clock_says(launch, tmp_path, way, workers):
    marked = "" if way == "--share" else "import penstock\npenstock.autoshare()\n"
    (tmp_path / "train.py").write_text(marked + DATA + CLOCKED)
    words = ["--share"] if way == "--share" else []
    one = launch(*words, "--listeners", "none", "train.py", workers)
    assert one.wait() == 0, one.errors
    (name,) = feeds_read(one.errors)
    penstock.stop(name)
    waited_s, loops_s, epochs_s = ast.literal_eval(one.output.splitlines()[-1])
    found = series(tmp_path, one.record().id)
    assert (found["feed.batches"][-1], found["feed.samples"][-1]) == (75, 300)
    for counted_s, own_s in [
        (found["feed.wait_s"][-1], waited_s),
        (found["feed.loop_s"][-1], loops_s),
        *zip(found["feed.main.epoch_s"], epochs_s, strict=True),
    ]:
        assert 0.9 * own_s <= counted_s <= own_s, (counted_s, own_s)
