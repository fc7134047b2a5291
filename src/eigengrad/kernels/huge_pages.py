"""Large results on huge pages.

Memory that the system hands out fresh is cleared page by page on first touch: for 32 MiB in pages of 4 KiB that takes
longer than a pass over the data. The inside of a large tensor is therefore marked for pages of 2 MiB, where Linux
offers them on request. The mark belongs to that memory alone; it goes when the tensor's memory is returned.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable

from torch import Tensor

from . import memory
from .memory import InMemory

__all__ = ["empty_like"]

_PAGE = 1 << 21
_MADV_HUGEPAGE = 14


@functools.cache
def _advise() -> Callable[[int, int, int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        madvise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    advise: Callable[[int, int, int], int] = madvise
    return advise


def empty_like(x: Tensor) -> InMemory:
    """``torch.empty_like(x)``, on huge pages where that is worth it and possible; a refusal does no harm."""
    y = memory.empty_like(x)
    size = y.numel() * y.element_size()
    if size >= 2 * _PAGE:
        madvise = _advise()
        if madvise is not None:
            place = memory.address(y)
            first = -(-place // _PAGE) * _PAGE
            madvise(first, (place + size - first) // _PAGE * _PAGE, _MADV_HUGEPAGE)
    return y
