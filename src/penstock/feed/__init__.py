"""One feed: the feeder that fills the ring, the loaders that read it, and their messages."""
