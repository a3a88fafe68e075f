"""Train a small YOLO from scratch, and note what each step is given; mosaic ends before the last two epochs."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

from ultralytics.data.dataset import YOLODataset
from ultralytics.models.yolo.detect import DetectionTrainer, DetectionValidator

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--data", required=True)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--imgsz", type=int, default=64)
parser.add_argument("--kill-at", type=int, default=0)
args = parser.parse_args()
steps = 0


def note(what: str, value: Any) -> None:
    with args.out.open("a") as file:
        file.write(json.dumps([what, value]) + "\n")


def ids(batch: dict[str, Any]) -> list[int]:
    return [int(Path(name).stem) for name in batch["im_file"]]


def kind(value: Any) -> str:
    return f"{type(value).__name__} {getattr(value, 'dtype', '')}".strip()


class Squares(YOLODataset):
    """A data set that counts the items it makes, and says of each whether it is a mosaic."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        item = super().__getitem__(index)
        with open(os.environ["MADE"], "a") as file:
            file.write(f"{Path(item['im_file']).stem}\n")
        return {**item, "is_mosaic": self.transforms.transforms[0].transforms[0].p > 0}


class Validator(DetectionValidator):
    def preprocess(self, batch: dict[str, Any]) -> Any:
        note("validated", ids(batch))
        return super().preprocess(batch)


class Trainer(DetectionTrainer):
    def build_dataset(self, *given: Any, **named: Any) -> Any:
        dataset = super().build_dataset(*given, **named)
        if "train" in str(dataset.img_path):
            dataset.__class__ = Squares
        return dataset

    def get_validator(self) -> Any:
        validator = super().get_validator()
        validator.__class__ = Validator
        return validator

    def preprocess_batch(self, batch: dict[str, Any]) -> Any:
        global steps  # noqa: PLW0603
        steps += 1
        if steps == args.kill_at:
            os.kill(os.getpid(), 9)
        kinds = {key: kind(value) for key, value in batch.items()}
        mosaics, size = [*map(bool, batch["is_mosaic"])], batch["img"].shape[-1]
        note("batch", {"epoch": self.epoch, "ids": ids(batch), "kinds": kinds, "mosaics": mosaics, "size": size})
        return super().preprocess_batch(batch)


trainer = Trainer(
    overrides={
        "model": "yolo11n.yaml",
        "data": args.data,
        "imgsz": args.imgsz,
        "batch": 4,
        "epochs": 8,
        "lr0": args.lr,
        "nbs": 4,  # the optimizer steps with each batch
        "warmup_epochs": 0,
        "optimizer": "SGD",
        "device": "cpu",
        "workers": 1,
        "close_mosaic": 2,
        "project": str(args.out.with_suffix(".ultralytics")),
        "plots": False,
        "pretrained": False,
        "amp": False,
    }
)
trainer.train()
note("len", len(trainer.train_loader))
note("loss", float(sum(trainer.tloss.values()) if isinstance(trainer.tloss, dict) else trainer.tloss.sum()))
