"""Lets a torchvision built for CUDA be imported beside a torch built without; `make` puts it into the environment.

PyPI has torchvision's CUDA build only. Its operators cannot be loaded then, and their schemas are looked for.
"""

import importlib.abc
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

SCHEMAS = [
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
]


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname == "torchvision.extension" else None
        if spec is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                if not module._has_ops():
                    module.schemas = _defined()  # pyright: ignore

            loader.exec_module = exec_module
        return spec


def _defined() -> Any:
    from torch.library import Library

    library = Library("torchvision", "DEF")
    for schema in SCHEMAS:
        library.define(schema)
    return library


sys.meta_path.insert(0, _Finder())
