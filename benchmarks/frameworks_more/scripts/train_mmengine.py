"""Train a line with mmengine, whose batches hold data samples: objects that no tree of arrays has."""

from typing import Any

import torch
from mmengine.model import BaseModel
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from torch.utils.data import Dataset


class Rows(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, row: int) -> dict[str, Any]:
        x = torch.tensor([row / 48])
        return {"inputs": x, "data_samples": BaseDataElement(y=x.cos())}


class Line(BaseModel):
    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(1, 1)

    def forward(self, inputs: Any, data_samples: Any = None, mode: str = "tensor") -> Any:
        y = torch.stack([sample.y for sample in data_samples])
        return {"loss": (self.line(torch.stack(inputs)) - y).square().mean()}


runner = Runner(
    Line(),
    work_dir="mmengine",
    train_dataloader={
        "batch_size": 8,
        "num_workers": 0,
        "dataset": Rows(),
        "sampler": {"type": "DefaultSampler", "shuffle": True},
    },
    train_cfg={"by_epoch": True, "max_epochs": 2},
    optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.1}},
)
runner.train()
print(f"steps: {runner.iter}")
