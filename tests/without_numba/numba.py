"""Stands in the place of numba on PYTHONPATH: the library must work where numba does not import."""

raise ImportError("numba is hidden by tests/without_numba")
