"""Stands for a process that uses a GPU: ``client.py FILE [outside] [deaf]`` uses it until FILE is there.

It is a client of the MPS daemon whose pipe directory it is given. Where there is none, or if told ``outside``, it
uses the GPU without; as CUDA does, it says nothing of that. NVML lists it. ``deaf``: it ignores SIGTERM.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

from tests.fakes.nvml.fake_gpus import FOLDER, edited

pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or f"{os.environ['FAKE_MPS']}/nvidia-mps"
daemon = socket.socket(socket.AF_UNIX)
said = b""
if "outside" not in sys.argv:
    with suppress(OSError):
        daemon.connect(f"{pipes}/control")
        daemon.sendall(b"client\n")
        said = daemon.recv(7)
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with edited(Path(os.environ[FOLDER])) as state:
    for gpu in state["gpus"]:
        if gpu["uuid"] in os.environ["CUDA_VISIBLE_DEVICES"]:
            gpu["processes"].append([os.getpid(), 1 << 20])
shown = {name: value for name, value in os.environ.items() if name.startswith("CUDA_")}
print(json.dumps({"served": said == b"served\n", **shown}), flush=True)
while not os.path.exists(sys.argv[1]):
    if said and select.select([daemon], [], [], 0.05)[0]:
        print("my contexts were ended", daemon.recv(100), flush=True)
        daemon.sendall(b"ended\n")
        said = b""
    select.select([], [], [], 0.05)
