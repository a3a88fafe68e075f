"""Readers: mechanisms that move bytes from storage into memory."""
