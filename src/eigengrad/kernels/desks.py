"""Where threads are handed kernels without Python: it would take the interpreter's lock, and a lock puts one to sleep.

A sleeping thread takes some 50 µs to wake, one that looks at its desk again and again begins at once. So a thread that
has finished stays at its desk for a while, and most calls find it there. A *desk* is a cache line of integers:

    STATE     FREE, CLAIMED by a caller who is putting a call on it, POSTED, or TAKEN by the thread that sits there
    ASLEEP    whether nobody sits there, so that a bell must be rung
    FUNCTION  what to call, ``void f(int64 *memory)``: see :mod:`.adapters`
    MEMORY    what with

The thread sets ASLEEP and then looks at STATE once more; a caller posts and then looks at ASLEEP. Steps are in one
order for all, so one of the two sees the other, and no call is left lying.

A caller who is done before a thread came takes its call back, and need not wait for anybody who does not run.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .atomics import exchange_if, give_way, pause, read, write
from .compiled import compiled

__all__ = ["post", "serve", "take_back"]

_STATE, _ASLEEP, _FUNCTION, _MEMORY = range(4)
_FREE, _CLAIMED, _POSTED, _TAKEN = range(4)


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
    write(desk, _ASLEEP, 0)
    looks = 0
    while True:
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
            write(desk, _ASLEEP, 1)
            if read(desk, _STATE) != _POSTED:
                return
            write(desk, _ASLEEP, 0)


@compiled
def post(desk: int, function: int, memory: int, wake: bool) -> int:
    """Put a call on a desk: 0 if it is not free, 1 if a thread sits there, 2 if it must be woken.

    If it need not be woken for this, such a desk is none.
    """
    if (read(desk, _ASLEEP) and not wake) or not exchange_if(desk, _STATE, _FREE, _CLAIMED):
        return 0
    write(desk, _FUNCTION, function)
    write(desk, _MEMORY, memory)
    write(desk, _STATE, _POSTED)
    return 1 + read(desk, _ASLEEP)


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
