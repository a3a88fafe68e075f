"""Any tree of arrays comes out of its bytes as it went in: values, types, structure."""

from __future__ import annotations

import math
import sys
import warnings
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.examples import examples

import penstock
from penstock.tree import (
    Array,
    Node,
    array_nodes,
    build,
    bytes_of,
    describe,
    device_leaf,
    difference,
    leaf_from_bytes,
    leaf_sizes,
    same_but_for_shapes,
    trusted_leaf,
)


class Pair(NamedTuple):
    one: Any
    other: Any


@dataclass
class Mutable:
    one: Any
    other: Any = None
    note: str = field(default="not told", kw_only=True)


@dataclass(frozen=True, slots=True)
class Frozen:
    one: Any
    other: Any


class Encoding(UserDict[Any, Any]):
    """As Hugging Face's BatchEncoding: arguments that have defaults, values as attributes."""

    def __init__(self, data: Any = None, tensor_type: str | None = None) -> None:
        super().__init__(data)
        self.tensor_type = tensor_type

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["data"][name]
        except KeyError:
            raise AttributeError(name) from None


class Own(dict[Any, Any]):
    pass


class Fixed(Mapping[Any, Any]):
    def __init__(self, of: Mapping[Any, Any]) -> None:
        self._of = dict(of)

    def __getitem__(self, key: Any) -> Any:
        return self._of[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)


class Named(torch.Tensor):
    """A subclass."""


class Outer:
    @dataclass
    class Inner:
        one: Any
        calls: int = 0

        def __post_init__(self) -> None:
            self.calls += 1


NUMPY = [
    "?", "i1", "<i2", ">i2", "<i4", "<i8", ">i8", "u1", "<u4", "<u8", "<f2", "<f4", ">f4", "<f8", ">f8",
    "<c8", "<c16", ">c16", "<M8[s]", ">M8[D]", "<m8[ns]",
]  # fmt: skip
TORCH = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn,
    torch.float8_e5m2, torch.complex64, torch.complex128,
]  # fmt: skip
ROWS = st.shared(st.integers(0, 5), key="rows")
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(),
    st.binary(),
    st.sampled_from(["", "ü/\N{GRINNING FACE}", float("-inf"), -0.0]),
)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    rows = draw(ROWS)
    shape = (rows, *draw(st.lists(st.integers(0, 3), max_size=3)))
    dtype = np.dtype(draw(st.sampled_from([*NUMPY, "<U3", "S5"])))
    array = np.frombuffer(draw(st.binary(min_size=40, max_size=40)), np.uint8)
    if dtype.kind in "US":
        array = draw(hnp.arrays(dtype, shape))
    else:
        array = np.resize(array % 2 if dtype.kind == "b" else array, math.prod(shape) * dtype.itemsize)
        array = array.view(dtype).reshape(shape) if array.size else np.empty(shape, dtype)
    how = draw(st.sampled_from(["plain", "fortran", "strided", "reversed", "read-only"]))
    if how == "fortran":
        return np.asfortranarray(array)
    if how == "strided":
        return np.repeat(array, 2, axis=0)[::2]
    if how == "reversed":
        return array[::-1]
    array.flags.writeable = how != "read-only"
    return array


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    rows = draw(ROWS)
    shape = (rows, *draw(st.lists(st.integers(0, 3), max_size=3)))
    dtype = draw(st.sampled_from(TORCH))
    nbytes = math.prod(shape) * dtype.itemsize
    raw = np.resize(np.frombuffer(draw(st.binary(min_size=40, max_size=40)), np.uint8), nbytes)
    if dtype == torch.bool:
        raw = raw % 2
    tensor = torch.from_numpy(raw.copy()).view(dtype).reshape(shape) if nbytes else torch.empty(shape, dtype=dtype)
    how = draw(st.sampled_from(["plain", "transposed", "strided", "expanded", "grad", "conjugate", "named"]))
    if how == "transposed" and len(shape) > 2:
        return tensor.transpose(1, 2)
    if how == "strided" and nbytes:
        return torch.stack([tensor, tensor], 1)[:, 0]
    if how == "expanded":
        return tensor.unsqueeze(-1).expand(*shape, 2)
    if how == "grad" and dtype.is_floating_point:
        return tensor.requires_grad_()
    if how == "conjugate" and dtype.is_complex:
        return tensor.conj()
    return tensor.as_subclass(Named) if how == "named" else tensor


