"""Train a line on a Hugging Face data set in Arrow files, turned into tensors as it is read."""

import os
from pathlib import Path
from typing import Any

import torch
from datasets import load_from_disk
from report import Model, Report, arguments, decoded, train
from torch.utils.data import DataLoader

args = arguments().parse_args()
data = Path(os.environ["FRAMEWORKS_DATA"]) / "numbers"
scale = args.scale  # datasets takes all that a transform names into its fingerprint: not all of args, then


def tensors(batch: dict[str, Any]) -> dict[str, Any]:
    decoded(*batch["id"])
    return tensors_uncounted(batch)


def tensors_uncounted(batch: dict[str, Any]) -> dict[str, Any]:
    x = [torch.tensor(row) for row in batch["x"]]
    return {"x": [row * scale for row in x], "y": [row.sum() for row in x], "id": batch["id"]}


training = load_from_disk(data / "train").with_transform(tensors)
validation = load_from_disk(data / "validation").with_transform(tensors_uncounted)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
loader = DataLoader(training, batch_size=args.batch_size, shuffle=True, num_workers=1)
validation_loader = DataLoader(validation, batch_size=4)
report = Report(args.out)
report.length(loader)
train(model, optimizer, loader, validation_loader, report, args.epochs)
