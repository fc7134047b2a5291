"""How close a spectrum is to trouble, and how much a rule had to do about it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from ._inputs import check_matrix
from .arguments import require_positive
from .eigh import eigh
from .gradients import RULES, GradientRule, PairRule, Taylor, resolve
from .gradients.observation import exact_and_removed, observers
from .gradients.spectrum import pair_gaps, spectrum_scale
from .precision import full_precision, widen

__all__ = ["GradientMonitor", "SpectrumReport", "spectrum_report"]


@dataclass(frozen=True)
class SpectrumReport:
    """What :func:`spectrum_report` found; every tensor has the batch shape of the matrix.

    Attributes:
        size: n.
        relative_gap: smallest gap between two eigenvalues, relative to max|λ| (infinite for n < 2).
        condition: max|λ| / min|λ|.
        tied: share of eigenvalues that equal a neighbour to round-off.
        bound: the paper's n (K+1)/ε for the Taylor rule in question.
        amplification: for each rule, the largest |R_ij|: how much it can enlarge a gradient.

    >>> import torch, eigengrad as eg
    >>> report = eg.spectrum_report(torch.diag(torch.tensor([1.0, 2.0, 4.0])))
    >>> report.relative_gap.item(), report.amplification["exact"].item()
    (0.25, 1.0)
    """

    size: int
    relative_gap: Tensor
    condition: Tensor
    tied: Tensor
    bound: Tensor
    amplification: Mapping[str, Tensor]

    def __str__(self) -> str:
        def span(x: Tensor) -> str:
            if x.numel() == 0:
                return "–"
            low, high = x.min().item(), x.max().item()
            one = low == high or math.isnan(low)
            return f"{low:.3g}" if one else f"{low:.3g} … {high:.3g}"

        count = self.condition.numel()
        lines = [
            f"{count} matri{'x' if count == 1 else 'ces'} of size {self.size}",
            f"  smallest relative gap   {span(self.relative_gap)}",
            f"  condition number        {span(self.condition)}",
            f"  tied eigenvalues        {span(self.tied * 100)} %",
            f"  bound n(K+1)/eps        {span(self.bound)}",
            "  largest |R| by rule",
        ]
        width = max(map(len, self.amplification), default=0) + 2
        lines += [f"    {name:<{max(width, 22)}}{span(value)}" for name, value in self.amplification.items()]
        return "\n".join(lines)


@torch.no_grad()
def spectrum_report(A: Tensor, *, gradient: str | GradientRule = "saturate") -> SpectrumReport:
    """Say how close the eigenvalues of a matrix are, and what each gradient rule makes of it.

    Args:
        A: Hermitian, (..., n, n).
        gradient: a rule to report next to the named ones; a Taylor rule also sets K and ε of the bound.

    >>> import torch, eigengrad as eg
    >>> report = eg.spectrum_report(torch.diag(torch.tensor([0.01, 0.01, 0.02])))
    >>> round(report.tied.item(), 2)
    0.67
    >>> print(eg.spectrum_report(torch.eye(2), gradient=eg.Taylor(degree=9, eps=0.01)))
    1 matrix of size 2
      smallest relative gap   0
      condition number        1
      tied eigenvalues        100 %
      bound n(K+1)/eps        2e+03
      largest |R| by rule
        saturate                    1e+05
        exact                       inf
        taylor                      10
        clip                        100
        lorentzian                  0
        mask                        0
        truncate                    0
        unit_norm_or_nan            nan
        Taylor(degree=9, eps=0.01)  10
    """
    check_matrix("spectrum_report", A, square=True)
    rule = resolve(gradient)
    with full_precision(A):
        L = eigh(widen(A)).eigenvalues
    n = L.shape[-1]
    taylor = rule if isinstance(rule, Taylor) else Taylor()
    if n == 0:
        empty = L.new_zeros(L.shape[:-1])
        return SpectrumReport(0, empty + torch.inf, empty + 1, empty, empty, {})
    scale = spectrum_scale(L)
    gaps = (L[..., 1:] - L[..., :-1]) / scale
    close = gaps <= n * torch.finfo(L.dtype).eps
    none = torch.zeros_like(L[..., :1], dtype=torch.bool)
    tied = torch.cat([none, close], -1) | torch.cat([close, none], -1)
    rules = {name: known for name, known in RULES.items() if isinstance(known, PairRule)}
    if isinstance(rule, PairRule) and rule not in rules.values():
        rules[repr(rule)] = rule
    return SpectrumReport(
        size=n,
        relative_gap=gaps.amin(-1) if n > 1 else torch.full_like(L[..., 0], torch.inf),
        condition=(L.abs().amax(-1) / L.abs().amin(-1)).nan_to_num(nan=torch.inf, posinf=torch.inf),  # of zero too
        tied=tied.to(L.dtype).mean(-1),
        bound=n * (taylor.degree + 1) / taylor.positive(L)[1][..., 0],
        amplification={name: torch.triu(known.reciprocal(L), 1).amax((-2, -1)) for name, known in rules.items()},
    )


class GradientMonitor:
    """Records, while it is entered, how often and how strongly gradient rules acted in backward passes.

    For a pair with gap Δ a rule replaces 1/Δ by R; what it removed of the exact gradient is the share 1 − R Δ: q^(K+1)
    for Taylor, e^(−Δ/τ) for Saturate. ``removed`` is its mean over all pairs; ``lost`` is what that means for the
    gradients at hand, in which most pairs of close eigenvalues may have no part: the norm of what was removed over the
    norm of the exact gradient, its mean over all matrices. (Gaps below finfo.eps · max|λ| count as that.) Power
    iteration fills no R, so it is seen in ``lost``, and in ``rank``: how many eigenvectors it kept, as for
    ``Truncate``. Matrix functions and whitening layers with their exact gradient count as matrices that lost nothing.
    Iterations that are differentiated as they are (``power_iteration``, Newton–Schulz, MPA, MTP) have no rule;
    whitening layers that use them are seen in ``lost``, as the difference from the exact gradient of (M + εI)^(−½).

    The monitor adds up on the device, without waiting for it; reading a number (a property, ``str``) waits. What runs
    inside compiled code is not seen. While somebody monitors, there is no :class:`eigengrad.GradientWarning`.

    Args:
        threshold: the removed share, in (0, 1], from which on the rule is said to have acted on a pair.

    >>> import torch, eigengrad as eg
    >>> A = torch.diag(torch.tensor([1.0, 1.0, 2.0])).requires_grad_()
    >>> with eg.GradientMonitor() as monitor:
    ...     eg.eigh(A).eigenvectors.square().sum().backward()
    >>> monitor.pairs, round(monitor.acted, 3), monitor.lost
    (3, 0.333, 0.0)
    """

    def __init__(self, threshold: float = 0.5) -> None:
        require_positive("GradientMonitor", "threshold", threshold)
        if threshold > 1:
            raise ValueError(f"GradientMonitor: threshold must be at most 1; got {threshold!r}")
        self.threshold = threshold
        self.calls = 0
        self.matrices = 0
        self.pairs = 0
        self._acted: Any = 0
        self._removed: Any = 0
        self._largest: Any = 0
        self._lost: Any = 0
        self._kept: Any = 0
        self._truncated = 0

    def __enter__(self) -> GradientMonitor:
        observers.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        observers.remove(self)

    @torch.no_grad()
    def observe_pairs(self, eigenvalues: Tensor, numerators: Tensor, R: Tensor) -> None:
        """Count the pairs of one derivative; see :class:`eigengrad.gradients.observation.Observer`."""
        n = eigenvalues.shape[-1]
        if n < 2:
            return
        # 1 − RΔ is noise where R and Δ are both exact, and NaN only for Exact at a tie.
        removed = torch.triu((1 - R * pair_gaps(eigenvalues)).clamp(0, 1), 1)
        self.calls += 1
        self.matrices += eigenvalues.numel() // n
        self.pairs += eigenvalues.numel() * (n - 1) // 2
        self._acted = self._acted + (removed >= self.threshold).sum()
        self._removed = self._removed + removed.sum(dtype=torch.float32)
        amplification = torch.triu(R, 1).amax() if R.numel() else torch.zeros_like(self._removed)
        # No constant is copied to the device: the host would wait for that.
        before = self._largest if isinstance(self._largest, Tensor) else torch.zeros_like(amplification)
        self._largest = torch.maximum(before.double(), amplification.double())
        self._add(*exact_and_removed(eigenvalues, numerators, R))

    @torch.no_grad()
    def observe_pass(self, exact: Tensor, removed: Tensor) -> None:
        """Count a backward pass that has no pairs."""
        self.calls += 1
        self.matrices += exact.numel()
        self._add(exact, removed)

    @torch.no_grad()
    def observe_kept(self, kept: Tensor) -> None:
        """Count the eigenvectors that were kept, boolean (..., n)."""
        self._kept = self._kept + kept.sum()
        self._truncated += kept.numel() // max(kept.shape[-1], 1)

    def _add(self, exact: Tensor, removed: Tensor) -> None:
        self._lost = self._lost + torch.where(exact > 0, removed / exact, torch.zeros_like(exact)).sum()

    @property
    def acted(self) -> float:
        """Share of pairs of which the rule removed at least ``threshold``."""
        return float(self._acted) / max(self.pairs, 1)

    @property
    def removed(self) -> float:
        """Mean share of the exact gradient that was removed, over all pairs."""
        return float(self._removed) / max(self.pairs, 1)

    @property
    def lost(self) -> float:
        """The norm of what was removed over that of the exact gradient of the vectors, its mean over all matrices."""
        return float(self._lost) / max(self.matrices, 1)

    @property
    def rank(self) -> float:
        """The mean number of eigenvectors that rules which drop some have kept; NaN where there was no such rule."""
        return float(self._kept) / self._truncated if self._truncated else float("nan")

    @property
    def amplification(self) -> float:
        """The largest |R| that was used."""
        return float(self._largest)

    def __str__(self) -> str:
        return (
            f"{self.calls} derivatives of {self.matrices} matrices, {self.pairs} pairs: "
            f"{100 * self.acted:.3g} % of pairs regularised by {100 * self.threshold:.3g} % or more, "
            f"{100 * self.removed:.3g} % removed on average, {100 * self.lost:.3g} % of the gradient lost, "
            f"largest |R| {self.amplification:.3g}"
            + (f", {self.rank:.3g} eigenvectors kept on average" if self._truncated else "")
        )