@st.composite
def row_lists(draw: st.DrawFn) -> Any:
    rows = draw(ROWS)
    items = draw(st.lists(SCALARS, min_size=rows, max_size=rows))
    return tuple(items) if draw(st.booleans()) else items


LEAVES = st.one_of(arrays(), tensors(), row_lists(), SCALARS)


def containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keys = st.one_of(st.text(max_size=4), st.integers(-5, 5), st.binary(max_size=3), st.none())
    return st.one_of(
        st.lists(children, max_size=4),
        st.lists(children, max_size=4).map(tuple),
        st.dictionaries(keys, children, max_size=4),
        st.dictionaries(keys, children, max_size=3).map(OrderedDict),
        st.builds(
            lambda kind, children: kind(children),
            st.sampled_from([Encoding, Own, Fixed]),
            st.dictionaries(keys, children, max_size=3),
        ),
        st.builds(Pair, children, children),
        st.builds(Mutable, children, children, note=st.text(max_size=3)),
        st.builds(Frozen, children, children),
        st.builds(Outer.Inner, children),
    )


@st.composite
def trees(draw: st.DrawFn) -> Any:
    """A tree whose first leaf fixes its rows, as a batch's does."""
    first = np.arange(draw(ROWS))
    return (first, draw(st.recursive(LEAVES, containers, max_leaves=8)))


def travelled(tree: Any, *, whole: bool = False) -> Any:
    """The tree as it comes out of its bytes, after its layout has crossed the wire."""
    layout, rows, leaves = describe(tree, whole=whole)
    packets = [
        (node, bytes_of(node, leaf).tobytes()) for node, leaf in zip(array_nodes(layout), leaves, strict=True)
    ]
    heard = msgspec.msgpack.decode(msgspec.msgpack.encode(layout), type=Node)
    assert heard == layout or "nan" in repr(layout)
    axis = None if whole else rows
    rebuilt = [trusted_leaf(node, np.frombuffer(bytearray(data), np.uint8), axis) for node, data in packets]
    return build(heard, rebuilt)


