"""The process that runs a source and fills the ring."""
