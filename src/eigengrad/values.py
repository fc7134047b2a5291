"""Eigenvalues and singular values alone."""

from __future__ import annotations

from torch import Tensor

from .eigh import eigh
from .svd import svd

__all__ = ["eigvalsh", "svdvals"]


def eigvalsh(A: Tensor, UPLO: str = "L", *, driver: str | None = None, check_finite: bool | None = None) -> Tensor:
    """Eigenvalues of a Hermitian matrix: :func:`torch.linalg.eigvalsh`, with finite second derivatives at ties.

    The gradient gA = V diag(g) Vᴴ is that of torch, and knows no gaps. Its own derivative does, through V, and takes
    the default rule of :func:`eigengrad.eigh`, so that it stays finite where torch's is NaN. Between the vectors of
    equal eigenvalues it is not known, and left out with a warning; Σ f(λ_i) has all of it as the trace of
    :func:`eigengrad.matrix_function`.

    Args:
        A: Hermitian, (..., n, n). Only one triangle is read.
        UPLO: which triangle: "L" or "U".
        driver, check_finite: as in :func:`eigengrad.eigh`.

    Returns:
        Ascending, (..., n), real.

    >>> import torch, eigengrad as eg
    >>> eg.eigvalsh(torch.diag(torch.tensor([3.0, -2.0])))
    tensor([-2.,  3.])
    """
    return eigh(A, UPLO, driver=driver, check_finite=check_finite).eigenvalues


def svdvals(A: Tensor, *, driver: str | None = None, check_finite: bool | None = None) -> Tensor:
    """Singular values: :func:`torch.linalg.svdvals`, with finite second derivatives at ties and rank deficiency.

    The gradient gA = U diag(g) Vᴴ is that of torch, and knows no gaps. Its own derivative does, through U and V, and
    takes the default rule of :func:`eigengrad.svd`, so that it stays finite where torch's is NaN. Between the vectors
    of equal singular values it is not known, and left out with a warning; :func:`eigengrad.nuclear_norm` has all of it,
    and so has the trace of :func:`eigengrad.matrix_function` of Aᴴ A.

    Args:
        A: (..., m, n).
        driver, check_finite: as in :func:`eigengrad.svd`.

    Returns:
        Descending, (..., min(m, n)), real.

    >>> import torch, eigengrad as eg
    >>> eg.svdvals(torch.tensor([[0.0, 3.0], [-2.0, 0.0]]))
    tensor([3., 2.])
    """
    return svd(A, full_matrices=False, driver=driver, check_finite=check_finite).S