def assert_same(one: Any, other: Any) -> None:
    """Equal in type and value, to the bit."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        if one.numel():
            flat = [t.detach().resolve_conj().contiguous().reshape(-1) for t in (one, other)]
            assert torch.equal(*(t.as_strided(t.shape, (1,)).view(torch.uint8) for t in flat))
    elif isinstance(one, (np.ndarray, np.generic)):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.dtype.byteorder == other.dtype.byteorder
        assert one.tobytes() == other.tobytes()
    elif isinstance(one, Mapping):
        assert [(type(k), k) for k in one] == [(type(k), k) for k in other]
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    elif isinstance(one, (Mutable, Frozen, Outer.Inner)):
        for name in one.__dataclass_fields__:
            assert_same(getattr(one, name), getattr(other, name))
    elif isinstance(one, float):
        assert math.copysign(1, one) == math.copysign(1, other) or math.isnan(one)
        assert one == other or (math.isnan(one) and math.isnan(other))
    else:
        assert one == other


@settings(max_examples=examples(80))
@given(trees(), st.booleans())
def test_any_tree_comes_out_as_it_went_in_by_rows_and_whole(tree, whole):
    assert_same(travelled(tree, whole=whole), tree)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", [*TORCH, torch.complex32], ids=str)
def test_each_dtype_of_torch_travels(dtype):
    raw = torch.arange(6 * dtype.itemsize, dtype=torch.uint8)
    tensor = (raw % 2 if dtype == torch.bool else raw).view(dtype).reshape(3, 2)
    assert_same(travelled(tensor), tensor)
    assert_same(travelled(tensor.T.contiguous().T), tensor)
    assert_same(travelled(tensor[:0]), tensor[:0])


@pytest.mark.parametrize(
    ("tree", "whole"),
    [
        ((np.zeros(0), torch.empty(0, 2, dtype=torch.int16)[:, 0]), False),
        ({"x": np.zeros((2, 3)), "scale": np.float16(0.5), "n": np.int64(7), "t": torch.tensor(3.5)}, True),
        ([{"boxes": torch.zeros(n, 4), "ids": np.arange(n)} for n in (3, 0, 5)], True),
    ],
    ids=["empty tensor of any stride", "scalars of NumPy", "uneven arrays"],
)
def test_what_is_rare_travels(tree, whole):
    assert_same(travelled(tree, whole=whole), tree)


def test_a_list_of_one_scalar_a_row_is_cut_with_the_rows_and_any_other_is_not():
    layout, rows, _ = describe({"x": np.zeros(3), "name": ["a", "b", "c"], "classes": ["cat", "dog"]})
    assert rows == 3
    kinds = {key: type(child).__name__ for key, child in zip(layout.keys, layout.children, strict=True)}
    assert kinds == {"x": "Array", "name": "Strings", "classes": "Branch"}


def test_rows_are_counted_by_lists_where_there_is_no_array():
    assert describe([("a", "b"), (1, 2)]).rows == 2
    assert describe("alone").rows == 1


@dataclass
class Output(OrderedDict[Any, Any]):
    """As Hugging Face's ModelOutput: a dataclass that is a dict too, and can be made of one."""

    loss: Any = None

    def __post_init__(self) -> None:
        self.update(self.loss if isinstance(self.loss, dict) else {"loss": self.loss})


def test_what_hugging_face_gives_comes_back_with_its_type_and_its_attributes():
    for tree in (
        Encoding({"ids": torch.zeros(3, 7, dtype=torch.int64), "names": ["a", "b", "c"]}),
        Output(torch.zeros(3)),
    ):
        again = travelled(tree)
        assert_same(again, tree)
        assert list(again) == list(tree)
    again = travelled(Encoding({"ids": torch.zeros(3)}))
    assert again.ids is again["ids"] and again.tensor_type is None


def test_a_tensor_of_a_subclass_comes_back_as_one_over_the_bytes_that_it_was_given():
    (leaf,) = describe(torch.zeros(3).as_subclass(Named)).leaves
    assert type(leaf) is torch.Tensor
    node = describe(torch.zeros(3).as_subclass(Named)).layout
    memory = np.zeros(12, np.uint8)
    tensor = build(node, [leaf_from_bytes(node, memory, 3)])
    assert type(tensor) is Named
    memory[:] = 1
    assert (tensor.view(torch.uint8) == 1).all()


@pytest.mark.parametrize(
    ("tree", "plain"), [(Encoding({"x": torch.ones(3)}), dict), (torch.ones(3).as_subclass(Named), torch.Tensor)]
)
@pytest.mark.parametrize("place", ["no_such_module:Batch", "collections:NoSuchType", "os:getpid", "ast:Name"])
def test_a_mapping_or_tensor_of_a_type_that_is_not_here_is_a_plain_one_and_that_is_said_once(tree, plain, place):
    layout, _, leaves = describe(tree)
    name = f"{place}.{plain.__name__}"  # a name of its own, as each is told of once
    kind = layout.kind.replace(f"{type(tree).__module__}:{type(tree).__qualname__}", name)
    layout = msgspec.structs.replace(layout, kind=kind)
    module = place.partition(":")[0]
    with pytest.warns(UserWarning, match=rf"{name}, .* plain {plain.__name__} instead. Import {module} in the"):
        again = build(layout, leaves)
    assert type(again) is plain
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert type(build(layout, leaves)) is plain
    assert "no_such_module" not in sys.modules


