"""Memory that is asked for before it is needed, so that arithmetic and its way to the cache overlap.

The CPU does this by itself for what is read in order; kernels do it for what they read or write in an order of their
own.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..runtime.compile import device_function
from .emit import address

__all__ = ["fetch", "fetch_to_write"]

_NUMBER = ir.IntType(32)


def _prefetching(write: int) -> Any:
    """Ask for the cache line of ``array[index]``, in order to read it soon or to write it."""

    def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = ir.IntType(8).as_pointer()
            place = builder.bitcast(address(context, builder, signature.args[0], *arguments), pointer)
            numbers = [ir.Constant(_NUMBER, number) for number in (write, 2, 1)]  # 2: into the second-level cache
            kind = ir.FunctionType(ir.VoidType(), [pointer, _NUMBER, _NUMBER, _NUMBER])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0"), [place, *numbers])
            return context.get_dummy_value()

        return types.void(array, types.intp), generate

    return intrinsic(prefetch)


_prefetch, _prefetch_to_write = _prefetching(0), _prefetching(1)


@device_function
def fetch(array: Any, begin: int, end: int) -> None:
    """Have ``array[begin:end]`` come closer, which is read soon."""
    for i in range(begin, end, 64 // array.itemsize):
        _prefetch(array, i)


@device_function
def fetch_to_write(array: Any, begin: int, end: int) -> None:
    """:func:`fetch` for what is written soon."""
    for i in range(begin, end, 64 // array.itemsize):
        _prefetch_to_write(array, i)
