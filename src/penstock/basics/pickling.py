"""Pickles functions with the names of their files, which their tracebacks show."""

# cloudpickle has no type stubs.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import io
from types import CodeType
from typing import Any

import cloudpickle

_NO_FILE = "<dynamic-code>"


class FilePickler(cloudpickle.Pickler):
    """cloudpickle's, which from 3.1.3 on leaves out in which file a function stands."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, CodeType):
            reduce: Any = cloudpickle.CloudPickler.dispatch_table[CodeType]
            make, parts = reduce(obj)
            return make, tuple(obj.co_filename if part == _NO_FILE else part for part in parts)
        return super().reducer_override(obj)

    @classmethod
    def pickled(cls, thing: Any) -> bytes:
        """Pickle one thing."""
        file = io.BytesIO()
        cls(file).dump(thing)
        return file.getvalue()
