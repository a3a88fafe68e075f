"""Training runs: started together, watched, stored, compared."""
