"""A cache of samples, in a folder or in memory, which never drops one of them to make room for another."""
