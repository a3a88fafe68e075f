"""How the runs of a group share GPUs: one after the other, in time slices, under MPS, or in MIG instances."""
