"""Train a line with fastai, whose loaders are none of torch's."""

import torch
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner

x = torch.arange(48.0)[:, None] / 48
rows = [(x[i], x[i].cos()) for i in range(48)]
loaders = DataLoaders(DataLoader(rows, bs=8, shuffle=True), DataLoader(rows[:8], bs=4))
learner = Learner(loaders, torch.nn.Linear(1, 1), loss_func=torch.nn.functional.mse_loss)
learner.fit(2, 0.1)
print(f"steps: {learner.train_iter}")
