"""Private names of torch, and what depends on its version: everything else in the library uses public API.

Each entry says why the public API does not do. What a version may lack is looked up by presence. The oldest torch that
is supported is 2.6; ``benchmarks/results/versions.md`` lists the versions that are tested.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._C._functorch import (
    TransformType,
    get_interpreter_stack,
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    is_legacy_batchedtensor,
)
from torch.autograd import Function, forward_ad
from torch.utils._python_dispatch import _disable_current_modes

__all__ = [
    "SAVED_TENSORS_NEED_ALIASES",
    "announce_forward_mode",
    "any_autocast_enabled",
    "as_trace_constant",
    "direct_apply",
    "dispatch_modes",
    "forward_mode",
    "forward_mode_levels",
    "functorch_active",
    "get_unwrapped",
    "has_static_value",
    "is_batchedtensor",
    "is_exporting",
    "is_functional_tensor",
    "is_functorch_wrapped_tensor",
    "is_legacy_batchedtensor",
    "is_zero_tensor",
    "jit_tracing",
    "proxy_tracing",
    "restore_forward_mode",
    "saved_tensors_hooks_active",
    "version",
    "without_dispatch_modes",
    "without_tracing",
]

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# Execution modes ------------------------------------------------------------------------------------------------------
# torch.compiler.is_compiling() is public; whether torch.func, torch.jit.trace or make_fx is at work is not.

#: Whether a transform of ``torch.func`` is at work.
functorch_active: Callable[[], bool] = torch._C._are_functorch_transforms_active
#: Whether ``torch.jit.trace`` is at work.
jit_tracing: Callable[[], bool] = torch._C._is_tracing
#: How many ``TorchDispatchMode`` contexts are open.
dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
#: Context in which no ``TorchDispatchMode`` sees the operations: a constant that outlives them is made in it.
without_dispatch_modes = _disable_current_modes
#: Whether autocast is on for any device, in half the time of asking for one of them by name.
any_autocast_enabled: Callable[[], bool] = torch._C._is_any_autocast_enabled

_PROXY = torch._C._TorchDispatchModeKey.PROXY


def proxy_tracing() -> bool:
    """Whether ``make_fx`` records the operations."""
    return dispatch_modes() > 0 and torch._C._get_dispatch_mode(_PROXY) is not None


@contextmanager
def without_tracing() -> Iterator[None]:
    """Context in which ``torch.jit.trace`` and dispatch modes do not see the operations: no public one pauses them."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    try:
        with _disable_current_modes():
            yield
    finally:
        torch._C._set_tracing_state(state)  # type: ignore[attr-defined]


def _is_exporting() -> bool:
    """Whether ``torch.export.export(strict=False)`` is at work: with ``strict=True`` it looks like a compilation."""
    return torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()


#: ``torch.compiler.is_exporting``, which torch 2.6 does not have.
is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", _is_exporting)


def as_trace_constant(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Have ``torch.compile`` call ``function`` while it traces, and take the result for a constant.

    It is ``torch.compiler.assume_constant_result``, which imports the compiler and takes as long as importing torch.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def has_static_value(value: float) -> bool:
    """Whether a number is known, and no symbol of ``torch.compile(dynamic=True)``."""
    from torch.fx.experimental import symbolic_shapes  # which takes a while to import

    if hasattr(symbolic_shapes, "has_static_value"):  # from torch 2.7 on
        return bool(symbolic_shapes.has_static_value(value))
    return not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


# Tensors --------------------------------------------------------------------------------------------------------------

#: Whether a tensor is a wrapper of functionalisation, whose numbers are elsewhere.
is_functional_tensor: Callable[[Tensor], bool] = torch._is_functional_tensor
#: Whether a tensor stands for zeros without memory, as autograd makes them.
is_zero_tensor: Callable[[Tensor], bool] = Tensor._is_zerotensor


def version(x: Tensor) -> int:
    """How often a tensor was written to; −1 for one of inference mode, which does not count."""
    return -1 if x.is_inference() else x._version


# Autograd -------------------------------------------------------------------------------------------------------------


def forward_mode() -> bool:
    """Whether a level of forward mode is open: torch keeps the number to itself."""
    return forward_ad._current_level >= 0


def announce_forward_mode() -> int:
    """Make :func:`forward_mode` hold; what :func:`restore_forward_mode` takes.

    A compiled graph enters forward mode without telling ``torch.autograd.forward_ad``.
    """
    level = forward_ad._current_level
    forward_ad._current_level = max(level, 0)
    return level


def restore_forward_mode(level: int) -> None:
    """Undo :func:`announce_forward_mode`."""
    forward_ad._current_level = level


def forward_mode_levels() -> int:
    """How many transforms of ``torch.func`` around this call are of forward mode.

    Two of them are silently wrong for every autograd function (pytorch issue 197867).
    """
    return sum(level.key() == TransformType.Jvp for level in get_interpreter_stack() or [])


@functools.cache
def direct_apply(function: type[Function]) -> Callable[..., Any]:
    """What ``Function.apply`` ends in when no transform is at work, without its ten microseconds of binding arguments.

    ``Function.apply`` calls ``inspect.signature`` for every function with ``setup_context``.
    """
    apply: Callable[..., Any] = super(Function, function).apply  # type: ignore[misc]
    return apply


_top_hooks: Callable[[bool], Any] | None = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)


def saved_tensors_hooks_active() -> bool:
    """Whether ``torch.autograd.graph.saved_tensors_hooks`` is at work; torch 2.6 does not tell, so it may be."""
    return _top_hooks is None or _top_hooks(True) is not None


#: Whether a compiled backward pass has to take its saved tensors by an operation of its own.
#:
#: The compiler of torch 2.6 puts an attribute of a saved tensor, such as ``x.mH``, in the graph of the forward pass,
#: and hands it over under a name that another one may have in the backward pass: gradients are then those of other
#: tensors, in silence. What an operation returns has its attributes in the backward pass. Torch 2.13 does not need it.
SAVED_TENSORS_NEED_ALIASES = tuple(int(x) for x in torch.__version__.split(".")[:2]) < (2, 13)
