"""Trains as minGPT and makemore do, from a sampler that never ends; once a file is there, 400 samples more."""

import json
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

data = TensorDataset(torch.arange(50))
sampler = RandomSampler(data, replacement=True, num_samples=int(1e10))
loader = DataLoader(data, sampler=sampler, shuffle=False, batch_size=int(sys.argv[1]))
batches = iter(loader)
seen: list[int] = []
left = 400
while left > 0:
    (batch,) = next(batches)
    seen += batch.tolist()
    left -= len(batch) if Path(sys.argv[2]).exists() else 0
    time.sleep(0.005)
    if len(seen) > 50:
        Path(f"reads-{sys.argv[1]}").touch()
print(json.dumps(seen), flush=True)
