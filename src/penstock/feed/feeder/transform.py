"""A feed's transform where its ring lies: called on tensors on the GPU, once for all trainers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.contracts import DeviceBytes, Gpu, Tree
from penstock.tree import Strings, array_nodes, build, bytes_of, describe, device_leaf


class DeviceTransform:
    """Brings a block's arrays to a GPU and calls a function on them there.

    It returns while copies and then kernels may still run: the device waits for
    them, this process does not.

    Args:
        gpu: The GPU.
        call: Takes the block's tree, with its arrays as tensors on the GPU; strings stay as they are.
        whole: Whether the feed gives whole batches.
    """

    def __init__(self, gpu: Gpu, call: Callable[[Tree], Tree], *, whole: bool) -> None:
        self._gpu = gpu
        self._call = call
        self._whole = whole

    def __call__(self, tree: Tree) -> Tree:
        """Return what the function makes of a block.

        Raises:
            UnsupportedLeaf: an array has a type that no tensor has, or cannot travel.
        """
        parts = describe(tree, whole=self._whole)
        leaves: list[Any] = []
        taken: list[DeviceBytes] = []
        for node, leaf in zip(array_nodes(parts.layout), parts.leaves, strict=True):
            if isinstance(node, Strings):
                leaves.append(leaf)
                continue
            origin = bytes_of(node, leaf)
            memory = self._gpu.empty(origin.nbytes)
            if origin.nbytes:
                self._gpu.copy(memory, origin, pinned=False)
            taken.append(memory)
            leaves.append(device_leaf(node, memory, None if self._whole else parts.rows))
        self._gpu.wait_for_copies(taken, self._gpu.mark())
        return self._call(build(parts.layout, leaves))
