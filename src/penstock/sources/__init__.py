"""What can be fed: torch loaders, arrays, anything that can be iterated again and again."""
