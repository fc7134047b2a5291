"""A small graph that a layer records in its forward pass and walks in its backward pass."""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

__all__ = ["inner_graph"]


def inner_graph() -> AbstractContextManager[None]:
    """Context to record such a graph in: what it saves stays, whatever hooks the user has set.

    A checkpoint around the layer must not recompute it, for it would not find it. Tensors are saved detached: an output
    that a hook hands back as it came holds the node that saves it, and neither would ever be freed.
    """
    return saved_tensors_hooks(Tensor.detach, Tensor.detach)
