"""Train a line on tar files with webdataset."""

import os
from pathlib import Path
from typing import Any

import torch
import webdataset
from report import WIDTH, Model, Report, arguments, decoded, train

args = arguments().parse_args()
data = Path(os.environ["FRAMEWORKS_DATA"]) / "tars"
scale = args.scale


def row(sample: dict[str, Any]) -> dict[str, Any]:
    decoded(sample["json"]["id"])
    return row_uncounted(sample)


def row_uncounted(sample: dict[str, Any]) -> dict[str, Any]:
    x = torch.tensor(sample["json"]["x"])
    assert x.shape == (WIDTH,)
    return {"x": x * scale, "y": x.sum(), "id": sample["json"]["id"]}


def pipeline(pattern: str, shuffled: int, made: Any) -> Any:
    # Without a seed it draws one, and two runs would have two pipelines.
    shards = webdataset.WebDataset(str(data / pattern), shardshuffle=4 if shuffled else False, seed=0)
    return shards.shuffle(shuffled).decode().map(made)


training = pipeline("train-{0..3}.tar", 16, row)
validation = pipeline("validation-0.tar", 0, row_uncounted)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
loader = webdataset.WebLoader(training, batch_size=args.batch_size)
validation_loader = webdataset.WebLoader(validation, batch_size=4)
report = Report(args.out)
train(model, optimizer, loader, validation_loader, report, args.epochs)
