"""Memory that is asked for before it is needed, so that arithmetic and its way to the cache overlap.

The CPU does this by itself for what is read in order; kernels do it for what they read in an order of their own.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..runtime.compile import device_function
from .emit import INDEX, address, call_function

__all__ = ["fetch"]


@intrinsic
def _prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of ``array[index]``, in order to read it soon."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        place = builder.bitcast(address(context, builder, signature.args[0], *arguments), pointer)
        options = [ir.Constant(INDEX, number) for number in (0, 2, 1)]  # to read, into the second-level cache, data
        call_function(builder, "llvm.prefetch.p0", ir.VoidType(), [place, *options])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@device_function
def fetch(array: Any, begin: int, end: int) -> None:
    """Have ``array[begin:end]`` come closer, which is read soon."""
    for i in range(begin, end, 64 // array.itemsize):
        _prefetch(array, i)
