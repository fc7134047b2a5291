"""Denormal numbers, suspended while a kernel computes: the CPU's control register says how they are treated."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .emit import INDEX, call_function
from .vectors import X86

__all__ = ["restore_denormals", "suspend_denormals"]


@intrinsic
def suspend_denormals(typing_context: Any) -> Any:
    """Treat denormal numbers, which are many times slower, as zero; gives what :func:`restore_denormals` takes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if not X86:
            return ir.Constant(INDEX, 0)
        slot = _slot(builder)
        _control_register(builder, "stmxcsr", slot)
        before = builder.load(slot)
        builder.store(builder.or_(before, ir.Constant(INDEX, 0x8040)), slot)
        _control_register(builder, "ldmxcsr", slot)
        return before

    return types.uint32(), generate


@intrinsic
def restore_denormals(typing_context: Any, before: Any) -> Any:
    """Undo :func:`suspend_denormals`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if X86:
            slot = _slot(builder)
            builder.store(arguments[0], slot)
            _control_register(builder, "ldmxcsr", slot)
        return context.get_dummy_value()

    return types.void(types.uint32), generate


def _slot(builder: Any) -> Any:
    """Room for the control register, in the frame of the function."""
    with builder.goto_entry_block():
        return builder.alloca(INDEX)


def _control_register(builder: Any, instruction: str, slot: Any) -> None:
    place = builder.bitcast(slot, ir.IntType(8).as_pointer())
    call_function(builder, f"llvm.x86.sse.{instruction}", ir.VoidType(), [place])
