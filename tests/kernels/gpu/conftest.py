"""Kernels in Triton need the version that the extra ``gpu`` asks for; that of torch 2.6 is older."""

import importlib.util

if importlib.util.find_spec("triton") is not None:
    import triton

    if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 4):
        collect_ignore_glob = ["test_*.py"]
