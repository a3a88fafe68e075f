"""Which loader of images is the fastest on this machine, for one training."""