class Dispatched(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


def with_attribute(tensor: Any) -> Any:
    tensor.color = "red"
    return tensor


class Matrix(np.ndarray):
    """A subclass."""


def local() -> Any:
    @dataclass
    class Local:
        one: Any

    return Local(np.zeros(3))


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (lambda: np.array([1, "x", None], object), "dtype is object"),
        (lambda: np.zeros(3, [("a", "i4")]), "fields one by one"),
        (lambda: torch.eye(3).to_sparse(), "torch.sparse_coo"),
        (lambda: with_attribute(torch.zeros(3).as_subclass(Named)), r"its attributes (color) would be lost"),
        (lambda: torch.zeros(3).as_subclass(Dispatched), "handles its memory by itself"),
        (lambda: np.zeros(3).view(Matrix), "send arrays"),
        (lambda: np.ma.masked_array(np.zeros(3)), "send arrays"),
        (lambda: {1, 2, 3}, "builtins.set"),
        (lambda: 3 + 1j, "builtins.complex"),
        (object, "builtins.object"),
        (local, "top of a module"),
        (lambda: defaultdict(list), "plain dict"),
        (lambda: {(1, 2): np.zeros(3)}, "keys are str"),
        (lambda: 2**64, "64 bits"),
        (lambda: torch.zeros(3, device="meta"), "it lies on meta"),
    ],
)
def test_what_cannot_travel_is_named_by_its_path(bad, says):
    leaf = bad()
    for tree, path in (
        ((np.zeros(3), leaf), "batch[1]"),
        ({"x": np.zeros(3), "a": [{"b": leaf}, 1]}, "batch['a'][0]['b']"),
        (Pair(np.zeros(3), Frozen(1, leaf)), "batch.other.other"),
    ):
        with pytest.raises(penstock.errors.UnsupportedLeaf) as caught:
            describe(tree)
        assert f"leaf {path} " in str(caught.value)
        assert says in str(caught.value)


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        ((np.zeros(3), np.zeros(4)), r"leaf batch\[1\] has shape \(4,\), where other leaves .* have 3 rows"),
        ({"a": np.zeros(3), "b": np.float32(1)}, r"leaf batch\['b'\] has no row axis"),
        ([torch.zeros(2, 2), torch.tensor(1)], r"leaf batch\[1\] has no row axis"),
    ],
)
def test_rows_that_differ_are_named_with_the_remedy(tree, says):
    with pytest.raises(penstock.errors.UnsupportedLeaf, match=says) as caught:
        describe(tree)
    assert "whole_batches=True" in str(caught.value)


@pytest.mark.parametrize("items", [[2**70, 1, 2], ["a", -(2**63) - 1, "b"], ["a", "\ud800", "b"]])
def test_a_number_too_large_and_a_text_that_is_no_unicode_are_refused_by_name(items):
    with pytest.raises(penstock.errors.UnsupportedLeaf, match=r"batch\[1\]"):
        travelled((np.zeros(3), items))


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ((np.zeros(3), 1), (np.zeros(3), 2), "leaf batch[1]: int 1 before, int 2 now"),
        ({"x": np.zeros(3)}, {"x": np.zeros(3, "f4")}, "leaf batch['x']: numpy <f8 of shape (…) before"),
        (
            Pair(torch.zeros(3, 4), 0),
            Pair(torch.zeros(3, 5), 0),
            "leaf batch.one: torch float32 of shape (…, 4) before, torch float32 of shape (…, 5) now",
        ),
        ({"x": np.zeros(3)}, {"x": np.zeros(3), "y": 1}, "leaf batch: dict of 1 with keys ['x'] before"),
        ([np.zeros(3)], (np.zeros(3),), "leaf batch: list of 1 before, tuple of 1 now"),
        ([np.zeros(3)], [torch.zeros(3)], "leaf batch[0]: numpy"),
        (
            {"x": {"y": [np.zeros(2), ["a", "b"]]}},
            {"x": {"y": [np.zeros(2), 5]}},
            "leaf batch['x']['y'][1]: a list",
        ),
        (np.zeros(3), np.zeros((3, 1)), "leaf batch: numpy"),
    ],
)
def test_a_difference_names_the_leaf_and_both_sides(before, after, says):
    one, other = describe(before).layout, describe(after).layout
    assert says in (difference(one, other) or "")
    assert difference(one, one) is None
    assert difference(other, describe(after).layout) is None


