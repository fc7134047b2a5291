"""The error of a method's gradient on one snapshot, and the spectrum that it met."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import GradientWarning, LinAlgError
from ...gradients import GradientRule, PowerIteration
from ...nn.functional import whitening_matrix
from .methods import PAPER_DEGREE
from .snapshot import Snapshot

__all__ = ["Measurement", "Spectrum", "gradients", "measure", "spectrum"]


@dataclass(frozen=True)
class Measurement:
    """How far a method's gradient is from the exact one, over all groups of a layer; NaN where it is not finite.

    Attributes:
        error, cosine: relative error and cosine of the gradient of the covariance M.
        error_x, cosine_x: the same of what reaches the input of the layer.
    """

    error: float
    cosine: float
    error_x: float
    cosine_x: float

    @property
    def finite(self) -> bool:
        """Whether there was a gradient at all."""
        return math.isfinite(self.error)


@dataclass(frozen=True)
class Spectrum:
    """The eigenvalues of M + εI that a layer had in one step.

    Attributes:
        first: the share of the largest eigenvalue, its mean over the groups.
        gap: the smallest gap between two eigenvalues of a group, relative to its largest.
        tied: how many eigenvalues of a group are ε up to round-off of float32, their mean.
        kept: how many eigenvectors SVD-PI (Algorithm 1) keeps, their mean.
        bound: the paper's bound n(K+1)/ε for K = 9.
    """

    first: float
    gap: float
    tied: float
    kept: float
    bound: float


def measure(snapshot: Snapshot, gradient: str | GradientRule, dtype: torch.dtype = torch.float32) -> Measurement:
    """Compare a method with divided differences in float64, on the same covariance and the same gradient of S.

    Args:
        snapshot: of a layer.
        gradient: as for :func:`eigengrad.nn.functional.whitening_matrix`.
        dtype: that the method computes in. The covariance is rounded to it first, for the reference as well.
    """
    M, gS = snapshot.covariance.to(dtype), snapshot.gradient.to(dtype)
    exact_S, exact = gradients(M.double(), gS.double(), snapshot.eps, "exact")
    try:
        S, found = gradients(M, gS, snapshot.eps, gradient)
    except LinAlgError:
        return Measurement(math.nan, math.nan, math.nan, math.nan)
    S, found = S.double(), found.double()
    inner = _Inner(snapshot)
    size, own = exact.norm().item(), found.norm().item()
    size_x, own_x = inner.norm(exact_S, exact), inner.norm(S, found)
    return Measurement(
        _ratio((found - exact).norm().item(), size),
        _ratio((found * exact).sum().item(), size * own),
        _ratio(inner.norm(S - exact_S, found - exact), size_x),
        _ratio(inner.product((S, found), (exact_S, exact)), size_x * own_x),
    )


def gradients(M: Tensor, gS: Tensor, eps: float, gradient: str | GradientRule) -> tuple[Tensor, Tensor]:
    """S and the (symmetric) gradient of M for one method, each (groups, d, d)."""
    M = M.detach().requires_grad_()
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), torch.enable_grad():
        warnings.simplefilter("ignore", GradientWarning)  # what it warns of is measured here
        torch.manual_seed(0)  # of the random starts of PI
        S = whitening_matrix(M, eps=eps, gradient=gradient)
        (gM,) = torch.autograd.grad(S, M, gS)
    return S.detach(), (gM + gM.mT) / 2


@torch.no_grad()
def spectrum(snapshot: Snapshot) -> Spectrum:
    """The eigenvalues of a snapshot, in float64, and what SVD-PI keeps of them in float32."""
    d, eps = snapshot.covariance.shape[-1], snapshot.eps
    identity = torch.eye(d)
    raw = torch.linalg.eigvalsh(snapshot.covariance)
    values = raw.clamp(min=0) + eps
    largest = values[:, -1:]
    tied = raw <= d * torch.finfo(torch.float32).eps * largest
    L, V = torch.linalg.eigh(snapshot.covariance.float() + eps * identity)
    kept = PowerIteration(steps=PAPER_DEGREE + 1, eps=eps, inclusive=True).kept(L, V)
    gaps = (values.diff(dim=-1) / largest).amin().item() if d > 1 else math.inf
    return Spectrum(
        (largest / values.sum(-1, keepdim=True)).mean().item(),
        gaps,
        tied.sum(-1).double().mean().item(),
        kept.sum(-1).double().mean().item(),
        d * (PAPER_DEGREE + 1) / eps,
    )


class _Inner:
    """The inner product of two gradients of x, dx = Sᵀ Γ (dy − mean) + (2/m) gM (x − μ), from small matrices alone."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def product(self, first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> float:
        s, (S, gM), (T, hM) = self._snapshot, first, second
        direct = ((s.moments @ T) * S).sum()
        crossed = ((S @ hM) * s.gradient).sum() + ((T @ gM) * s.gradient).sum()
        through = ((hM @ s.covariance) * gM).sum()
        return float(direct + 2 / s.points * crossed + 4 / s.points * through)

    def norm(self, S: Tensor, gM: Tensor) -> float:
        square = self.product((S, gM), (S, gM))
        return math.sqrt(max(square, 0.0)) if math.isfinite(square) else math.nan


def _ratio(a: float, b: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.nan
    return a / b if b else (0.0 if a == 0 else math.inf)
