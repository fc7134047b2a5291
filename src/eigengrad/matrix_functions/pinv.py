"""The pseudo-inverse."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import solvers
from .._inputs import check_matrix
from ..arguments import require_non_negative
from ..precision import full_precision, widen
from .hermitian import require_hermitian

__all__ = ["pinv"]

_torch_pinv = torch.linalg.pinv  # bound once: somebody may put ours in its place


def pinv(
    A: Tensor,
    *,
    atol: float | None = None,
    rtol: float | None = None,
    hermitian: bool = False,
    check_finite: bool | None = None,
) -> Tensor:
    """Pseudo-inverse A⁺ of Moore and Penrose: :func:`torch.linalg.pinv`, whose gradient is exact already.

    Torch differentiates it by dA⁺ = −A⁺ dA A⁺ + A⁺ A⁺ᴴ dAᴴ (I − A A⁺) + (I − A⁺ A) dAᴴ A⁺ᴴ A⁺, in which no gap appears:
    right at ties and, along matrices of the same rank, at rank deficiency, to every order. What is added here is half
    precision, a scale that does not matter, and errors that name the matrix.

    Args:
        A: (..., m, n).
        atol, rtol: singular values up to max(atol, rtol · σ_max) count as zero. By default rtol is
            max(m, n) · finfo.eps, of float32 for half precision, or 0 if atol is positive.
        hermitian: A is Hermitian (refused if it is not, to √finfo.eps), and an eigendecomposition will do.
        check_finite: look for NaN and infinity first; ``None`` does so on the CPU.

    Returns:
        (..., n, m).

    >>> import torch, eigengrad as eg
    >>> eg.pinv(torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 4.0]]))
    tensor([[0.5000, 0.0000, 0.0000],
            [0.0000, 0.0000, 0.2500]])
    """
    check_matrix("pinv", A, square=hermitian)
    for argument, tolerance in (("atol", atol), ("rtol", rtol)):
        if tolerance is not None:
            require_non_negative("pinv", argument, tolerance)
    if hermitian:
        require_hermitian("pinv", A, check_finite)
    with full_precision(A):
        M = widen(A)
        solvers.require_finite("pinv", M, check_finite)
        if M.numel() == 0:
            empty: Tensor = _torch_pinv(M, hermitian=hermitian).to(A.dtype)
            return empty
        # Of A divided by its scale, a constant: the products in the derivative leave the range of the type early.
        scale = M.detach().abs().amax((-2, -1), keepdim=True)
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        relative = {} if rtol is None else {"rtol": torch.full_like(scale[..., 0, 0], rtol)}
        absolute = {} if atol is None else {"atol": atol / scale[..., 0, 0]}
        inverse: Tensor = _torch_pinv(M / scale, **absolute, **relative, hermitian=hermitian) / scale
        return inverse.to(A.dtype)
