"""Reads two epochs of selected samples through a loader that Accelerate has prepared, and says which ids came."""

import os

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import penstock

accelerator = Accelerator(cpu=True)
sampler = penstock.SelectionSampler(range(40, 80), seed=1)
loader = accelerator.prepare(DataLoader(TensorDataset(torch.arange(100)), batch_size=4, sampler=sampler))
for epoch in range(2):
    ids = [str(int(id)) for (batch,) in loader for id in batch]
    os.write(1, f"ids {epoch} {' '.join(ids)}\n".encode())  # a line at once: ranks share the output
