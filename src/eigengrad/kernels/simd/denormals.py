"""Denormal numbers, suspended while a kernel computes: the CPU's control register says how they are treated."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .emit import INDEX
from .vectors import X86

__all__ = ["restore_denormals", "suspend_denormals"]


@intrinsic
def suspend_denormals(typing_context: Any) -> Any:
    """Treat denormal numbers, which are many times slower, as zero; gives what :func:`restore_denormals` takes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if not X86:
            return ir.Constant(INDEX, 0)
        slot = cgutils.alloca_once(builder, INDEX)
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
            slot = cgutils.alloca_once(builder, INDEX)
            builder.store(arguments[0], slot)
            _control_register(builder, "ldmxcsr", slot)
        return context.get_dummy_value()

    return types.void(types.uint32), generate


def _control_register(builder: Any, instruction: str, slot: Any) -> None:
    bytes_pointer = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [bytes_pointer])
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.sse.{instruction}")
    builder.call(function, [builder.bitcast(slot, bytes_pointer)])
