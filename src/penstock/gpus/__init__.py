"""What a GPU says of itself, by NVML and its performance monitoring."""
