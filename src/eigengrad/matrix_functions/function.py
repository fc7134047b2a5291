"""Any scalar function of a Hermitian matrix."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..gradients import GradientRule
from .divided_differences import GivenFunction
from .spectral import apply

__all__ = ["matrix_function"]


def matrix_function(
    A: Tensor,
    f: Callable[[Tensor], Tensor],
    df: Callable[[Tensor], Tensor],
    d2f: Callable[[Tensor], Tensor] | None = None,
    *,
    eps: float = 0.0,
    gradient: str | GradientRule = "exact",
    driver: str | None = None,
    check_finite: bool | None = None,
) -> Tensor:
    """f(A) = V f(λ) Vᴴ for a scalar function given with its derivative, with a gradient that is finite at ties.

    gA = V [ F ∘ (Vᴴ G V) ] Vᴴ with F_ij = (f(λ_i) − f(λ_j))/(λ_i − λ_j), and the integral of f′ between the two
    where they are close; whichever is the more accurate. f must be smooth on the spectrum.

    Args:
        A: Hermitian, (..., n, n); refused if it is not, to √finfo.eps.
        f, df, d2f: the function and its first and second derivative, each from a tensor to one of the same shape,
            elementwise. ``d2f`` is needed for second derivatives only.
        eps: if positive, added to the diagonal, and the spectrum is clamped there.
        gradient: "exact", or a rule to differentiate through :func:`eigengrad.eigh`; see :func:`matrix_sqrt`.
        driver, check_finite: as in :func:`eigengrad.eigh`.

    Returns:
        (..., n, n).

    >>> import torch, eigengrad as eg
    >>> A = torch.eye(2, requires_grad=True)
    >>> eg.matrix_function(A, torch.sin, torch.cos).trace().backward()
    >>> A.grad
    tensor([[0.5403, 0.0000],
            [0.0000, 0.5403]])
    """
    for name, argument in (("f", f), ("df", df), ("d2f", d2f)):
        if not callable(argument) and not (name == "d2f" and argument is None):
            raise TypeError(f"matrix_function: {name} must be callable; got {argument!r}")
    given = GivenFunction(f, df, d2f)
    return apply("matrix_function", A, given, eps=eps, gradient=gradient, driver=driver, check_finite=check_finite)
