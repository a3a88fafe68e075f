"""Training runs: started together, watched, kept in a store, compared."""
