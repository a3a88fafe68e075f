"""What processes and devices cost: CPU time, memory, and processes that are measured by turns."""
