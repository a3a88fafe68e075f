"""Watches a script's loaders, as `penstock run` has them hooked, in a process that has imported torch already."""

import runpy
import sys
import warnings

from torch.utils.data import DataLoader

from penstock.runs.inside import watch

warnings.simplefilter("default")
watch.hooked(DataLoader)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
