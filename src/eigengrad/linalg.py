"""The functions of ``torch.linalg``, with gradients that survive ties: ``import eigengrad.linalg as LA``.

What differentiates a decomposition is defined here, with torch's names, arguments and results: :func:`eigh`,
:func:`eigvalsh`, :func:`svd`, :func:`svdvals`, :func:`cond`, :func:`matrix_norm` and :func:`norm`. Every other name is
torch's own: ``LA.qr is torch.linalg.qr``. That holds for ``pinv`` and ``matrix_rank``, too: the gradient of the one has
no gaps in it and is right at ties, and the other has none. ``LA.matrix_exp`` and ``LA.matrix_power`` are those for
general matrices, where ``eigengrad.matrix_exp`` is the one for Hermitian matrices.

With ``out=`` torch's own function is called, which fills the given tensors and refuses what it does not support: types
that do not fit, decompositions of what requires a gradient. ``driver=`` names a routine of cuSOLVER, as in torch, and
is refused on the CPU as it is there.

>>> import torch
>>> import eigengrad.linalg as LA
>>> A = torch.eye(3, requires_grad=True)                 # three equal eigenvalues
>>> LA.eigh(A).eigenvectors[0].sum().backward()
>>> bool(torch.isfinite(A.grad).all())
True
>>> LA.cholesky is torch.linalg.cholesky
True
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import torch
import torch.linalg as _torch_linalg
from torch import Tensor

# Bound at import: a name looked up at each call leads back here once somebody writes ``torch.linalg.svd = LA.svd``.
from torch.linalg import cond as _torch_cond
from torch.linalg import eigh as _torch_eigh
from torch.linalg import eigvalsh as _torch_eigvalsh
from torch.linalg import inv_ex as _torch_inv_ex
from torch.linalg import matrix_norm as _torch_matrix_norm
from torch.linalg import matrix_rank, pinv
from torch.linalg import norm as _torch_norm
from torch.linalg import svd as _torch_svd
from torch.linalg import svdvals as _torch_svdvals

from ._execution import is_constant
from ._return_types import EighResult, SvdResult
from .eigh import eigh as _eigh
from .gradients import GradientRule
from .matrix_functions.nuclear_norm import nuclear_norm
from .svd import svd as _svd
from .values import eigvalsh as _eigvalsh
from .values import svdvals as _svdvals

__all__ = ["cond", "eigh", "eigvalsh", "matrix_norm", "matrix_rank", "norm", "pinv", "svd", "svdvals"]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def accept_torch_names(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Accept the first argument as ``input``, ``x`` or ``a`` too: so torch calls what its documents call A."""
    first = next(iter(inspect.signature(function).parameters))

    @functools.wraps(function)
    def renamed(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        if not args and first not in kwargs:
            for name in ("input", "x", "a"):
                if name in kwargs:
                    kwargs[first] = kwargs.pop(name)
                    break
        return function(*args, **kwargs)

    return renamed


@accept_torch_names
def eigh(A: Tensor, UPLO: str = "L", *, out: Any = None, gradient: str | GradientRule = "saturate") -> EighResult:
    """Eigenvalues and eigenvectors of a Hermitian matrix, as :func:`torch.linalg.eigh` and :func:`eigengrad.eigh`.

    Args:
        A: Hermitian, (..., n, n); only one triangle is read.
        UPLO: which triangle: "L" or "U".
        out: two tensors for the result.
        gradient: the rule for the derivative of the eigenvectors, see :func:`eigengrad.eigh`.

    Returns:
        ``(eigenvalues, eigenvectors)``: ascending (..., n), and (..., n, n) with the eigenvectors as columns.

    >>> import eigengrad.linalg as LA
    >>> LA.eigh(torch.diag(torch.tensor([2.0, 1.0]))).eigenvalues
    tensor([1., 2.])
    """
    if out is not None:
        return cast(EighResult, _torch_eigh(A, UPLO, out=out))
    return _eigh(A, UPLO, gradient=gradient)


@accept_torch_names
def eigvalsh(A: Tensor, UPLO: str = "L", *, out: Tensor | None = None) -> Tensor:
    """Eigenvalues of a Hermitian matrix, ascending (..., n): :func:`torch.linalg.eigvalsh`.

    Their gradient needs no rule. Their second derivative does, and is finite at ties here.

    Args:
        A: Hermitian, (..., n, n); only one triangle is read.
        UPLO: which triangle: "L" or "U".
        out: a tensor for the result.

    >>> import eigengrad.linalg as LA
    >>> LA.eigvalsh(torch.diag(torch.tensor([2.0, 1.0])))
    tensor([1., 2.])
    """
    if out is not None or _constant(A):
        return cast(Tensor, _torch_eigvalsh(A, UPLO, out=out))
    return _eigvalsh(A, UPLO)


@accept_torch_names
def svd(
    A: Tensor,
    full_matrices: bool = True,
    *,
    driver: str | None = None,
    out: Any = None,
    gradient: str | GradientRule = "saturate",
) -> SvdResult:
    """Singular value decomposition A = U diag(S) Vh, as :func:`torch.linalg.svd` and :func:`eigengrad.svd`.

    Args:
        A: (..., m, n).
        full_matrices: complete U to (..., m, m) and Vh to (..., n, n).
        driver: "gesvd", "gesvdj" or "gesvda", for matrices on CUDA.
        out: three tensors for the result.
        gradient: the rule for the derivative of the singular vectors, see :func:`eigengrad.svd`.

    Returns:
        ``(U, S, Vh)``, singular values descending, (..., min(m, n)).

    >>> import eigengrad.linalg as LA
    >>> LA.svd(torch.ones(2, 2)).S.round(decimals=4)
    tensor([2., 0.])
    """
    if out is not None or (driver is not None and not _on_cuda(A)):
        return cast(SvdResult, _torch_svd(A, full_matrices, driver=driver, out=out))
    return _svd(A, full_matrices, gradient=gradient, driver=driver)


@accept_torch_names
def svdvals(A: Tensor, *, driver: str | None = None, out: Tensor | None = None) -> Tensor:
    """Singular values of A (..., m, n), descending (..., min(m, n)): :func:`torch.linalg.svdvals`.

    Their gradient needs no rule. Their second derivative does, and is finite at ties here.

    Args:
        A: (..., m, n).
        driver: "gesvd", "gesvdj" or "gesvda", for matrices on CUDA.
        out: a tensor for the result.

    >>> import eigengrad.linalg as LA
    >>> LA.svdvals(torch.diag(torch.tensor([1.0, -2.0])))
    tensor([2., 1.])
    """
    if out is not None or _constant(A) or (driver is not None and not _on_cuda(A)):
        return cast(Tensor, _torch_svdvals(A, driver=driver, out=out))
    return _svdvals(A, driver=driver)


@accept_torch_names
def cond(A: Tensor, p: float | str | None = None, *, out: Tensor | None = None) -> Tensor:
    """Condition number of A in the norm ``p``, of shape (...): :func:`torch.linalg.cond`.

    It is infinite for a singular matrix, and its gradient is not finite there.

    Args:
        A: (..., m, n) for p = None, 2 or -2, otherwise (..., n, n).
        p: None (the same as 2), 2, -2, "nuc", "fro", 1, -1, inf or -inf.
        out: a tensor for the result.

    >>> import eigengrad.linalg as LA
    >>> LA.cond(torch.diag(torch.tensor([4.0, 2.0])))
    tensor(2.)
    """
    p = 2 if p is None else p
    square = isinstance(A, Tensor) and A.ndim >= 2 and A.shape[-1] == A.shape[-2]
    if out is not None or _constant(A) or A.numel() == 0 or not (p in (2, -2) or (square and p in _NORMS)):
        return cast(Tensor, _torch_cond(A, p, out=out))
    if p in (2, -2):
        S = svdvals(A)
        return S[..., 0] / S[..., -1] if p == 2 else S[..., -1] / S[..., 0]
    if p == "nuc":
        S = svdvals(A)
        return S.sum(-1) * S.reciprocal().sum(-1)
    # In torch 2.13 this cannot be differentiated: it overwrites the inverse that its backward pass needs.
    inverse, info = _torch_inv_ex(A)
    product = _torch_matrix_norm(A, p) * _torch_matrix_norm(inverse, p)
    return torch.where(info > 0, torch.inf, product)


_NORMS = ("nuc", "fro", 1, -1, torch.inf, -torch.inf)


@accept_torch_names
def matrix_norm(
    A: Tensor,
    ord: float | str = "fro",  # noqa: A002  (torch's name)
    dim: Sequence[int] = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Norm of the matrices in two dimensions of A: :func:`torch.linalg.matrix_norm`.

    Args:
        A: of at least two dimensions.
        ord: "nuc", 2 and -2 (the sum, the largest and the smallest of the singular values), "fro", 1, -1, inf or -inf.
        dim: the two dimensions.
        keepdim: keep them, with size 1.
        dtype: the type to compute in.
        out: a tensor for the result.

    >>> import eigengrad.linalg as LA
    >>> LA.matrix_norm(torch.diag(torch.tensor([1.0, -2.0])), "nuc")
    tensor(3.)
    """
    if out is not None or _constant(A) or not _of_singular_values(A, ord, dim, dtype):
        return cast(Tensor, _torch_matrix_norm(A, ord, dim, keepdim, dtype=dtype, out=out))
    M = A if dtype is None else A.to(dtype)
    first, second = (d % A.ndim for d in dim)
    M = M.movedim((first, second), (-2, -1))
    norm = nuclear_norm(M) if ord == "nuc" else svdvals(M).amax(-1) if ord == 2 else svdvals(M).amin(-1)
    for d in sorted((first, second)) if keepdim else ():
        norm = norm.unsqueeze(d)
    return norm


@accept_torch_names
def norm(
    input: Tensor,  # noqa: A002  (torch's names)
    ord: float | str | None = None,  # noqa: A002
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Vector or matrix norm: :func:`torch.linalg.norm`, which see for what ``ord`` and ``dim`` mean together.

    Args:
        input: of any shape.
        ord: the order; None is the 2-norm of all entries.
        dim: one dimension for vectors, two for matrices.
        keepdim: keep them, with size 1.
        out: a tensor for the result.
        dtype: the type to compute in.

    >>> import eigengrad.linalg as LA
    >>> LA.norm(torch.diag(torch.tensor([1.0, -2.0])), 2)
    tensor(2.)
    """
    dims = tuple(range(input.ndim)) if dim is None and isinstance(input, Tensor) else dim
    if out is None and not isinstance(dims, int) and dims is not None and len(dims) == 2 and ord in ("nuc", 2, -2):
        return matrix_norm(input, cast(Any, ord), dims, keepdim, dtype=dtype)
    return cast(Tensor, _torch_norm(input, ord, dim, keepdim, out=out, dtype=dtype))


def _constant(A: Tensor) -> bool:
    """Whether there is no gradient to speak of, or no matrix: torch's own function does, or says what is wrong."""
    return not isinstance(A, Tensor) or A.ndim < 2 or is_constant(A)


def _on_cuda(A: Tensor) -> bool:
    return isinstance(A, Tensor) and A.is_cuda


def _of_singular_values(A: Tensor, ord: float | str, dim: Sequence[int], dtype: torch.dtype | None) -> bool:  # noqa: A002
    """Whether a norm is one of singular values and its arguments are right; torch names what is wrong with others."""
    return (
        (ord == "nuc" or ord in (2, -2))
        and isinstance(dim, Sequence)
        and len(dim) == 2
        and all(-A.ndim <= d < A.ndim for d in dim)
        and dim[0] % A.ndim != dim[1] % A.ndim
        and A.numel() > 0
        and (A.is_floating_point() or A.dtype.is_complex)
        and (dtype is None or (dtype.is_complex == A.dtype.is_complex and torch.promote_types(A.dtype, dtype) == dtype))
    )


def __getattr__(name: str) -> Any:
    """Everything that involves no decomposition is torch's."""
    try:
        return getattr(_torch_linalg, name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}, nor has torch.linalg") from None


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in dir(_torch_linalg) if not name.startswith("_"))})
