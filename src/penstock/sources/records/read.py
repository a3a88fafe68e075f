"""Reads what a record is made of."""

from __future__ import annotations

import os

from penstock.contracts import Place
from penstock.errors import ReadFailed


def read(place: Place) -> bytes:
    """Return the bytes of a place.

    Raises:
        ReadFailed: they cannot be read, or the file ended too early.
    """
    path, offset, nbytes, _ = place
    try:
        with open(path, "rb", buffering=0) as file:
            if nbytes is None:
                return file.read()
            data = os.pread(file.fileno(), nbytes, offset)
    except OSError as error:
        raise ReadFailed(f"{path} cannot be read: {error.strerror}", path, offset, error.errno or 0) from None
    if len(data) < nbytes:
        raise ReadFailed(f"{path} ended {nbytes - len(data):,} bytes too early", path, offset)
    return data
