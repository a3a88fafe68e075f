"""Pickles what is fed, for another process: arrays that map a file travel as their place in it."""

# cloudpickle has no type stubs.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import Any, cast

import numpy as np

from penstock.basics.pickling import FilePickler
from penstock.fingerprint.content import PlaceInFile, place_in_file


class SourcePickler(FilePickler):
    """Pickles a source, or the function that makes it."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, np.ndarray) and (place := place_in_file(cast("np.ndarray[Any, Any]", obj))):
            return _mapped, (place, obj.dtype, obj.shape, obj.strides)
        return super().reducer_override(obj)


def _mapped(place: PlaceInFile, dtype: Any, shape: Any, strides: Any) -> Any:
    memory: Any = np.memmap(place.path, np.uint8, cast("Any", place.mode))
    return np.ndarray(shape, dtype, memory, place.offset, strides)
