"""Who computes the forward decomposition: a registry of drivers, and the checks around them.

A driver has ``eigh(A, UPLO)`` and ``svd(A, full_matrices)`` on plain tensors. To add one, write its file and name it in
:data:`DRIVERS`. The driver "batched" is first of all the kernels, for whatever :func:`plan` finds one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._execution import ExecutionMode, can_read, execution_mode
from .._transforms import Batched
from ..errors import LinAlgError, unknown_choice
from . import batched, lapack, triton
from .batched import Plan, plan
from .fallback import decompose, name_non_finite, once_more

__all__ = [
    "DRIVERS",
    "Driver",
    "Plan",
    "decompose",
    "eigh",
    "name_non_finite",
    "once_more",
    "plan",
    "require_finite",
    "resolve",
    "svd",
]


class Driver(NamedTuple):
    """The two decompositions one backend offers."""

    eigh: Callable[[Tensor, str], tuple[Tensor, Tensor]]
    svd: Callable[[Tensor, bool], tuple[Tensor, Tensor, Tensor]]


DRIVERS = {
    "lapack": Driver(lapack.eigh, lapack.svd),
    "batched": Driver(lapack.eigh, lapack.svd),  # for what the kernels have no plan for
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


def eigh(
    A: Tensor, UPLO: str, driver: str | Plan, check_finite: bool | None, function: str = "eigh"
) -> tuple[Tensor, Tensor]:
    """Eigenvalues (ascending) and eigenvectors of Hermitian ``A``: (..., n, n) to (..., n) and (..., n, n).

    Args:
        A: of a type that is computed in.
        UPLO: the triangle that is read, "L" or "U".
        driver: its name, or what :func:`plan` has found for ``A``.
        check_finite: as in :func:`eigengrad.eigh`.
        function: what errors name: what the user called.
    """
    if isinstance(driver, str):
        if driver == "batched" and batched.is_operator(A):
            return batched.eigh_operator(A, UPLO)
        found = batched.plan(A) if driver == "batched" and A.device.type == "cpu" and can_read(A) else None
        if found is None:
            require_finite(function, A, check_finite, UPLO)
            solve = triton.eigh_measured if driver == "batched" and not A.is_cpu else DRIVERS[driver].eigh
            return decompose(function, A, UPLO, None, solve)
        driver = found
    return decompose(function, A, UPLO, driver)


def svd(
    A: Tensor, full_matrices: bool, driver: str, check_finite: bool | None, function: str = "svd"
) -> tuple[Tensor, Tensor, Tensor]:
    """Singular value decomposition of ``A``: (..., m, n), singular values descending."""
    require_finite(function, A, check_finite)
    solve = DRIVERS[driver].svd
    try:
        return solve(A, full_matrices)
    except LinAlgError:
        name_non_finite(function, A, None)
        return once_more(function, lambda M: solve(M, full_matrices), A)


def require_finite(function: str, A: Tensor, wanted: bool | None, UPLO: str | None = None, argument: str = "A") -> None:
    """Name the first matrix with NaN or infinity. By default on the CPU only: elsewhere it costs a sync."""
    if wanted is None:
        wanted = A.device.type == "cpu"
    if not wanted:
        return
    if can_read(A):
        name_non_finite(function, A, UPLO, argument)
    elif execution_mode() is ExecutionMode.FUNCTORCH:
        _Finite.apply(A.detach(), function, UPLO, argument)  # type: ignore[no-untyped-call]


class _Finite(Batched):
    """The check as an autograd function: in its forward the numbers can be looked at even inside a transform."""

    @staticmethod
    def forward(A: Tensor, function: str, UPLO: str | None, argument: str) -> Any:
        require_finite(function, A, True, UPLO, argument)
        return torch.empty_like(A)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None: ...
