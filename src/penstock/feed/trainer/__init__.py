"""What a training process reads a feed with."""
