"""Contract suites, one for each seam, for our implementations and plugin authors'.

Subclass a suite in a test file, define how to make the thing, and pytest runs
every test of the contract on it. Only these modules need pytest.
"""
