"""What the autograd functions share: batching for ``vmap``, the choice between two classes, gradients of gradients.

Each function comes as a pair. The first class has ``forward``, ``setup_context`` and ``backward``: all that
``torch.compile`` traces. The second adds ``jvp`` and, from :class:`Batched`, ``vmap``: forward mode and ``torch.func``
need them, and the compiler of torch 2.13 refuses them.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from ._inputs import forward_mode, transforming


class Batched(Function):
    """``vmap`` for functions that take any leading batch shape: the mapped dimension becomes the first one."""

    @classmethod
    def apply(cls, *arguments):  # type: ignore[no-untyped-def]  # as in torch, which callers are used to
        """As ``Function.apply``, with forward mode announced, whether it is at work or not.

        A compiled graph enters it without telling ``torch.autograd.forward_ad``, which ``setup_context`` goes by.
        """
        level = forward_ad._current_level
        forward_ad._current_level = max(level, 0)
        try:
            return super().apply(*arguments)  # type: ignore[no-untyped-call]
        finally:
            forward_ad._current_level = level

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


Result = TypeVar("Result")
_JVP = torch._C._functorch.TransformType.Jvp


def _forward_mode_levels() -> int:
    """How many transforms of ``torch.func`` around this call are of forward mode."""
    stack = torch._C._functorch.get_interpreter_stack() or []
    return sum(level.key() == _JVP for level in stack)


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


def while_tracing(function: Callable[[], Result]) -> Callable[[], Result]:
    """Have ``torch.compile`` call ``function`` while it traces, and take the result for a constant.

    It is ``torch.compiler.assume_constant_result``, which imports the compiler and takes as long as importing torch.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def run(traced: type[Function], eager: type[Function], *arguments: Any) -> Any:
    """Apply ``traced`` where ``torch.compile`` or ``torch.export`` looks on, ``eager`` otherwise.

    Transforms of ``torch.func`` and forward mode inside a compiled function take ``eager`` too: the compiler puts the
    call into its graph without looking into it, and what comes after, with the transform at work, finds ``jvp`` and
    ``vmap`` there. (What it makes of ``traced`` has neither, and torch 2.13 then ignores the derivative in silence.)
    """
    if transforming():
        if torch.compiler.is_dynamo_compiling():
            return _in_graph(eager, *arguments)
        if _forward_mode_levels() > 1:
            raise NotImplementedError(_NESTED_FORWARD_MODE)
        return eager.apply(*arguments)
    if torch.compiler.is_compiling():
        if not forward_mode():
            return traced.apply(*arguments)
        if not torch.compiler.is_dynamo_compiling():
            return eager.apply(*arguments)
        if not any(isinstance(x, Tensor) and forward_ad.unpack_dual(x).tangent is not None for x in arguments):
            _warn_uncompiled()
            raise NotImplementedError(_FORWARD_MODE_AROUND)
        return _in_graph(eager, *arguments)
    return bare_apply(eager)(*arguments)


def _in_graph(eager: type[Function], *arguments: Any) -> Any:
    """Apply ``eager`` as one call in the graph of the compiler, which traces this function.

    What it cannot do is an error if the graph must be whole; if not, the compiler leaves the function that it is
    compiling to Python, where all is well.
    """
    if _prepare_graph() > 1:
        raise NotImplementedError(_NESTED_FORWARD_MODE)
    for argument in arguments:
        if is_dataclass(argument) and hasattr(argument, "__post_init__"):  # made anew in the graph, with its checks
            for field in fields(argument):
                if not is_fixed(getattr(argument, field.name)):
                    _warn_uncompiled()
                    raise NotImplementedError(_SYMBOLIC_RULE)
    return eager.apply(*arguments)


def is_fixed(value: Any) -> bool:
    """Whether a value is known, and no symbol of ``torch.compile(dynamic=True)``, whose graph is for all values."""
    if not torch.compiler.is_compiling() or not isinstance(value, (int, float)):
        return True
    from torch.fx.experimental.symbolic_shapes import has_static_value  # which takes a while to import

    return has_static_value(value)


@while_tracing
def _prepare_graph() -> int:
    """Let the compiler put every :class:`Batched` function with a derivative into its graph; count forward modes.

    Those without a derivative are checks that look at the numbers, of which a graph has none.
    """
    for function in _descendants(Batched):
        if function.backward is not Function.backward:
            torch.compiler.allow_in_graph(function)
    return _forward_mode_levels()


_warned = False


@while_tracing
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
