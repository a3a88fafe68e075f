"""Runs a script as `penstock run --share` would, in a process that has imported torch already."""

import json
import os
import runpy
import sys

import penstock

penstock.autoshare(**json.loads(os.environ.get("OPTIONS", "{}")))
if "SHORT" in os.environ:  # epochs, too, are worth a feed each
    from penstock.autosharing import guard

    guard._LEAST_STARTS = 0
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
