"""Whether a matrix is Hermitian: what every function of Hermitian matrices asks of its argument."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from .. import solvers
from .._execution import can_read, functorch_active
from .._transforms import Batched
from ..errors import NotHermitianError, first_index
from ..precision import widen

__all__ = ["require_hermitian"]

_FEW = 4096  # entries, in all matrices together, up to which A = Aᴴ is asked of each
_LARGEST_PROBE = 512  # n; for larger matrices the decomposition costs much more than a comparison


def require_hermitian(function: str, A: Tensor, wanted: bool | None, plain: bool = False) -> None:
    """Name the first matrix (..., n, n) whose asymmetry max|A − Aᴴ| exceeds √finfo.eps · max|A|.

    In float64 it may be the round-off of float32, 10⁻⁶: covariances are often computed in one and used in the other.

    Args:
        function: what the error names.
        A: in the type that the user passed, which says how much asymmetry is round-off.
        wanted: ``None`` looks on the CPU only, as the check for finite numbers does.
        plain: it is known that the numbers can be looked at.
    """
    if wanted is None:
        wanted = A.device.type == "cpu"
    if not wanted:
        return
    if plain or can_read(A):
        if not _surely_hermitian(A):
            _name_not_hermitian(function, A)
    elif functorch_active() and not torch.compiler.is_compiling():
        _Hermitian.apply(A.detach(), function)  # type: ignore[no-untyped-call]


class _Hermitian(Batched):
    """The check as an autograd function: in its forward the numbers can be looked at even inside a transform."""

    @staticmethod
    def forward(A: Tensor, function: str) -> Any:
        require_hermitian(function, A, True)
        return torch.empty_like(A)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None: ...


def _surely_hermitian(A: Tensor) -> bool:
    """Whether a quick look shows that A is Hermitian. If it does not, A may still be.

    Comparing with the transpose takes a fifth of the time of many small decompositions. One product does not: the sum
    of all entries with antisymmetric weights vanishes for symmetric matrices. For others it is at the round-off of
    a positive matrix, which is that of its trace, only by a coincidence of one in 10⁵ (in float64, 10¹⁴) or so.
    """
    n = A.shape[-1]
    if (
        A.numel() <= _FEW
        or n > _LARGEST_PROBE
        or A.dtype not in (torch.float32, torch.float64)
        or A.device.type != "cpu"
    ):
        return torch.equal(A, A.mH)
    total, trace = _weights(n, A.dtype) @ A.detach().reshape(-1, n * n).mT
    return bool((total.abs() <= trace * (8 * torch.finfo(A.dtype).eps)).all())


@functools.lru_cache(maxsize=128)
def _weights(n: int, dtype: torch.dtype) -> Tensor:
    """Rows (2, n²): random w_ij = −w_ji with ½ ≤ |w_ij| ≤ 1, so that no single entry goes unseen; and the identity."""
    generator = torch.Generator().manual_seed(n)
    numbers = 2 * torch.rand(n, n, generator=generator, dtype=torch.float64, device="cpu") - 1
    upper = (0.5 * (numbers + numbers.sign())).triu(1)
    return torch.stack([upper - upper.mT, torch.eye(n, dtype=torch.float64, device="cpu")]).flatten(1).to(dtype)


def _name_not_hermitian(function: str, A: Tensor) -> None:
    """Look at every entry, and raise the error for the first matrix that is not finite or not Hermitian."""
    if A.numel() == 0:
        return
    M = widen(A.detach())
    allowed = max(math.sqrt(torch.finfo(A.dtype).eps), 8 * torch.finfo(torch.float32).eps)
    size = M.abs().amax((-2, -1))
    asymmetry = (M - M.mH).abs().amax((-2, -1))
    wrong = ~((asymmetry <= size * allowed) & torch.isfinite(size))
    if wrong.any():
        solvers.name_non_finite(function, M, None)
        index = first_index(wrong)
        raise NotHermitianError(function, index, float(asymmetry[index] / size[index]), allowed)
