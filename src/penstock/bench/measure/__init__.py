"""Measures what processes and devices cost: CPU time, memory, PCIe traffic."""
