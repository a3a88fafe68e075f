"""Pushes runs from the store to an MLflow server: whatever becomes of the server, the store stays as it is."""
