"""The global random generators: seeding, saving and restoring them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

__all__ = ["capture", "private", "restore", "seed"]


def seed(value: int) -> None:
    """Seed Python, NumPy and torch on every device."""
    random.seed(value)
    np.random.seed(value % 2**32)  # noqa: NPY002 -- it is the global generator that is meant
    torch.manual_seed(value)


def capture() -> dict[str, Any]:
    """The state of all generators, of plain types and tensors."""
    name, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002
    return {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(np.array(keys, dtype=np.int64)), position, has_gauss, cached),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore(state: dict[str, Any]) -> None:
    """Put the generators back into a captured state."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if state["cuda"] and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])


@contextmanager
def private() -> Iterator[None]:
    """Context that restores the caller's generators at its end."""
    state = capture()
    try:
        yield
    finally:
        restore(state)
