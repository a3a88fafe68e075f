"""Digests of much content at the speed of memory: bytes, arrays, tensors and plain containers."""

# Arrays of any type, and torch, which is not imported here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false
from __future__ import annotations

import hashlib
import io
import mmap
import os
import pickle
import struct
import sys
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from isal import isal_zlib

_SMALL_BYTES = 1 << 14
_PIECE_ITEMS = 1 << 16
_REMEMBERED_BYTES = 64 << 20  # digests of tensors from here on are remembered
_SAMPLED_BYTES = 1 << 12
_UNORDERED = (set, frozenset, bytearray)  # the pickler asks for such a type when it meets an object of it

_tensors: dict[int, tuple[weakref.ref[Any], tuple[Any, ...], bytes]] = {}


class NotPlain(Exception):
    """A container cannot be pickled in one go: a set is in it, or itself."""


def joined(*parts: bytes | str) -> bytes:
    """Digest some parts and their borders."""
    pieces: list[bytes] = []
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode(errors="surrogatepass")
        pieces += (b"%d:" % len(data), data)
    return hashlib.sha256(b"".join(pieces)).digest()[:16]


def digest_of_array(array: np.ndarray) -> bytes:
    """Digest type, shape and items of an array without objects, wherever they lie; of a mapped file its version.

    Writing to a map need not change that: of what may be written, 64 pieces of 4 KiB count, too.
    Of a large one, each piece of 65,536 items counts by two checksums; those of another piece are equal by chance
    once in 2^64.
    """
    head = f"{array.dtype.descr if array.dtype.fields else array.dtype.str} {array.shape}"
    if place := place_in_file(array):
        seen = os.stat(place.path)
        pieces = _pieces(array) if place.mode == "r+" else []
        return joined(head, f"{place[:2]} {array.strides} {seen.st_size} {seen.st_mtime_ns}", *pieces)
    if array.nbytes <= _SMALL_BYTES:
        return joined(head, array.tobytes())
    if array.flags.f_contiguous and not array.flags.c_contiguous:  # read as it lies
        return joined("transposed", digest_of_array(array.T))
    sums = hashlib.sha256(head.encode())
    flags: Any = ["external_loop", "buffered", "zerosize_ok"]
    of_array: Any = [["readonly", "contig"]]
    pieces: Any = np.nditer(array.view(np.ndarray), flags, of_array, order="C", buffersize=_PIECE_ITEMS)
    for piece in pieces:
        data = piece.view(np.uint8)
        sums.update(struct.pack("<II", isal_zlib.crc32(data), isal_zlib.adler32(data)))
    return sums.digest()[:16]


class PlaceInFile(NamedTuple):
    """Where an array lies in the file that it is mapped from: its first item, and the mode of the map."""

    path: str
    offset: int
    mode: str


def place_in_file(array: np.ndarray) -> PlaceInFile | None:
    """Return where an array lies, if it is mapped from the file that its path still names."""
    base: Any = array
    while isinstance(base, np.ndarray) and not isinstance(base.base, mmap.mmap):
        base = base.base
    if not isinstance(base, np.memmap) or base.filename is None or base.mode == "c":
        return None
    path, address = os.path.abspath(base.filename), base.ctypes.data
    if not _is_mapped(address, path):
        return None
    mode = "r" if base.mode == "r" else "r+"
    return PlaceInFile(path, base.offset + array.ctypes.data - address, mode)


def _is_mapped(address: int, path: str) -> bool:
    """Whether the file of this path, not one that was there before, is mapped at an address here."""
    try:
        inode = os.stat(path).st_ino
    except OSError:
        return False
    with open("/proc/self/maps", "rb") as maps:
        for line in maps:
            begin, _, rest = line.partition(b"-")
            end, _, _, _, number, *_ = rest.split(maxsplit=5)
            if int(begin, 16) <= address < int(end, 16):  # its device is another one on some file systems
                return int(number) == inode
    return False


def sample_of(array: np.ndarray) -> bytes:
    """Digest type, shape, place and 64 pieces of 4 KiB of an array; of objects, or with gaps, no pieces."""
    return joined(f"{array.dtype.str} {array.shape} {array.ctypes.data}", *_pieces(array))


def _pieces(array: np.ndarray) -> list[bytes]:
    flat = array.T if array.flags.f_contiguous else array
    if array.dtype.hasobject or not flat.flags.c_contiguous:
        return []
    data = flat.reshape(-1).view(np.uint8)
    starts = range(0, len(data), max(len(data) // 63, _SAMPLED_BYTES))
    return [data[start : start + _SAMPLED_BYTES].tobytes() for start in starts]


def array_of(tensor: Any) -> np.ndarray:
    """Return the memory of a strided tensor on the host; types that NumPy lacks as bits."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    torch: Any = sys.modules["torch"]
    if plain.dtype == torch.bfloat16 or plain.dtype.itemsize == 1:
        plain = plain.view(torch.int16 if plain.dtype.itemsize == 2 else torch.uint8)
    return plain.numpy()


def digest_of_tensor(tensor: Any) -> bytes:
    """Digest a tensor on the host; that of a large one is remembered until a sample, or torch, shows a change."""
    version = -1 if tensor.is_inference() else tensor._version
    head = f"{tensor.dtype} {tensor.requires_grad}"
    array = array_of(tensor)
    if array.nbytes < _REMEMBERED_BYTES or version < 0:
        return joined(head, digest_of_array(array))
    state = (head, version, tensor.stride(), sample_of(array))
    known = _tensors.get(id(tensor))
    if known and known[0]() is tensor and known[1] == state:
        return known[2]
    digest = joined(head, digest_of_array(array))
    _tensors[id(tensor)] = (weakref.ref(tensor, partial(_forget, id(tensor))), state, digest)
    return digest


def _forget(key: int, _: object) -> None:
    _tensors.pop(key, None)


class _Pickler(pickle.Pickler):
    """Pickles containers in C, and asks for the digest of whatever is not plain."""

    fast = True  # no memo: equal containers have equal bytes, whatever of them is one object

    def __init__(self, file: io.BytesIO, digest_of: Callable[[Any], bytes]) -> None:
        super().__init__(file, protocol=3)
        self._digest_of = digest_of

    def reducer_override(self, obj: Any, /) -> Any:
        if isinstance(obj, type) and obj in _UNORDERED:
            raise NotPlain
        return NotImplemented if obj is bytes else (bytes, (self._digest_of(obj),))


def digest_of_container(container: Any, digest_of: Callable[[Any], bytes]) -> bytes:
    """Digest a list, tuple or dict of very many items.

    ``digest_of`` is called with each thing inside that is not a number, text, bytes or container.
    """
    file = io.BytesIO()
    try:
        pickler = _Pickler(file, digest_of)
        pickler.fast = True
        pickler.dump(container)
    except ValueError as error:
        if "cyclic" not in str(error):
            raise
        raise NotPlain from None
    return digest_of_array(np.frombuffer(file.getbuffer(), np.uint8))


def state_of(generator: Any) -> Any:
    """Return the state of a random number generator, in plain values and arrays."""
    read = getattr(generator, "getstate", None) or getattr(generator, "get_state", None)
    state: Any = read() if read else getattr(generator, "bit_generator", generator).state
    return state.numpy() if hasattr(state, "numpy") else state
