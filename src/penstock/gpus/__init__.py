"""What NVML, and its performance monitoring, reports of a GPU."""
