"""How the operations of a call are executed: at once, under a transform, for a tracer or for the compiler."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from enum import Enum

import torch
from torch import Tensor

from ._compat import (
    any_autocast_enabled,
    dispatch_modes,
    forward_mode,
    functorch_active,
    is_functional_tensor,
    is_functorch_wrapped_tensor,
    is_legacy_batchedtensor,
    jit_tracing,
    proxy_tracing,
    without_tracing,
)

__all__ = [
    "ExecutionMode",
    "can_read",
    "execution_mode",
    "forward_mode",
    "functorch_active",
    "have_values",
    "is_constant",
    "is_fast_path",
    "not_traced",
]

_PLAIN = (Tensor, torch.nn.Parameter)
_NO_CONTEXT: AbstractContextManager[None] = nullcontext()


class ExecutionMode(Enum):
    """What becomes of an operation when it is called."""

    EAGER = "eager"  #: it is computed
    FUNCTORCH = "functorch"  #: a transform of ``torch.func`` interprets it
    TRACING = "tracing"  #: ``torch.jit.trace`` or ``make_fx`` records it, and would not see kernels
    COMPILING = "compiling"  #: ``torch.compile`` or ``torch.export`` puts it into a graph
    COMPILING_FUNCTORCH = "compiling_functorch"  #: the same, inside a transform within the compiled function


def execution_mode() -> ExecutionMode:
    """The mode of the operations that are called here."""
    if torch.compiler.is_compiling():
        return ExecutionMode.COMPILING_FUNCTORCH if functorch_active() else ExecutionMode.COMPILING
    if functorch_active():
        return ExecutionMode.FUNCTORCH
    if jit_tracing() or (dispatch_modes() and proxy_tracing()):
        return ExecutionMode.TRACING
    return ExecutionMode.EAGER


def is_fast_path(A: object) -> bool:
    """Whether kernels may take ``A`` as it is: a plain tensor in main memory, and nothing but eager execution.

    That is, no autocast, forward mode, dispatch mode, transform, tracer or compiler. (0.6 µs, where asking for each by
    itself takes several.)
    """
    if (
        not torch.compiler.is_compiling()  # first: the compiler of torch 2.6 does not know is_cpu in a backward pass
        and (type(A) is Tensor or type(A) is torch.nn.Parameter)
        and A.is_cpu
        and not any_autocast_enabled()
        and not functorch_active()
        and not jit_tracing()
        and not dispatch_modes()
        and not forward_mode()
    ):
        try:
            return A.untyped_storage().data_ptr() != 0
        except RuntimeError:  # a wrapper that has outlived its transform has no storage
            return False
    return False


def can_read(*tensors: Tensor | None) -> bool:
    """Whether Python can look at the values: eager execution, and no fake or wrapper tensor. None is no obstacle."""
    return execution_mode() is ExecutionMode.EAGER and have_values(*tensors)


def have_values(*tensors: Tensor | None) -> bool:
    """:func:`can_read` for a caller who knows that execution is eager."""
    try:
        for A in tensors:
            if A is not None and (type(A) not in _PLAIN or not (A.untyped_storage().data_ptr() or _has_values(A))):
                return False
    except RuntimeError:  # one has no storage, or none in memory
        return all(A is None or (type(A) in _PLAIN and _has_values(A)) for A in tensors)
    return True


def _has_values(A: Tensor) -> bool:
    """Whether a tensor of a plain type without an address still has values: it is empty, sparse, or a zero tensor."""
    return not (
        is_legacy_batchedtensor(A)  # of autograd.grad(..., is_grads_batched=True)
        or is_functorch_wrapped_tensor(A)  # that has outlived its transform
        or A.is_meta
        or is_functional_tensor(A)
    )


def is_constant(A: Tensor) -> bool:
    """Whether nobody can ask for a derivative with respect to ``A``: then there is nothing to record."""
    return not (
        torch.compiler.is_compiling()  # first: the compiler of torch 2.6 does not know requires_grad in a backward pass
        or (A.requires_grad and torch.is_grad_enabled())
        or forward_mode()
        or functorch_active()
    )


def not_traced() -> AbstractContextManager[None]:
    """Context in which no tracer records the operations, for what is a constant to it."""
    return without_tracing() if jit_tracing() or proxy_tracing() else _NO_CONTEXT
