"""A block's tree of arrays: taken apart into leaves, described, and rebuilt with its types."""

from penstock.tree.layout import Array as Array
from penstock.tree.layout import Branch as Branch
from penstock.tree.layout import Constant as Constant
from penstock.tree.layout import Leaf as Leaf
from penstock.tree.layout import Node as Node
from penstock.tree.layout import Ragged as Ragged
from penstock.tree.layout import Scalar as Scalar
from penstock.tree.layout import Strings as Strings
from penstock.tree.layout import array_nodes as array_nodes
from penstock.tree.layout import difference as difference
from penstock.tree.layout import leaf_names as leaf_names
from penstock.tree.layout import leaf_sizes as leaf_sizes
from penstock.tree.layout import same_but_for_shapes as same_but_for_shapes
from penstock.tree.parts import Described as Described
from penstock.tree.parts import bytes_of as bytes_of
from penstock.tree.parts import describe as describe
from penstock.tree.parts import first_rows as first_rows
from penstock.tree.parts import tensor_bytes as tensor_bytes
from penstock.tree.ragged import RaggedRows as RaggedRows
from penstock.tree.rebuild import build as build
from penstock.tree.rebuild import device_leaf as device_leaf
from penstock.tree.rebuild import item_bytes as item_bytes
from penstock.tree.rebuild import joined as joined
from penstock.tree.rebuild import leaf_from_bytes as leaf_from_bytes
from penstock.tree.rebuild import strings_from_bytes as strings_from_bytes
from penstock.tree.rebuild import trusted_leaf as trusted_leaf
