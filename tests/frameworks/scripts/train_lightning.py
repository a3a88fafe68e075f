"""Train a line with Lightning, in one process or several; stop in mid-epoch, or resume what stopped there."""

from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from report import Model, Report, arguments, end_of_ranks, numbers
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

parser = arguments()
parser.add_argument("--ranks", type=int, default=1)
parser.add_argument("--stateful", action="store_true", help="torchdata's loader, which a checkpoint keeps")
parser.add_argument("--stop", type=int, default=-1, help="steps after which a checkpoint is saved")
parser.add_argument("--checkpoint", type=Path)
args = parser.parse_args()
training, validation = numbers(args.scale)


class Line(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.losses: list[float] = []
        self.report: Any = None

    def on_fit_start(self) -> None:
        out = args.out.with_name(f"{args.out.name}.{self.global_rank}") if self.global_rank else args.out
        self.report = Report(out)

    def on_train_start(self) -> None:
        self.report.length(self.trainer.train_dataloader)

    def training_step(self, batch: Any, index: int) -> Any:
        self.report.batch(self.current_epoch, batch["id"], batch["x"].sum(1), batch)
        return (self.model(batch["x"]) - batch["y"]).square().mean()

    def validation_step(self, batch: Any, index: int) -> None:
        self.report.validated(batch["id"])
        self.losses += (self.model(batch["x"]) - batch["y"]).square().tolist()

    def on_validation_epoch_end(self) -> None:
        self.report.metric(sum(self.losses) / len(self.losses))
        self.losses.clear()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=args.lr)


loader_class = StatefulDataLoader if args.stateful else DataLoader
line = Line()
stopping = args.stop >= 0
saving = (
    ModelCheckpoint(args.checkpoint.parent, args.checkpoint.stem, every_n_train_steps=args.stop)
    if stopping
    else None
)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=args.ranks,
    strategy="ddp" if args.ranks > 1 else "auto",
    max_epochs=args.epochs,
    max_steps=args.stop,
    num_sanity_val_steps=-1,
    logger=False,
    enable_checkpointing=stopping,
    callbacks=[saving] if stopping else [],
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(
    line,
    loader_class(training, batch_size=args.batch_size, shuffle=True),
    DataLoader(validation, batch_size=4),
    ckpt_path=args.checkpoint if args.checkpoint and not stopping else None,
)
line.report.end()
end_of_ranks()
