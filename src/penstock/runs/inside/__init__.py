"""What of a run happens inside its script: values it logs, waits that are recorded, steps that are profiled."""
