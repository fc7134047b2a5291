"""What the autograd functions share: batching for ``vmap`` and the choice between two classes.

Each function comes as a pair. The first class has ``forward``, ``setup_context`` and ``backward``: all that
``torch.compile`` traces. The second adds ``jvp`` and, from :class:`Batched`, ``vmap``: forward mode and ``torch.func``
need them, and the compiler of torch 2.13 refuses them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ._inputs import transforming


class Batched(Function):
    """``vmap`` for functions that take any leading batch shape: the mapped dimension becomes the first one."""

    @classmethod
    def apply(cls, *arguments: Any) -> Any:
        """As ``Function.apply``, without its ten microseconds of binding arguments where no transform needs them."""
        return super(Batched if transforming() else Function, cls).apply(*arguments)  # type: ignore[misc]

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
        return cls.apply(*batched), 0


def select(traced: type[Function], eager: type[Function]) -> type[Function]:
    """``traced`` under ``torch.compile`` and ``torch.export``, ``eager`` otherwise."""
    return traced if torch.compiler.is_compiling() else eager
