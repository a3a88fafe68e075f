"""A block's tree of arrays: taken apart into leaves, described, and rebuilt with its types."""

from penstock.tree.layout import (
    Array,
    Branch,
    Constant,
    Node,
    Scalar,
    Strings,
    array_nodes,
    difference,
    leaf_names,
    leaf_sizes,
    same_but_for_shapes,
)
from penstock.tree.parts import Described, bytes_of, describe, first_rows, tensor_bytes
from penstock.tree.rebuild import build, device_leaf, leaf_from_bytes, strings_from_bytes

__all__ = [
    "Array",
    "Branch",
    "Constant",
    "Node",
    "Parts",
    "Scalar",
    "Strings",
    "array_nodes",
    "build",
    "bytes_of",
    "describe",
    "device_leaf",
    "difference",
    "first_rows",
    "leaf_from_bytes",
    "leaf_names",
    "leaf_sizes",
    "same_but_for_shapes",
    "strings_from_bytes",
    "tensor_bytes",
]
