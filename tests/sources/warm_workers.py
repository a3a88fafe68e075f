"""What workers are forked with: all that they import, and where libraries lie, which compilers are asked for."""

from __future__ import annotations

import ctypes.util
import importlib
import importlib.metadata
import os
from contextlib import suppress
from functools import cache

MODULES = [
    *("numpy.random", "pytest", "penstock.feed.launch.process", "penstock.sources.images.image_source"),
    *("penstock.sources.images.recipe", "penstock.sources.rows.recipe", "tests.sources.rows.decoding"),
]

for module in MODULES:
    importlib.import_module(module)
with suppress(ImportError):
    stderr, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)  # it names libraries for GPUs that it does not find
    try:
        importlib.import_module("nvidia.nvimgcodec")
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nothing)
ctypes.util.find_library = cache(ctypes.util.find_library)
ctypes.util.find_library("turbojpeg")
importlib.metadata.version = cache(importlib.metadata.version)
assert len(os.listdir("/proc/self/task")) == 1, "what is forked beside another thread may find its locks taken"
