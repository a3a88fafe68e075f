"""Train a line with a framework that leaves the loop to the script; stop in mid-epoch, or resume what stopped."""

import contextlib
import os
from pathlib import Path
from typing import Any

import torch
from report import Model, Report, arguments, decoded, end_of_ranks, numbers
from torch.utils.data import DataLoader

parser = arguments()
parser.add_argument("framework")
parser.add_argument("--skip", type=int, default=0, help="batches of the first epoch, seen before a checkpoint")
parser.add_argument("--stop", type=int, default=-1, help="steps after which the state is saved")
parser.add_argument("--checkpoint", type=Path)
args = parser.parse_args()
data, scale = Path(os.environ["FRAMEWORKS_DATA"]), args.scale
training, validation = numbers(scale)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
loader: Any = DataLoader(training, batch_size=args.batch_size, shuffle=True)
validation_loader: Any = DataLoader(validation, batch_size=4)
backward: Any = torch.Tensor.backward
accumulate: Any = contextlib.nullcontext
rank = 0
if args.framework == "Accelerate":
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer, loader, validation_loader = accelerator.prepare(model, optimizer, loader, validation_loader)
    backward, accumulate, rank = accelerator.backward, accelerator.accumulate, accelerator.process_index
elif args.framework == "Fabric":
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    model, optimizer = fabric.setup(model, optimizer)
    loader, validation_loader = fabric.setup_dataloaders(loader, validation_loader)
    backward = fabric.backward
elif args.framework == "torchdata":
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(training, batch_size=args.batch_size, shuffle=True)
elif args.framework == "datasets":
    from datasets import load_from_disk

    # datasets takes all that a transform names into its fingerprint: scale, then, and not args.
    def tensors(batch: dict[str, Any]) -> dict[str, Any]:
        decoded(*batch["id"])
        return tensors_uncounted(batch)

    def tensors_uncounted(batch: dict[str, Any]) -> dict[str, Any]:
        x = [torch.tensor(row) for row in batch["x"]]
        return {"x": [row * scale for row in x], "y": [row.sum() for row in x], "id": batch["id"]}

    training = load_from_disk(data / "numbers" / "train").with_transform(tensors)
    validation = load_from_disk(data / "numbers" / "validation").with_transform(tensors_uncounted)
    loader = DataLoader(training, batch_size=args.batch_size, shuffle=True, num_workers=1)
    validation_loader = DataLoader(validation, batch_size=4)
else:
    import webdataset

    def row(sample: dict[str, Any]) -> dict[str, Any]:
        decoded(sample["json"]["id"])
        return row_uncounted(sample)

    def row_uncounted(sample: dict[str, Any]) -> dict[str, Any]:
        x = torch.tensor(sample["json"]["x"])
        return {"x": x * scale, "y": x.sum(), "id": sample["json"]["id"]}

    def pipeline(pattern: str, shuffled: int, made: Any) -> Any:
        # Without a seed it draws one, and two runs would have two pipelines.
        shards = webdataset.WebDataset(str(data / "tars" / pattern), shardshuffle=4 if shuffled else False, seed=0)
        return shards.shuffle(shuffled).decode().map(made)

    loader = webdataset.WebLoader(pipeline("train-{0..3}.tar", 16, row), batch_size=args.batch_size)
    validation_loader = webdataset.WebLoader(pipeline("validation-0.tar", 0, row_uncounted), batch_size=4)

report = Report(args.out.with_name(f"{args.out.name}.{rank}") if rank else args.out)
if args.framework != "webdataset":
    report.length(loader)
first, steps = 0, 0
if args.checkpoint and args.stop < 0:
    state = torch.load(args.checkpoint, weights_only=False)
    first, steps = state["epoch"], state["steps"]
    loader.load_state_dict(state["loader"])


def validate() -> None:
    losses: list[float] = []
    model.eval()
    with torch.no_grad():
        for batch in validation_loader:
            report.validated(batch["id"])
            losses += (model(batch["x"]) - batch["y"]).square().tolist()
    model.train()
    report.metric(sum(losses) / len(losses))


validate()
for epoch in range(first, args.epochs):
    skips = args.skip and epoch == 0
    for batch in accelerator.skip_first_batches(loader, args.skip) if skips else loader:
        with accumulate(model):
            report.batch(epoch, batch["id"], batch["x"].sum(1), batch)
            optimizer.zero_grad()
            backward((model(batch["x"]) - batch["y"]).square().mean())
            optimizer.step()
        steps += 1
        if steps == args.stop:
            torch.save({"loader": loader.state_dict(), "epoch": epoch, "steps": steps}, args.checkpoint)
            report.end()
            raise SystemExit
    validate()
report.end()
if args.framework == "Accelerate":
    accelerator.end_training()
end_of_ranks()