def test_only_shapes_and_constants_may_vary_in_whole_batches():
    def layout(tree: Any) -> Node:
        return describe(tree, whole=True).layout

    base = layout({"x": np.zeros((2, 3)), "n": 3})
    assert same_but_for_shapes(base, layout({"x": np.zeros((4, 9)), "n": 5}))
    assert not same_but_for_shapes(base, layout({"x": np.zeros((2, 3, 1)), "n": 3}))
    assert not same_but_for_shapes(base, layout({"x": np.zeros((2, 3), "f4"), "n": 3}))
    assert not same_but_for_shapes(base, layout({"y": np.zeros((2, 3)), "n": 3}))
    assert not same_but_for_shapes(base, layout({"x": np.zeros((2, 3)), "n": np.zeros(1)}))


def test_a_type_that_this_process_lacks_is_named_and_nothing_but_types_is_found():
    layout = describe(Pair(np.zeros(1), 1)).layout
    for kind, says in [
        ("no_such_module:Batch", "import no_such_module in the training script"),
        ("collections:NoSuchType", "no namedtuple or dataclass"),
        ("ast:Name", "no namedtuple or dataclass"),
        ("os:getpid", "no namedtuple or dataclass"),
        ("subprocess:Popen", "no namedtuple or dataclass"),
    ]:
        with pytest.raises(penstock.errors.UnsupportedLeaf, match=says):
            build(msgspec.structs.replace(layout, kind=kind), [np.zeros(1)])


def test_an_array_over_memory_keeps_it_and_may_be_read_only():
    memory = np.arange(8, dtype=np.uint8)
    array = leaf_from_bytes(Array("numpy", "<i2", (2,)), memory, 2, writable=False)
    assert np.shares_memory(array, memory)
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 1
    tensor = leaf_from_bytes(Array("torch", "int16", ()), memory, 4)
    assert tensor.tolist() == array.reshape(4).tolist()
    memory[0] = 9
    assert tensor[0] == array[0, 0] == 9 + 256


def in_lists(levels: int) -> Any:
    tree: Any = np.zeros(1)
    for _ in range(levels):
        tree = [tree]
    return tree


def test_containers_lie_a_hundred_deep_in_one_another_at_most():
    assert len(describe(in_lists(100)).leaves) == 1
    itself: list[Any] = []
    itself.append(itself)
    for tree in (in_lists(101), in_lists(10_000), itself):
        with pytest.raises(penstock.errors.UnsupportedLeaf, match="more than 100 deep"):
            describe(tree)


@pytest.mark.parametrize("dtype", [">f4", "<M8[s]", "<U3"])
def test_what_no_tensor_on_a_gpu_can_hold_is_refused_by_its_type(dtype):
    with pytest.raises(penstock.errors.UnsupportedLeaf, match="no tensor on a GPU can hold"):
        device_leaf(Array("numpy", dtype, ()), torch.zeros(12, dtype=torch.uint8), 1)


@pytest.mark.parametrize(
    "tree", [np.zeros((3, 4), ">f4"), torch.zeros(3, 2, dtype=torch.bfloat16), np.zeros((3, 0))]
)
def test_a_row_of_a_leaf_has_the_size_that_its_layout_tells(tree):
    (size,) = leaf_sizes(describe(tree).layout)
    assert size is not None
    assert size.nbytes * 3 == tree.nbytes
