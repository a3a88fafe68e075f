"""Trains on nothing: a sample takes a known CPU time to prepare, and its step a known CPU time and a known time.

python synthetic_job.py FORM PREPARE_S OWN_S STEP_S SAMPLES EPOCHS; FORM is numpy, share, or how many workers a
DataLoader has.
"""

import sys
import time
from pathlib import Path

FORM = sys.argv[1]
PREPARE_S, OWN_S, STEP_S = map(float, sys.argv[2:5])
SAMPLES, EPOCHS = map(int, sys.argv[5:7])
BATCH = 16


def burn(seconds):
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


def prepared(i):
    burn(PREPARE_S)
    return [float(i)] * 16


def make_batches():
    import numpy as np

    class Batches:
        def __iter__(self):
            for first in range(0, SAMPLES, BATCH):
                yield np.asarray([prepared(i) for i in range(first, first + BATCH)])

    return Batches()


def make_loader(workers=2):
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Prepared(Dataset):
        def __len__(self):
            return SAMPLES

        def __getitem__(self, i):
            return torch.tensor(prepared(i))

    return DataLoader(Prepared(), batch_size=BATCH, shuffle=True, num_workers=workers)


def main():
    if FORM == "numpy":
        import penstock

        loader = penstock.share(make_batches, "synthetic", linger=0.5)
    elif FORM == "share":
        import penstock

        loader = penstock.share(make_loader, "synthetic", linger=0.5)
    else:
        loader = make_loader(int(FORM))
    for _ in range(EPOCHS):
        for batch in loader:
            burn(OWN_S * len(batch))
            time.sleep(STEP_S * len(batch))
    Path("trained").touch()


if __name__ == "__main__":
    main()
