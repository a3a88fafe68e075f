"""Lets a torchvision built for CUDA work beside a torch built without; `make` puts it into the environment.

PyPI has torchvision's CUDA build only. Its operators cannot be loaded then: nms is in Python here.
"""

import importlib.abc
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname == "torchvision.extension" else None
        if spec is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                if not module._has_ops():
                    module.library = _defined()  # pyright: ignore
                    module._assert_has_ops = lambda: None  # pyright: ignore

            loader.exec_module = exec_module
        return spec


def _defined() -> Any:
    from torch.library import Library

    library = Library("torchvision", "DEF")
    library.define(f"nms{SCHEMA}")
    library.define(f"qnms{SCHEMA}")
    library.impl("nms", _nms, "CPU")
    return library


def _nms(dets: Any, scores: Any, iou_threshold: float) -> Any:
    import torch

    left, kept = scores.argsort(descending=True), []
    area = (dets[:, 2] - dets[:, 0]) * (dets[:, 3] - dets[:, 1])
    while len(left):
        best, left = left[0], left[1:]
        kept.append(best)
        low, high = torch.maximum(dets[best, :2], dets[left, :2]), torch.minimum(dets[best, 2:], dets[left, 2:])
        common = (high - low).clamp(min=0).prod(1)
        left = left[common / (area[best] + area[left] - common) <= iou_threshold]
    return torch.stack(kept) if kept else scores.new_empty(0, dtype=torch.long)


sys.meta_path.insert(0, _Finder())
