"""Batches as arrays of another framework, without copying them: DLPack."""

from __future__ import annotations

import importlib
from typing import Any, Literal, get_args

import numpy as np

from penstock.contracts import Tree
from penstock.errors import BadSetting, UnsupportedLeaf
from penstock.tree import Strings, array_nodes, build, describe

Framework = Literal["torch", "numpy", "jax", "cupy"]
_FROM_DLPACK = {
    "torch": ("torch", "from_dlpack"),
    "numpy": ("numpy", "from_dlpack"),
    "jax": ("jax.dlpack", "from_dlpack"),
    "cupy": ("cupy", "from_dlpack"),
}


def check_framework(framework: str | None) -> None:
    """Check that a framework is known and installed.

    Raises:
        BadSetting: there is no such framework, or it is not installed.
    """
    if framework is None:
        return
    if framework not in get_args(Framework):
        raise BadSetting(f"framework={framework!r}: it must be one of {', '.join(get_args(Framework))}")
    module = _FROM_DLPACK[framework][0]
    try:
        importlib.import_module(module)
    except ImportError:
        raise BadSetting(f"framework={framework!r}: {module} is not installed in this process") from None


def converted(tree: Tree, framework: Framework) -> Tree:
    """Turn every array and tensor of a batch into this framework's, without a copy (https://dmlc.github.io/dlpack).

    Without ``jax_enable_x64`` JAX turns 64-bit numbers into 32-bit ones. It
    copies those, and arrays that do not begin at a multiple of 64 bytes.

    Raises:
        UnsupportedLeaf: the framework has no such type, or cannot reach where the leaf lies.
    """
    module, function = _FROM_DLPACK[framework]
    from_dlpack = getattr(importlib.import_module(module), function)
    parts = describe(tree, whole=True, anywhere=True)
    leaves: list[Any] = []
    for node, leaf in zip(array_nodes(parts.layout), parts.leaves, strict=True):
        if isinstance(node, Strings) or node.library in ("numpy scalar", framework):
            leaves.append(leaf)
            continue
        try:
            leaves.append(from_dlpack(_exported(leaf) if framework == "jax" else leaf))
        except (TypeError, ValueError, RuntimeError, BufferError, AttributeError) as error:
            raise UnsupportedLeaf(
                f"a leaf of {node.library} {node.dtype}, shape {node.shape}, cannot become {framework}'s: {error}"
            ) from None
    return build(parts.layout, leaves)


def _exported(leaf: Any) -> Any:
    """Return a leaf that NumPy exports to JAX, which asks for DLPack's first version: it has no read-only arrays.

    JAX's own arrays cannot be written to, and the pages of a view stay read-only.
    """
    if type(leaf) is not np.ndarray or leaf.flags.writeable:
        return leaf
    writable: Any = leaf[...]
    writable.flags.writeable = True
    return writable
