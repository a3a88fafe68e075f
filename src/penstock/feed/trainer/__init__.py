"""What a trainer reads a feed with."""
