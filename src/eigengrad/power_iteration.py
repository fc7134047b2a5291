"""Plain power iteration, forward and backward: the paper's baseline PI."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import solvers
from ._inputs import check_matrix
from ._return_types import EighResult, eigh_result
from .arguments import require_integer
from .precision import full_precision, real_dtype, widen

__all__ = ["power_iteration"]


def power_iteration(A: Tensor, k: int, steps: int = 19, *, generator: torch.Generator | None = None) -> EighResult:
    """The k leading eigenpairs of a positive semi-definite matrix by power iteration with deflation.

    v ← A v/‖A v‖ from a random start, ``steps`` times; λ = vᴴ A v; A ← A − (A v) vᴴ; and again for the next.
    Automatic differentiation goes through the iterations. This is the baseline that the paper shows to fail: it has not
    converged where eigenvalues are close, and errors add up from one eigenvector to the next. For a gradient by power
    iteration at eigenvectors that are right, use :func:`eigengrad.eigh` with :class:`eigengrad.PowerIteration`.

    Args:
        A: Hermitian, (..., n, n).
        k: how many, from 1 to n.
        steps: iterations for each, at least 1.
        generator: source of the random start.

    Returns:
        ``(eigenvalues, eigenvectors)``: (..., k) and (..., n, k), the *largest first*.

    >>> import torch, eigengrad as eg
    >>> A = torch.diag(torch.tensor([1.0, 10.0]))
    >>> L, V = eg.power_iteration(A, 1, steps=50, generator=torch.Generator().manual_seed(0))
    >>> round(L.item(), 4)
    10.0
    """
    check_matrix("power_iteration", A, square=True)
    n = A.shape[-1]
    require_integer("power_iteration", "k", k, minimum=1)
    require_integer("power_iteration", "steps", steps, minimum=1)
    if k > n:
        raise ValueError(f"power_iteration: k must be at most n = {n}; got {k}")
    with full_precision(A):
        M = widen(A)
        solvers.require_finite("power_iteration", M, None)
        # Norms of very small or large matrices would leave the range of the type.
        scale = M.detach().abs().amax((-2, -1), keepdim=True)
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        M = M / scale
        values, vectors = [], []
        source: Any = (
            {} if generator is None else {"generator": generator}
        )  # compilers take no generator, not even None
        for _ in range(k):
            v = torch.randn((*M.shape[:-1], 1), dtype=M.dtype, device=M.device, **source)
            v = v / torch.linalg.vector_norm(v, dim=-2, keepdim=True)
            for _ in range(steps):
                image = M @ v
                norm = torch.linalg.vector_norm(image, dim=-2, keepdim=True)
                v = torch.where(norm > 0, image / torch.where(norm > 0, norm, torch.ones_like(norm)), v)
            image = M @ v
            values.append((v.mH @ image).real[..., 0] * scale[..., 0])
            vectors.append(v)
            M = M - image @ v.mH
        L, V = torch.cat(values, -1), torch.cat(vectors, -1)
    return eigh_result(L.to(real_dtype(A.dtype)), V.to(A.dtype))
