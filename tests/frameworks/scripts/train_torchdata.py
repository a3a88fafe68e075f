"""Train a line with torchdata's StatefulDataLoader; stop in mid-epoch, or resume what stopped there."""

from pathlib import Path

import torch
from report import Model, Report, arguments, numbers, validate
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

parser = arguments()
parser.add_argument("--stop", type=int, default=-1, help="steps after which the state is saved")
parser.add_argument("--checkpoint", type=Path)
args = parser.parse_args()
training, validation = numbers(args.scale)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
loader = StatefulDataLoader(training, batch_size=args.batch_size, shuffle=True)
validation_loader = DataLoader(validation, batch_size=4)
report = Report(args.out)
report.length(loader)
first, steps = 0, 0
if args.checkpoint and args.stop < 0:
    state = torch.load(args.checkpoint, weights_only=False)
    first, steps = state["epoch"], state["steps"]
    loader.load_state_dict(state["loader"])
validate(model, validation_loader, report)
for epoch in range(first, args.epochs):
    for batch in loader:
        report.batch(epoch, batch["id"], batch["x"].sum(1), batch)
        optimizer.zero_grad()
        (model(batch["x"]) - batch["y"]).square().mean().backward()
        optimizer.step()
        steps += 1
        if steps == args.stop:
            torch.save({"loader": loader.state_dict(), "epoch": epoch, "steps": steps}, args.checkpoint)
            report.end()
            raise SystemExit
    validate(model, validation_loader, report)
report.end()
