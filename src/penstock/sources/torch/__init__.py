"""PyTorch's DataLoaders as sources."""
