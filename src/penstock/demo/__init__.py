"""The demo: the same trainings, each with a DataLoader of its own and then all from one feed, side by side."""
