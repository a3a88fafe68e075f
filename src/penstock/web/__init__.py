"""The page: runs and feeds in a browser, while they work."""
