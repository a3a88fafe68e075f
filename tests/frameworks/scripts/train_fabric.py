"""Train a line with Lightning Fabric."""

import torch
from lightning.fabric import Fabric
from report import Model, Report, arguments, numbers, train
from torch.utils.data import DataLoader

args = arguments().parse_args()
fabric = Fabric(accelerator="cpu", devices=1)
fabric.launch()
training, validation = numbers(args.scale)
model = Model()
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=args.lr))
loader = fabric.setup_dataloaders(DataLoader(training, batch_size=args.batch_size, shuffle=True))
validation_loader = fabric.setup_dataloaders(DataLoader(validation, batch_size=4))

report = Report(args.out)
report.length(loader)
train(model, optimizer, loader, validation_loader, report, args.epochs, fabric.backward)
