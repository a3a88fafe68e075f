"""Train a line with Accelerate, in one process or several."""

import torch
from accelerate import Accelerator
from report import Model, Report, arguments, end_of_ranks, numbers, validate
from torch.utils.data import DataLoader

parser = arguments()
parser.add_argument("--skip", type=int, default=0, help="batches of the first epoch, seen before a checkpoint")
args = parser.parse_args()
accelerator = Accelerator(cpu=True)
training, validation = numbers(args.scale)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
loader = DataLoader(training, batch_size=args.batch_size, shuffle=True)
validation_loader = DataLoader(validation, batch_size=4)
model, optimizer, loader, validation_loader = accelerator.prepare(model, optimizer, loader, validation_loader)

rank = accelerator.process_index
report = Report(args.out.with_name(f"{args.out.name}.{rank}") if rank else args.out)
report.length(loader)
validate(model, validation_loader, report)
for epoch in range(args.epochs):
    rest = accelerator.skip_first_batches(loader, args.skip) if args.skip and epoch == 0 else loader
    for batch in rest:
        with accelerator.accumulate(model):
            report.batch(epoch, batch["id"], batch["x"].sum(1), batch)
            loss = (model(batch["x"]) - batch["y"]).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    validate(model, validation_loader, report)
report.end()
accelerator.end_training()
end_of_ranks()
