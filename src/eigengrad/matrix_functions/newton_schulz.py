"""Square roots by coupled Newton–Schulz iterations: the baselines iSQRT-COV and IterNorm."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import solvers
from .._inputs import check_matrix
from ..arguments import require_integer, require_non_negative
from ..errors import unknown_choice
from ..matmul import precise_matmul
from ..precision import full_precision, widen

__all__ = ["newton_schulz_inv_sqrt", "newton_schulz_sqrt"]


def newton_schulz_sqrt(A: Tensor, steps: int = 5, *, normalize: str = "trace", eps: float = 0.0) -> Tensor:
    """Approximate square root of a positive semi-definite matrix: iSQRT-COV.

    From Y₀ = A/c, Z₀ = I, with T = ½ (3 I − Z Y): Y ← Y T, Z ← T Z; then A^½ ≈ √c Y. Products only, differentiated
    through its iterations, hence twice and in every mode. It converges when all eigenvalues of A/c are in (0, 2), but
    slowly where they are small: five steps leave large errors at condition numbers of 100 and more, which
    :func:`matrix_sqrt` does not.

    Args:
        A: (..., n, n).
        steps: iterations, at least 1; the paper of iSQRT-COV uses 5.
        normalize: c, for each matrix its own: "trace" or "frobenius" norm.
        eps: added to the diagonal.

    Returns:
        (..., n, n).

    >>> import torch, eigengrad as eg
    >>> A = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    >>> S = eg.newton_schulz_sqrt(A, steps=10)
    >>> torch.allclose(S @ S, A, atol=1e-5)
    True
    """
    Y, _, c, dtype = _iterate("newton_schulz_sqrt", A, steps, normalize, eps)
    return (Y * torch.sqrt(c)).to(dtype)


def newton_schulz_inv_sqrt(A: Tensor, steps: int = 5, *, normalize: str = "trace", eps: float = 0.0) -> Tensor:
    """Approximate inverse square root of a positive definite matrix: IterNorm's whitening matrix.

    The iteration of :func:`newton_schulz_sqrt`; A^(−½) ≈ Z/√c. Arguments as there.

    >>> import torch, eigengrad as eg
    >>> A = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    >>> W = eg.newton_schulz_inv_sqrt(A, steps=10)
    >>> torch.allclose(W @ A @ W, torch.eye(2), atol=1e-5)
    True
    """
    _, Z, c, dtype = _iterate("newton_schulz_inv_sqrt", A, steps, normalize, eps)
    return (Z * torch.rsqrt(c)).to(dtype)


def _iterate(
    name: str, A: Tensor, steps: int, normalize: str, eps: float
) -> tuple[Tensor, Tensor, Tensor, torch.dtype]:
    check_matrix(name, A, square=True)
    require_integer(name, "steps", steps, minimum=1)
    require_non_negative(name, "eps", eps)
    if normalize not in ("trace", "frobenius"):
        raise unknown_choice("normalize", normalize, ("trace", "frobenius"))
    with full_precision(A):
        M = widen(A)
        solvers.require_finite(name, M, None)
        identity = torch.eye(M.shape[-1], dtype=M.dtype, device=M.device)
        if eps:
            M = M + eps * identity
        c = _trace(M) if normalize == "trace" else _frobenius(M)
        c = torch.where(c == 0, torch.ones_like(c), c)
        Y, Z = M / c, identity.expand_as(M)
        for _ in range(steps):
            T = 1.5 * identity - 0.5 * precise_matmul(Z, Y)
            Y, Z = precise_matmul(Y, T), precise_matmul(T, Z)
        return Y, Z, c, A.dtype


def _trace(M: Tensor) -> Tensor:
    return torch.diagonal(M, dim1=-2, dim2=-1).real.sum(-1)[..., None, None]


def _frobenius(M: Tensor) -> Tensor:
    if M.numel() == 0:
        return _trace(M)
    # Scaled first: the squares of very small or large entries leave the range of the type.
    largest = M.detach().abs().amax((-2, -1), keepdim=True)
    largest = torch.where(largest > 0, largest, torch.ones_like(largest))
    norm: Tensor = torch.linalg.vector_norm(M / largest, dim=(-2, -1), keepdim=True)
    return norm * largest
