"""One chain for every decomposition: the kernel or LAPACK, then the matrix that is not finite, then float64."""

from __future__ import annotations

import cmath
from collections.abc import Callable
from typing import TypeVar, cast

import torch
from torch import Tensor

from .. import kernels
from ..errors import ConvergenceError, LinAlgError, NonFiniteError, first_index
from ..precision import real_dtype
from . import lapack

__all__ = ["decompose", "name_non_finite", "once_more"]

Decomposition = TypeVar("Decomposition", bound=tuple[Tensor, ...])


def decompose(
    function: str,
    A: Tensor,
    UPLO: str,
    plan: kernels.Plan | None,
    solve: Callable[[Tensor, str], tuple[Tensor, Tensor]] = lapack.eigh,
) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of Hermitian ``A`` (..., n, n) by a kernel's plan, or by ``solve`` if there is none.

    Raises:
        NonFiniteError: a matrix is not finite.
        ConvergenceError: one does not converge, in float64 neither.
    """
    try:
        return solve(A, UPLO) if plan is None else kernels.decompose(A if UPLO == "L" else A.mT, plan)
    except LinAlgError:
        name_non_finite(function, A, UPLO)
        return once_more(function, lambda M: lapack.eigh(M, UPLO), A)


def name_non_finite(function: str, A: Tensor, UPLO: str | None, argument: str = "A") -> None:
    """Name the first matrix with NaN or infinity, for numbers that can be looked at.

    Args:
        function: what the error names.
        A: (..., m, n).
        UPLO: the triangle that is read of it; None for all of it.
        argument: what the user calls it.
    """
    # One sum sees every NaN and infinity; only where it is not finite are the entries looked at, because it
    # may have overflowed, or met a NaN in the triangle that UPLO says is never read.
    if cmath.isfinite(A.sum().item()):
        return
    read = A if UPLO is None else A.tril() if UPLO == "L" else A.triu()
    bad = ~torch.isfinite(read)
    matrices = bad.any(-1).any(-1)
    if matrices.any():
        index = first_index(matrices)
        raise NonFiniteError(function, index, int(bad[index].sum()), argument)


def once_more(function: str, solve: Callable[[Tensor], Decomposition], A: Tensor) -> Decomposition:
    """After a failure to converge: again in float64, and if that fails too, say which matrix."""
    wide = A.to(torch.complex128 if A.dtype.is_complex else torch.float64)
    try:
        result = solve(wide)
    except LinAlgError as error:
        raise ConvergenceError(function, _first_failure(solve, wide)) from error
    narrow = tuple(x.to(A.dtype if x.dtype.is_complex else real_dtype(A.dtype)) for x in result)
    return cast(Decomposition, narrow)


def _first_failure(solve: Callable[[Tensor], object], A: Tensor) -> tuple[int, ...]:
    batch = A.shape[:-2]
    for number, matrix in enumerate(A.reshape(-1, *A.shape[-2:])):
        try:
            solve(matrix)
        except LinAlgError:
            return tuple(int(i) for i in torch.unravel_index(torch.tensor(number), batch)) if batch else ()
    return ()
