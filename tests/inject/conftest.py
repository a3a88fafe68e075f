from tests.runs.conftest import launch as launch
