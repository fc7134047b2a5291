"""Functions of feature maps with a fused forward and backward pass, composed where more than that is asked for.

A fused pass reads a map once and keeps little, but it has only a first derivative, on numbers that are at hand. Where
a second derivative, forward mode, a transform, the compiler or inference mode is at work, or kernels fail to load, the
same function is composed of differentiable operations.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .._compat import direct_apply
from .._execution import can_read, forward_mode
from .._saved import saved
from .._transforms import differentiable_gradients
from ..kernels import KernelsUnavailableError
from ..precision import full_precision

__all__ = ["FusedFunction"]


class FusedFunction(Function):
    """An autograd function with these methods. Its first output is the result; others are constants.

    fused_forward(ctx, *arguments)
        the outputs; what the gradients need is saved by :func:`eigengrad._saved.save`, and kept on ``ctx``;
    fused_gradients(ctx, tensors, gy)
        the gradients of the leading arguments, from what was saved, (None for those that need none);
    composed(*arguments)
        the outputs in differentiable operations;
    leading(ctx, tensors)
        the leading arguments, which have gradients, and the others, from what was saved.
    """

    @classmethod
    def run(cls, arguments: tuple[Any, ...], read: tuple[Tensor | None, ...]) -> Any:
        """The outputs for ``arguments``, fused if the tensors that are ``read`` can be and nobody asks for more."""
        if can_read(*read) and not forward_mode() and not torch.is_inference_mode_enabled():
            with contextlib.suppress(KernelsUnavailableError):
                return direct_apply(cls)(*arguments)
        return cls.composed(*arguments)

    @classmethod
    def forward(cls, ctx: Any, *arguments: Any) -> Any:
        """Run the fused forward pass."""
        ctx.set_materialize_grads(False)
        outputs = cls.fused_forward(ctx, *arguments)
        if isinstance(outputs, tuple):
            ctx.mark_non_differentiable(*(x for x in outputs[1:] if isinstance(x, Tensor)))
        return outputs

    @classmethod
    def backward(cls, ctx: Any, gy: Tensor | None, *_: None) -> Any:
        """Run the fused backward pass, or differentiate the composition."""
        if gy is None:
            return (None,) * len(ctx.needs_input_grad)
        tensors = saved(ctx)
        with full_precision(gy):
            found = None
            if not (torch.is_grad_enabled() or forward_mode()) and can_read(gy, *tensors):
                with contextlib.suppress(KernelsUnavailableError):
                    found = cls.fused_gradients(ctx, tensors, gy)
            if found is None:
                leading, others = cls.leading(ctx, tensors)

                def compose(*given: Any) -> Any:
                    outputs = cls.composed(*given, *others)
                    return outputs[0] if isinstance(outputs, tuple) else outputs

                found = differentiable_gradients(compose, leading, ctx.needs_input_grad[: len(leading)], gy)
        return (*found, *(None,) * (len(ctx.needs_input_grad) - len(found)))

    @staticmethod
    def fused_forward(ctx: Any, *arguments: Any) -> Any:
        """Compute the outputs."""
        raise NotImplementedError

    @staticmethod
    def fused_gradients(ctx: Any, tensors: tuple[Any, ...], gy: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of the leading arguments."""
        raise NotImplementedError

    @staticmethod
    def composed(*arguments: Any) -> Any:
        """Compute the outputs in differentiable operations."""
        raise NotImplementedError

    @staticmethod
    def leading(ctx: Any, tensors: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return the arguments that have gradients, and the others."""
        raise NotImplementedError
