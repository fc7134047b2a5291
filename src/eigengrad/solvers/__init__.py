"""Who computes the forward decomposition: a registry of drivers, and the checks around them.

A driver is a module with ``eigh(A, UPLO)`` and ``svd(A, full_matrices)`` on plain tensors. To add one, write its file
and name it in :data:`DRIVERS`.
"""

from __future__ import annotations

import cmath
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from .._inputs import is_concrete, real_dtype, transforming
from .._transforms import Batched
from ..errors import ConvergenceError, LinAlgError, NonFiniteError, first_index, unknown_choice
from . import batched, lapack, triton
from .batched import eigh_at_once, plan

__all__ = [
    "DRIVERS",
    "Driver",
    "eigh",
    "eigh_at_once",
    "name_non_finite",
    "once_more",
    "plan",
    "require_finite",
    "resolve",
    "svd",
]


Decomposition = TypeVar("Decomposition", bound=tuple[Tensor, ...])


class Driver(NamedTuple):
    """The two decompositions one backend offers."""

    eigh: Callable[[Tensor, str], tuple[Tensor, Tensor]]
    svd: Callable[[Tensor, bool], tuple[Tensor, Tensor, Tensor]]


DRIVERS = {
    "lapack": Driver(lapack.eigh, lapack.svd),
    "batched": Driver(batched.eigh, batched.svd),
    "triton": Driver(triton.eigh, triton.svd),
    # Torch's own choices for svd on CUDA.
    **{name: Driver(lapack.eigh, functools.partial(lapack.svd, driver=name)) for name in ("gesvd", "gesvdj", "gesvda")},
}


def resolve(driver: str | None) -> str:
    """Check a driver's name; ``None`` is the default: compiled kernels where there are any, of CPU or GPU."""
    if driver is None:
        return "batched"
    if not isinstance(driver, str) or driver not in DRIVERS:
        raise unknown_choice("driver", driver, DRIVERS)
    return driver


def eigh(A: Tensor, UPLO: str, driver: str, check_finite: bool | None, function: str = "eigh") -> tuple[Tensor, Tensor]:
    """Eigenvalues (ascending) and eigenvectors of Hermitian ``A``: (..., n, n) to (..., n) and (..., n, n).

    ``function`` is what errors name: what the user called.
    """
    unchosen = driver == "batched"
    if driver == "batched" and not batched.suits(A):
        driver = "lapack"
    if driver != "batched":  # the kernels see for themselves
        require_finite(function, A, check_finite, UPLO)
    solve = triton.eigh_measured if unchosen and not A.is_cpu else DRIVERS[driver].eigh
    try:
        return solve(A, UPLO)
    except LinAlgError:
        require_finite(function, A, True, UPLO)
        return once_more(function, lambda M: lapack.eigh(M, UPLO), A)


def svd(
    A: Tensor, full_matrices: bool, driver: str, check_finite: bool | None, function: str = "svd"
) -> tuple[Tensor, Tensor, Tensor]:
    """Singular value decomposition of ``A``: (..., m, n), singular values descending."""
    require_finite(function, A, check_finite)
    solve = DRIVERS[driver].svd
    try:
        return solve(A, full_matrices)
    except LinAlgError:
        require_finite(function, A, True)
        return once_more(function, lambda M: solve(M, full_matrices), A)


def require_finite(function: str, A: Tensor, wanted: bool | None, UPLO: str | None = None, argument: str = "A") -> None:
    """Name the first matrix with NaN or infinity. By default on the CPU only: elsewhere it costs a sync."""
    if wanted is None:
        wanted = A.is_cpu
    if wanted and is_concrete(A):
        name_non_finite(function, A, UPLO, argument)
    elif wanted and transforming() and not torch.compiler.is_compiling():
        _Finite.apply(A.detach(), function, UPLO, argument)  # type: ignore[no-untyped-call]


class _Finite(Batched):
    """The check as an autograd function: in its forward the numbers can be looked at even inside a transform."""

    @staticmethod
    def forward(A: Tensor, function: str, UPLO: str | None, argument: str) -> Any:
        require_finite(function, A, True, UPLO, argument)
        return torch.empty_like(A)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None: ...


def name_non_finite(function: str, A: Tensor, UPLO: str | None, argument: str = "A") -> None:
    """The same for numbers that can be looked at."""
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
    wide = A.to(torch.complex128 if A.is_complex() else torch.float64)
    try:
        result = solve(wide)
    except LinAlgError as error:
        raise ConvergenceError(function, _first_failure(solve, wide)) from error
    narrow = tuple(x.to(A.dtype if x.is_complex() else real_dtype(A.dtype)) for x in result)
    return cast(Decomposition, narrow)


def _first_failure(solve: Callable[[Tensor], object], A: Tensor) -> tuple[int, ...]:
    batch = A.shape[:-2]
    for number, matrix in enumerate(A.reshape(-1, *A.shape[-2:])):
        try:
            solve(matrix)
        except LinAlgError:
            return tuple(int(i) for i in torch.unravel_index(torch.tensor(number), batch)) if batch else ()
    return ()
