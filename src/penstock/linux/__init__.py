"""Facts of the kernel: what forks, limits, and how processes end."""
