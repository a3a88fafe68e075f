"""A block's tree of arrays: taken apart into leaves, described, and built again with the same types."""

from penstock.tree.layout import (
    Array,
    Branch,
    Constant,
    Node,
    Scalar,
    Strings,
    array_nodes,
    difference,
    same_but_for_shapes,
)
from penstock.tree.parts import Parts, bytes_of, describe
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
    "leaf_from_bytes",
    "same_but_for_shapes",
    "strings_from_bytes",
]
