"""Where Python finds packages, and those that only an extra of Penstock brings."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Any

from penstock.errors import PackageMissing


def require(what: str, extra: str, *modules: str) -> None:
    """Check that modules can be imported, before beginning anything that needs them.

    ``what`` needs them, and begins the error. ``extra`` brings them, or several with commas do.
    """
    if missing := [module for module in modules if find_spec(module) is None]:
        raise PackageMissing(f'{what} needs {", ".join(missing)}: pip install "penstock[{extra}]"')


def initialized_distributed() -> Any:
    """Return ``torch.distributed`` if this process is one of its ranks, else None."""
    distributed: Any = sys.modules.get("torch.distributed")
    is_rank = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if is_rank else None


def data_loader_worker() -> Any:
    """Return torch's ``WorkerInfo`` if this process is a worker of a ``DataLoader``, else None."""
    data: Any = sys.modules.get("torch.utils.data")
    return None if data is None else data.get_worker_info()


def import_path() -> list[str]:
    """Return where this process finds modules, with its directory by name, unless that was deleted."""
    try:
        here = [os.getcwd()]
    except FileNotFoundError:
        here = []
    return [found for entry in sys.path for found in ([entry] if entry else here)]
