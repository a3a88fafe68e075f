"""Train a small network of timm's on a folder of images."""

import os
from pathlib import Path
from typing import Any

import timm
import torch
from report import ROWS, ROWS_VALIDATED, Report, arguments, decoded
from timm.data import create_loader
from torchvision.datasets import ImageFolder

parser = arguments()
parser.add_argument("--prefetcher", action="store_true")
parser.add_argument("--multi-epochs", action="store_true")
parser.add_argument("--size", type=int, default=32)
args = parser.parse_args()


class Images(ImageFolder):
    """A folder of images whose targets are their numbers."""

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if "train" in Path(self.root).name:
            decoded(index)
        return super().__getitem__(index)[0], index


def loader_of(part: str) -> Any:
    return create_loader(
        Images(str(Path(os.environ["FRAMEWORKS_DATA"]) / part)),
        input_size=(3, args.size, args.size),
        batch_size=args.batch_size,
        is_training=part == "train",
        no_aug=True,
        use_prefetcher=args.prefetcher,
        use_multi_epochs_loader=args.multi_epochs and part == "train",
        num_workers=1,
        device=torch.device("cpu"),
    )


report = Report(args.out)
loader, validation = loader_of("train"), loader_of("validation")
report.length(loader)
torch.manual_seed(0)
model = timm.create_model("test_vit", num_classes=4, img_size=args.size)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr / 10)
loss_of = torch.nn.CrossEntropyLoss()


def validate() -> None:
    losses: list[float] = []
    model.eval()
    with torch.inference_mode():
        for images, ids in validation:
            report.validated(ids)
            classes = ids * 4 // ROWS_VALIDATED
            losses += torch.nn.functional.cross_entropy(model(images), classes, reduction="none").tolist()
    model.train()
    report.metric(sum(losses) / len(losses))


validate()
for epoch in range(args.epochs):
    for images, ids in loader:
        report.batch(epoch, ids, images.mean((1, 2, 3)), [images, ids])
        loss = loss_of(model(images), ids * 4 // ROWS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    validate()
report.end()
