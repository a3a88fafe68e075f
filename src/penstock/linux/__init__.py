"""Facts of the kernel: forks, memory limits, exit statuses."""
