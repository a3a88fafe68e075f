"""Methods that score samples, each after its paper."""
