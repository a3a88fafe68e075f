"""Runs when a Python of a watched run starts, in place of its own ``sitecustomize``, which it then loads.

Every Python that the run starts passes here, so it imports nothing that is not there already.
"""

import sys
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_CLASSES = {
    "torch.utils.data.dataloader": "DataLoader",
    "torchdata.stateful_dataloader.stateful_dataloader": "StatefulDataLoader",
    "fastai.data.load": "DataLoader",  # none of torch's: it cannot be hooked, and its user is warned
}
_METRICS = {  # of a package, the modules that take metrics, which it imports
    "mlflow": ("mlflow.tracking.fluent", "mlflow.tracking.client"),
    "radt": ("radt.run.benchmark",),
    "tensorboardX": ("tensorboardX.writer",),
    "torch.utils.tensorboard": ("torch.utils.tensorboard.writer",),
    "wandb": ("wandb.sdk.wandb_run", "wandb.sdk.wandb_init", "wandb.sdk.wandb_config"),
}
_wanted: "set[str]" = set()


class _Finder:
    """Finds these modules as others do, and has their loaders hooked once they have been executed.

    A finder that it asks may ask all finders in turn, and this one again, which then knows nothing.
    """

    def __init__(self) -> None:
        self._asked: set[tuple[str, int]] = set()  # modules that are being looked for, by which thread

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "ModuleSpec | None":
        asked = name, get_ident()
        if name not in _wanted or asked in self._asked:
            return None
        self._asked.add(asked)
        try:
            others = [each for each in sys.meta_path if each is not self and hasattr(each, "find_spec")]
            spec = next(filter(None, (each.find_spec(name, path, target) for each in others)), None)
        finally:
            self._asked.discard(asked)
        if spec is not None and spec.loader is not None:  # a mere folder has none: wandb makes one of its name
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: "ModuleType") -> None:
                del loader.exec_module
                try:
                    from penstock.basics.tracebacks import leave_out_of_interrupts

                    leave_out_of_interrupts()
                except Exception:  # it is reported below
                    pass
                execute(module)
                _hook(module)

            loader.exec_module = exec_module
        return spec


def _hook(module: "ModuleType") -> None:
    name = module.__name__
    try:
        if name in _METRICS:
            if gone := [each for each in _METRICS[name] if each not in sys.modules]:
                raise ImportError(f"this version has no {', '.join(gone)}")
        elif name not in _CLASSES:
            from penstock.runs.inside import metrics

            metrics.hooked(module)
        else:
            from penstock.runs.inside import watch

            watch.hooked(getattr(module, _CLASSES[name]))
    except Exception as error:
        kept = f"not all that is logged with {name} is kept"
        _warn(f"loaders of {name} are neither watched nor shared" if name in _CLASSES else kept, error)


def _warn(what: str, error: Exception) -> None:
    print(f"penstock: {what}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


def _begin() -> None:
    import os

    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    # Children may be of another Python, for which Penstock is not installed.
    if os.environ.get("PENSTOCK_INJECT") == f"{sys.hexversion:x}:{sys.prefix}":
        watched = os.environ.get("PENSTOCK_WATCH", "loaders").split(",")
        _wanted.update(_CLASSES if "loaders" in watched else ())
        _wanted.update(*[_METRICS, *_METRICS.values()] if "metrics" in watched else ())
        sys.meta_path.insert(0, _Finder())
        try:  # noqa: SIM105 - which imports
            os.close(os.open(os.environ["PENSTOCK_RUN_FOLDER"] + "/../hooked", os.O_WRONLY | os.O_CREAT, 0o600))
        except (KeyError, OSError):  # in no run, or of one that was removed
            pass


try:
    _begin()
except Exception as error:
    _warn("loaders are neither watched nor shared, and no metrics are kept", error)

# The program's own, in place of this. If there is none, or it fails, Python does what it does without this one.
del sys.modules["sitecustomize"]
import sitecustomize  # noqa: E402, F401  # pyright: ignore
