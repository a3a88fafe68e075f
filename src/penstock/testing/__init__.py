"""Contract suites: one for each seam, for our own implementations and for plugin authors'.

Subclass a suite in a test file, say how to make the thing, and pytest runs
every test of the contract on it. They need pytest, which nothing else here does.
"""
