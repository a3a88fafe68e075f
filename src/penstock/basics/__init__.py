"""What all rooms stand on: sizes, packages, checksums, and text on a terminal."""
