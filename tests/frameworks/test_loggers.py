"""What scripts log with the real wandb and SummaryWriters, as their pages have them, is kept by `penstock run`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.frameworks.processes import ran

from penstock.runs.store import Store

WANDB = """
import sys, wandb
with wandb.init(project="my-awesome-project", mode=sys.argv[1], config={"learning_rate": 0.02}) as run:
    run.config.update({"batch": 8})
    wandb.config.optimizer, wandb.config["seed"] = "adam", 1
    run.define_metric("epoch")
    run.define_metric("val/*", step_metric="epoch")
    for epoch in range(3):
        wandb.log({"acc": 1 - 2**-epoch, "loss": 2**-epoch})
    run.log({"a": 1}, commit=False)
    wandb.log({"b": 2})
    run.log({"val/loss": 3, "epoch": 0})
    run.log({"late": 9}, step=70)
    run.log({"later": 9})
    run.log({"last": 9}, step=80, commit=True)
    run.log({"end": 9})
    run.log({"dropped": 9}, step=60)
for name in ("first", "second"):
    with wandb.init(project="p", mode=sys.argv[1], name=name) as run:
        run.log({"sweep": 1})
"""
WRITERS = """
import sys
if sys.argv[1] == "torch": from torch.utils.tensorboard import SummaryWriter
else: from tensorboardX import SummaryWriter
train, val = SummaryWriter("x/train"), SummaryWriter("x/val")
for step in range(3):
    train.add_scalar("loss", step, step)
    train.add_scalar("lr", 0.1, step)
    val.add_scalar("loss", 10 + step, step)
for i in range(2):
    train.add_hparams({"lr": 0.1 * i, "bsize": i}, {"hparam/accuracy": 10 * i})
train.close(), val.close()
"""


# What wandb wrote offline: a log of records, in blocks of 32 KiB.
HISTORY = """
import glob, json, struct
from wandb.proto.wandb_internal_pb2 import Record
for file in sorted(glob.glob("wandb/offline-run-*/*.wandb")):
    content, at, parts = open(file, "rb").read(), 7, b""
    while at + 7 <= len(content):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", content[at : at + 7])
        parts, at = (parts if kind in (3, 4) else b"") + content[at + 7 : at + 7 + size], at + 7 + size
        if kind in (1, 4) and (record := Record.FromString(parts)).WhichOneof("record_type") == "history":
            items = record.history.item
            values = {each.key or "/".join(each.nested_key): json.loads(each.value_json) for each in items}
            for name in values:
                if name[0] != "_": print(json.dumps([name, values[name], values["_step"]]))
"""
Points = dict[str, list[tuple[float, float | None]]]


def kept(folder: Path, script: str, word: str) -> tuple[Points, str]:
    """Return each series' values, with their steps, and what was said."""
    (folder / "train.py").write_text(script)
    run = ["-m", "penstock", "run", "--store", str(folder / "store"), "--listeners", "none", "train.py", word]
    said = ran(folder, *run).stderr
    with Store.open(folder / "store") as store:
        [record] = store.runs()
        series = {name: each for name, each in store.series(record.id).items() if name != "run.cpu_s"}
    step = series.pop("step")
    steps = dict(zip(step.times_s.tolist(), step.values.tolist(), strict=True))
    points = {name: zip(each.times_s.tolist(), each.values.tolist(), strict=True) for name, each in series.items()}
    return {name: [(value, steps.get(time_s)) for time_s, value in each] for name, each in points.items()}, said


def given(folder: Path) -> dict[str, str]:
    with Store.open(folder / "store") as store:
        [record] = store.runs()
        return record.given


@pytest.mark.parametrize("mode", ["offline", "disabled"])
def test_what_wandb_logs_has_the_steps_that_wandb_gives_it(mode: str, tmp_path: Path) -> None:
    found, said = kept(tmp_path, WANDB, mode)
    assert [step for _, step in found["loss"]] == [0, 1, 2]
    steps = {name: found[name][0][1] for name in ("a", "b", "val/loss", "late", "later", "last", "end")}
    assert "dropped" not in found, "it lies before the present step"
    assert steps == {"a": 3, "b": 3, "val/loss": 4, "late": 70, "later": 70, "last": 80, "end": 81}
    assert (found["sweep"], found["second/sweep"]) == ([(1, 0)], [(1, 0)])
    assert given(tmp_path) == {"learning_rate": "0.02", "batch": "8", "optimizer": "adam", "seed": "1"}
    assert said.count("penstock: keeps what the script logs with wandb\n") == 1
    assert said.count("wandb gets 'sweep' from two folders or runs: from here on they are 'first/sweep' and ") == 1
    assert "is kept: " not in said and "not kept" not in said
    if mode == "offline":
        wrote: Points = {}
        for line in ran(tmp_path, "-c", HISTORY).stdout.splitlines():
            name, value, step = json.loads(line)
            wrote.setdefault(name, []).append((value, step))
        wrote["sweep"], wrote["second/sweep"] = wrote["sweep"][:1], wrote["sweep"][1:]
        assert found == wrote


@pytest.mark.parametrize("library", ["torch", "tensorboardX"])
def test_two_summary_writers_keep_their_series_apart(library: str, tmp_path: Path) -> None:
    found, said = kept(tmp_path, WRITERS, library)
    assert found == {
        "loss": [(0, 0)],
        "train/loss": [(1, 1), (2, 2)],
        "val/loss": [(10, 0), (11, 1), (12, 2)],
        "lr": [(0.1, 0), (0.1, 1), (0.1, 2)],
        "hparam/accuracy": [(0, None), (10, None)],
    }
    assert given(tmp_path) == {"lr": "0.1", "bsize": "1"}
    assert said.count("from two folders or runs: from here on they are 'train/loss' and 'val/loss'") == 1
    assert "is kept: " not in said and "not kept" not in said
