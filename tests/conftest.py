"""What every test shares: one thread, and a seeded source of randomness."""

import contextlib
import os
import signal

import pytest
import torch

from sampling import mark_the_rest_as_slow

# The first changes torch, and the second hides numba: both are for processes of their own.
collect_ignore_glob = ["helpers/second_device*", "without_numba/*"]

torch.set_num_threads(1)
os.environ.setdefault("TRITON_INTERPRET", "1")  # counts when triton is imported: its kernels then take CPU tensors
with contextlib.suppress(ValueError):  # outside the main thread
    # Started in the background, a process ignores Ctrl-C, which some tests send.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_the_rest_as_slow(items)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def dynamo():
    """A compiler without memory of other tests."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
