"""What the autograd functions share: batching for ``vmap``, a twin for the compiler, gradients of gradients.

A function is one class with ``forward``, ``setup_context``, ``backward`` and ``jvp``, derived from :class:`Batched`.
Forward mode and ``torch.func`` need ``jvp`` and ``vmap``, which the compiler of torch 2.13 refuses. So
:class:`Differentiable` makes a twin without them, and chooses one of the two in each call.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from ._compat import (
    announce_forward_mode,
    as_trace_constant,
    direct_apply,
    forward_mode_levels,
    has_static_value,
    restore_forward_mode,
)
from ._execution import forward_mode, functorch_active

__all__ = ["Batched", "Differentiable", "differentiable_gradients", "is_fixed", "no_gradient"]


class Batched(Function):
    """``vmap`` for functions that take any leading batch shape: the mapped dimension becomes the first one."""

    @classmethod
    def apply(cls, *arguments):  # type: ignore[no-untyped-def]  # as in torch, which callers are used to
        """As ``Function.apply``, with forward mode announced, whether it is at work or not.

        A compiled graph enters it without telling ``torch.autograd.forward_ad``, which ``setup_context`` goes by.
        """
        level = announce_forward_mode()
        try:  # not a context manager: the compiler fails in the middle of one
            return super().apply(*arguments)  # type: ignore[no-untyped-call]
        finally:
            restore_forward_mode(level)

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> Any:
        """Bring the mapped dimension of every tensor to the front; expand those that are not mapped."""
        batched = []
        for argument, dim in zip(arguments, in_dims, strict=True):
            if not isinstance(argument, Tensor):
                batched.append(argument)
            elif dim is None:
                batched.append(argument.expand(info.batch_size, *argument.shape))
            else:
                batched.append(argument.movedim(dim, 0))
        return cls.apply(*batched), 0  # type: ignore[no-untyped-call]


#: In torch 2.13 forward mode within forward mode is silently wrong for every autograd function.
_NESTED_FORWARD_MODE = (
    "forward mode within forward mode (jacfwd of jacfwd, jvp of jvp) is not right in torch for custom "
    "derivatives (pytorch issue 197867); use reverse mode for one of the two, as torch.func.hessian does"
)


#: The compiler traces without the tangents, and what it makes of a custom derivative would lose them when it runs.
_FORWARD_MODE_AROUND = (
    "forward mode around torch.compile(fullgraph=True) is not right in torch for custom derivatives; enter it inside "
    "the compiled function, or leave out fullgraph=True: then this part runs uncompiled"
)


_SYMBOLIC_RULE = (
    "a gradient rule inside torch.func and torch.compile(fullgraph=True) needs parameters that are constants; make it "
    "outside the compiled function, or pass dynamic=False"
)


class Differentiable:
    """An autograd function to call: its class, or for the compiler a twin without ``jvp`` and ``vmap``.

    Transforms of ``torch.func`` and forward mode inside a compiled function take the class too: the compiler puts the
    call into its graph without looking into it, and what comes after, with the transform at work, finds ``jvp`` and
    ``vmap`` there. (What it makes of the twin has neither, and torch 2.13 then ignores the derivative in silence.)
    """

    def __init__(self, function: type[Batched]) -> None:
        methods = {name: vars(function)[name] for name in ("forward", "setup_context", "backward")}
        self.eager = function
        self.traced: Any = types.new_class(
            f"{function.__name__}Traced", (Function,), exec_body=lambda names: names.update(methods)
        )

    def __call__(self, *arguments: Any) -> Any:
        """The outputs of the function."""
        # Not by execution_mode(): where this frame runs uncompiled, the compiler may still take that one, and it would
        # then say that it is being compiled.
        if functorch_active():
            if torch.compiler.is_dynamo_compiling():
                return _in_graph(self.eager, *arguments)
            if forward_mode_levels() > 1:
                raise NotImplementedError(_NESTED_FORWARD_MODE)
            return self.eager.apply(*arguments)  # type: ignore[no-untyped-call]
        if torch.compiler.is_compiling():
            if not forward_mode():
                return self.traced.apply(*arguments)
            if not torch.compiler.is_dynamo_compiling():
                return self.eager.apply(*arguments)  # type: ignore[no-untyped-call]
            if not any(isinstance(x, Tensor) and forward_ad.unpack_dual(x).tangent is not None for x in arguments):
                _warn_uncompiled()
                raise NotImplementedError(_FORWARD_MODE_AROUND)
            return _in_graph(self.eager, *arguments)
        return direct_apply(self.eager)(*arguments)


def _in_graph(eager: type[Batched], *arguments: Any) -> Any:
    """Apply ``eager`` as one call in the graph of the compiler, which traces this function.

    What it cannot do is an error if the graph must be whole; if not, the compiler leaves the function that it is
    compiling to Python, where all is well.
    """
    if _prepare_graph() > 1:
        raise NotImplementedError(_NESTED_FORWARD_MODE)
    for argument in arguments:
        # A dataclass with checks, made anew in the graph. (The compiler of torch 2.6 does not know is_dataclass.)
        if hasattr(argument, "__dataclass_fields__") and hasattr(argument, "__post_init__"):
            for field in fields(argument):
                if not is_fixed(getattr(argument, field.name)):
                    _warn_uncompiled()
                    raise NotImplementedError(_SYMBOLIC_RULE)
    return eager.apply(*arguments)  # type: ignore[no-untyped-call]


def is_fixed(value: Any) -> bool:
    """Whether a value is known, and no symbol of ``torch.compile(dynamic=True)``, whose graph is for all values."""
    if not torch.compiler.is_compiling() or not isinstance(value, (int, float)):
        return True
    return has_static_value(value)


@as_trace_constant
def _prepare_graph() -> int:
    """Let the compiler put every :class:`Batched` function with a derivative into its graph; count forward modes.

    Those without a derivative are checks that look at the numbers, of which a graph has none.
    """
    for function in _descendants(Batched):
        if function.backward is not Function.backward:
            torch.compiler.allow_in_graph(function)
    return forward_mode_levels()


_warned = False


@as_trace_constant
def _warn_uncompiled() -> None:
    """Warn, once in a process, that the compiler leaves something to Python."""
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            "torch.compile leaves a function with a derivative of eigengrad to Python, which is right, but slower; "
            "with fullgraph=True it says why",
            stacklevel=2,
        )


def _descendants(parent: type[Function]) -> Iterator[type[Function]]:
    for child in parent.__subclasses__():
        yield child
        yield from _descendants(child)


def differentiable_gradients(
    function: Callable[..., Tensor], given: tuple[Any, ...], needed: tuple[bool, ...], incoming: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients of a composition of torch operations, themselves differentiable where that is asked for.

    What a backward pass returns when it is to be differentiated again: its function is composed anew.
    """
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        output = function(*given)
    wanted = [t for t, need in zip(given, needed, strict=True) if need and isinstance(t, Tensor)]
    found = iter(torch.autograd.grad(output, wanted, incoming, create_graph=create_graph))
    return tuple(next(found) if need else None for need in needed)


def no_gradient(*tensors: Tensor) -> Tensor:
    """Zeros like the first, which do not depend on any of the tensors, but can be differentiated by them."""
    zeros = torch.zeros_like(tensors[0])
    return torch.where(torch.zeros_like(zeros, dtype=torch.bool), sum(tensors, zeros), zeros)
