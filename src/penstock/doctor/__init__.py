"""What works on this machine, and why the rest does not."""
