"""A script whose data change, and change back after their feed has ended. Prints the order of each epoch."""

import json

import torch
from torch.utils.data import DataLoader, TensorDataset

import penstock

data = TensorDataset(torch.arange(20))
loader = DataLoader(data, 4, shuffle=True)
orders = []
for scale in (1, 2, 1):
    data.scale = scale
    orders.append([i for (batch,) in loader for i in batch.tolist()])
    for feed in penstock.feeds():
        penstock.stop(feed.name)
print(json.dumps(orders))
