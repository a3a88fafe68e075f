"""What all rooms stand on: sizes, packages, checksums, and what is said on a terminal."""
