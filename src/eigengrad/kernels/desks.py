"""Where threads are handed kernels without Python: it would take the interpreter's lock, and a lock puts one to sleep.

A sleeping thread takes some 50 µs to wake, one that looks at its desk again and again begins at once. So a thread that
has finished stays at its desk for a while, and most calls find it there. A *desk* is a cache line of integers:

    STATE     FREE, CLAIMED by a caller who is putting a call on it, POSTED, or TAKEN by the thread that sits there
    PLACE     whether it SITS there, is GONE to sleep, so that a bell must be rung, or is CALLED already
    FUNCTION  what to call, ``void f(int64 *memory)``: see :mod:`.adapters`
    MEMORY    what with
    LOOKS     how often the thread has looked at its desk,
    SEEN      and what the last caller saw of that: if it is the same, the thread has lost its core to another

The thread sets PLACE and then looks at STATE once more; a caller posts and then looks at PLACE. Steps are in one order
for all, so one of the two sees the other, and no call is left lying.

A caller who is done before a thread came takes its call back, and need not wait for anybody who does not run.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .atomics import add, exchange_if, give_way, pause, read, write
from .compiled import compiled

__all__ = ["GONE", "post", "serve", "take_back"]

_STATE, _PLACE, _FUNCTION, _MEMORY, _LOOKS, _SEEN = range(6)
_FREE, _CLAIMED, _POSTED, _TAKEN = range(4)
_SITS, GONE, _CALLED = range(3)


@intrinsic
def _call(typing_context: Any, function: Any, memory: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)]).as_pointer()
        builder.call(builder.inttoptr(arguments[0], kind), [arguments[1]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@compiled
def serve(desk: int, patience: int, more: int) -> None:
    """Do what is posted on a desk, until nothing was for ``patience`` looks.

    And for ``more`` looks, before each of which another thread may have the core: torch's own threads also wait there.
    """
    write(desk, _PLACE, _SITS)
    looks = 0
    while True:
        add(desk, _LOOKS, 1)
        if exchange_if(desk, _STATE, _POSTED, _TAKEN):
            _call(read(desk, _FUNCTION), read(desk, _MEMORY))
            write(desk, _STATE, _FREE)
            looks = 0
        elif looks < patience + more:
            looks += 1
            if looks > patience:
                give_way()
            pause()
        else:
            write(desk, _PLACE, GONE)
            if read(desk, _STATE) != _POSTED:
                return
            write(desk, _PLACE, _SITS)


@compiled
def post(desk: int, function: int, memory: int, wake: bool, late: bool) -> int:
    """Put a call on a desk: 0 if that is of no use, 1 if a thread will see it, 2 if it must be woken.

    Args:
        wake: whether a thread should be woken for it.
        late: whether one is worth waiting for that has lost its core.
    """
    if read(desk, _PLACE) != _SITS:
        if not wake:
            return 0
    elif not late:
        looks = read(desk, _LOOKS)
        if write(desk, _SEEN, looks) == looks:
            return 0
    if not exchange_if(desk, _STATE, _FREE, _CLAIMED):
        return 0
    write(desk, _FUNCTION, function)
    write(desk, _MEMORY, memory)
    write(desk, _STATE, _POSTED)
    return 2 if exchange_if(desk, _PLACE, GONE, _CALLED) else 1


@compiled
def take_back(desk: int, memory: int, patience: int) -> bool:
    """Take a call back if it still lies on the desk; whether no thread is at it, after ``patience`` looks.

    Should it be another's by now, who posted in this moment, he does the work alone, as if nobody had come.
    """
    while read(desk, _STATE) >= _POSTED and read(desk, _MEMORY) == memory:
        if exchange_if(desk, _STATE, _POSTED, _FREE):
            return True
        if patience == 0:
            return False
        patience -= 1
        pause()
    return True
