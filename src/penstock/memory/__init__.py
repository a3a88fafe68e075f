"""Bytes that several processes see, and the arithmetic of who may reuse which."""
