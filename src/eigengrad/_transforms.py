"""What the autograd functions share: batching for ``vmap``, the choice between two classes, gradients of gradients.

Each function comes as a pair. The first class has ``forward``, ``setup_context`` and ``backward``: all that
``torch.compile`` traces. The second adds ``jvp`` and, from :class:`Batched`, ``vmap``: forward mode and ``torch.func``
need them, and the compiler of torch 2.13 refuses them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ._inputs import forward_mode, transforming


class Batched(Function):
    """``vmap`` for functions that take any leading batch shape: the mapped dimension becomes the first one."""

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


def _refuse_nested_forward_mode() -> None:
    """In torch 2.13 forward mode within forward mode is silently wrong for every autograd function."""
    stack = torch._C._functorch.get_interpreter_stack() or []
    if sum(level.key() == torch._C._functorch.TransformType.Jvp for level in stack) > 1:
        raise NotImplementedError(
            "forward mode within forward mode (jacfwd of jacfwd, jvp of jvp) is not right in torch for custom "
            "derivatives (pytorch issue 197867); use reverse mode for one of the two, as torch.func.hessian does"
        )


#: What torch 2.13 would do with a derivative of ours there is to ignore it, and differentiate the forward pass.
_TRANSFORM_IN_COMPILE = (
    "torch.func inside torch.compile is not right in torch for custom derivatives; leave one of the two out, or, for "
    "vmap without derivatives, compile it under torch.no_grad()"
)


def run(traced: type[Function], eager: type[Function], *arguments: Any) -> Any:
    """Apply ``traced`` under ``torch.compile`` and ``torch.export``, ``eager`` otherwise."""
    if torch.compiler.is_compiling():
        if transforming() and (torch.is_grad_enabled() or forward_mode()):
            raise NotImplementedError(_TRANSFORM_IN_COMPILE)
        return traced.apply(*arguments)
    if transforming():
        _refuse_nested_forward_mode()
        return eager.apply(*arguments)
    return bare_apply(eager)(*arguments)


@functools.cache
def bare_apply(function: type[Function]) -> Callable[..., Any]:
    """What Function.apply ends in when no transform is at work, without its ten microseconds of binding arguments."""
    bare: Callable[..., Any] = super(Function, function).apply  # type: ignore[misc]
    return bare


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
