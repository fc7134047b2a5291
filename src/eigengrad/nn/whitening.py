"""From a covariance to a whitening matrix: the small matrix algebra that the whitening layers share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._execution import ExecutionMode, execution_mode
from .._inputs import add_to_diagonal, check_matrix
from ..arguments import require_non_negative
from ..eigh import eigh
from ..errors import unknown_choice
from ..gradients import RULES, Exact, GradientRule, PowerIteration, parse_rule, resolve
from ..gradients.observation import observe_exact
from ..matmul import precise_matmul
from ..matrix_functions import matrix_inv_sqrt
from ..matrix_functions.inv_sqrt import InvSqrt
from ..matrix_functions.spectral import into_domain
from ..power_iteration import power_iteration
from ..precision import full_precision, widen
from ..solvers import require_finite

__all__ = ["KINDS", "default_gradient", "whitening_matrix"]

KINDS = ("zca", "pca", "cholesky")

#: The paper's names for gradients of the whitening matrix that are not rules.
_SVD, _PI = "svd", "pi"


def default_gradient(whitening: str) -> str:
    """What differentiates best: exact where there is no need for eigenvectors, the default rule for PCA."""
    return "saturate" if whitening == "pca" else "exact"


def whitening_matrix(
    covariance: Tensor, *, eps: float = 1e-2, whitening: str = "zca", gradient: str | GradientRule | None = None
) -> Tensor:
    """S with S (M + εI) Sᵀ = I, for a covariance M.

    With M + εI = V diag(λ) Vᵀ, λ clamped at ε: "zca" is the symmetric V λ^(−½) Vᵀ, which turns the data least; "pca" is
    λ^(−½) Vᵀ, components in order of falling variance; "cholesky" is the inverse of the lower Cholesky factor.

    Args:
        covariance: (..., d, d).
        eps: ε.
        whitening: "zca", "pca" or "cholesky".
        gradient: for ZCA "exact" (divided differences, the default), or a rule or its name to differentiate through
            :func:`eigengrad.eigh`: "taylor", "clip", … are the paper's SVD-Taylor, SVD-Clip; "power_iteration" is
            SVD-PI: its stopping conditions, with this ``eps``, truncate S as well (the paper's Algorithm 1), and
            ``PowerIteration(stop=False)`` keeps all eigenvectors; "svd" is plain ``torch.linalg.eigh``; "pi", or
            "pi(steps=19)", is power iteration in both passes, not clamped at ε: NaN where it finds an eigenvalue below
            zero. For PCA a rule, "saturate" by default. Cholesky has its own and takes none.

    Returns:
        (..., d, d).

    >>> import torch
    >>> from eigengrad.nn.functional import whitening_matrix
    >>> whitening_matrix(torch.diag(torch.tensor([0.24, 0.99])), eps=0.01)
    tensor([[2., 0.],
            [0., 1.]])
    """
    if whitening not in KINDS:
        raise unknown_choice("whitening", whitening, KINDS)
    check_matrix("whitening_matrix", covariance, square=True, argument="covariance")
    require_non_negative("whitening_matrix", "eps", eps)
    if whitening == "cholesky":
        if gradient not in (None, "exact"):
            raise ValueError(
                f"gradient: got {gradient!r}; whitening='cholesky' has its own exact gradient, expected None"
            )
        require_finite("whitening_matrix", widen(covariance), None, "L", "covariance")
        with full_precision(covariance):
            return _cholesky(widen(covariance), eps).to(covariance.dtype)
    gradient = default_gradient(whitening) if gradient is None else gradient
    if gradient != _SVD and not _is_pi(gradient):
        _refuse_unknown(gradient)
    if whitening == "zca" and gradient == "exact":
        return matrix_inv_sqrt(covariance, eps=eps)
    with full_precision(covariance):
        return _by_eigenvectors(widen(covariance), eps, whitening, gradient).to(covariance.dtype)


def _is_pi(gradient: str | GradientRule) -> bool:
    """Whether it is plain power iteration: "pi", or "pi(steps=…)"."""
    return isinstance(gradient, str) and (gradient == _PI or gradient.startswith(f"{_PI}("))


def _pi_steps(gradient: str) -> dict[str, Any]:
    if gradient == _PI:
        return {}
    _, parameters = parse_rule(gradient)
    if set(parameters) - {"steps"}:
        raise ValueError(f"gradient: got {gradient!r}; the parameters of {_PI} are: steps")
    return parameters


def _refuse_unknown(gradient: str | GradientRule) -> None:
    """The registry's error for what is no rule, with the two names more that a whitening matrix knows."""
    try:
        resolve(gradient)
    except ValueError as error:
        if isinstance(gradient, str) and "expected one of" in str(error):
            raise unknown_choice("gradient", gradient, (*RULES, _SVD, _PI)) from None
        raise


def _by_eigenvectors(covariance: Tensor, eps: float, whitening: str, gradient: str | GradientRule) -> Tensor:
    M = add_to_diagonal(covariance, eps)  # the rules see λ + ε, as in the paper
    pi = _is_pi(gradient)
    if pi:
        L, V = power_iteration(M, covariance.shape[-1], **_pi_steps(str(gradient)))
    else:
        rule = Exact() if gradient == _SVD else resolve(gradient)
        if isinstance(rule, PowerIteration):
            rule = rule.for_covariance(eps)
        L, V = eigh(M, gradient=rule)
        if isinstance(rule, PowerIteration):
            V = rule.truncate(L, V)
        L, V = L.flip(-1), V.flip(-1)
    into_domain("whitening_matrix", InvSqrt(), L.detach().amin(-1, keepdim=True) if L.numel() else L, eps)
    # The baseline PI has no clamp: where deflation has left no positive eigenvalue, its S is NaN, and training fails.
    scaled = V.mH * (L if pi else L.clamp(min=eps)).rsqrt().unsqueeze(-1)
    return scaled if whitening == "pca" else precise_matmul(V, scaled)


def _cholesky(covariance: Tensor, eps: float) -> Tensor:
    d = covariance.shape[-1]
    identity = torch.eye(d, dtype=covariance.dtype, device=covariance.device)
    M = add_to_diagonal(covariance, eps)
    # Where eps is below the round-off of a singular covariance, its factor does not exist until that is added too.
    failed = torch.linalg.cholesky_ex(M.detach()).info > 0
    scale = torch.diagonal(M.detach(), dim1=-2, dim2=-1).real.amax(-1) if d else failed
    M = M + (failed * scale * (4 * d * torch.finfo(M.dtype).eps))[..., None, None] * identity
    if M.device.type == "cpu":
        factor = torch.linalg.cholesky(M)
    else:  # whose error would wait for the device: NaN takes its place
        factor, info = torch.linalg.cholesky_ex(M)
        factor = torch.where((info > 0)[..., None, None], torch.nan, factor)
    inverse: Tensor = torch.linalg.solve_triangular(factor, identity.expand_as(M), upper=False)
    if inverse.requires_grad and execution_mode() is ExecutionMode.EAGER:
        inverse.register_hook(observe_exact)  # it is differentiated as it is: monitors are to know
    return inverse
