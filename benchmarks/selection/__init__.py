"""Whether selecting pays, on pools made from CIFAR-10: ``penstock select bench noisy.yaml``."""
