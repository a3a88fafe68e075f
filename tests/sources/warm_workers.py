"""What workers are forked with: all that they import, and where libraries lie, which compilers are asked for."""

from __future__ import annotations

import ctypes.util
import importlib
import importlib.metadata
from contextlib import suppress
from functools import cache

MODULES = [
    *("numpy.random", "pyarrow", "pytest", "penstock.feed.launch.process", "penstock.sources.images.image_source"),
    *("penstock.sources.images.recipe", "penstock.sources.rows.recipe", "tests.sources.rows.decoding"),
]

for module in MODULES:
    importlib.import_module(module)
with suppress(ImportError):
    importlib.import_module("nvidia.nvimgcodec")
ctypes.util.find_library = cache(ctypes.util.find_library)
ctypes.util.find_library("turbojpeg")
importlib.metadata.version = cache(importlib.metadata.version)
