"""Whitening and colouring by decomposition of the covariances."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .....eigh import eigh
from .....gradients import GradientRule, PowerIteration
from .....matmul import precise_matmul
from .....matrix_functions import matrix_inv_sqrt, matrix_sqrt
from .....nn.covariance import covariance
from .....nn.whiten_color import transfer
from .....precision import full_precision, widen
from .transfer import Transfer, grouped

__all__ = ["SpectralTransfer"]


class SpectralTransfer(Transfer):
    """y = α [ (Σ_s + εI)^½ (Σ_c + εI)^(−½) (x − μ_c) + μ_s ] + (1 − α) x, group by group, sample by sample.

    Σ_s and μ_s are the covariance and mean, over its positions, of the style after a perceptron of this step's own that
    works on each position. With "exact" the matrix functions are differentiated as such; with a rule, the gradient
    goes through the eigenvectors of Σ + εI, as in the paper. :class:`~eigengrad.PowerIteration` is SVD-PI as it was
    proposed: its deflation is part of the forward pass too, and drops what its stopping conditions drop (λ ≤ ε among
    them) from both matrices.

    Args:
        channels, group_size: see :class:`Transfer`.
        eps: ε.
        gradient: "exact", or a rule.
        per_sample: take the covariances of each sample; else one of the whole batch for content, and one for style.
    """

    def __init__(
        self,
        channels: int,
        group_size: int,
        *,
        eps: float = 0.01,
        gradient: str | GradientRule = "exact",
        per_sample: bool = True,
    ) -> None:
        super().__init__(channels, group_size)
        self.eps, self.per_sample = eps, per_sample
        self.gradient = gradient.for_covariance(eps) if isinstance(gradient, PowerIteration) else gradient
        self.perceptron = nn.Sequential(
            nn.Conv2d(channels, channels, 1), nn.LeakyReLU(0.01), nn.Conv2d(channels, channels, 1)
        )

    def forward(self, content: Tensor, style: Tensor) -> tuple[Tensor, Tensor]:
        """The coloured content, and penalties of zero (2,)."""
        if style.shape[-2] * style.shape[-1] < 2:
            raise ValueError(
                f"{type(self).__name__}: style must have at least 2 positions to take a covariance of; got "
                f"{tuple(style.shape)}. Pass the features before they are pooled, or of larger pictures"
            )
        root_eps = self.eps if self.gradient == "exact" else None
        style = self.perceptron(style)
        coloured = transfer(
            content,
            style,
            self._roots,
            groups=self.groups,
            alpha=self.strength,
            per_sample=self.per_sample,
            root_eps=root_eps,
        )
        return coloured, content.new_zeros(2)

    def whitened(self, content: Tensor) -> Tensor:
        """S Σ_c S with S = (Σ_c + εI)^(−½), of each sample or of the batch."""
        with full_precision(content):
            points = grouped(widen(content), self.group_size)
            if not self.per_sample:
                points = points.movedim(0, -2).flatten(-2).unsqueeze(0)
            _, found = covariance(points)
            flat = found.flatten(0, 1)  # with rules, roots are of a flat batch
            S = self._roots(flat, flat)[0].reshape(found.shape)
            return precise_matmul(precise_matmul(S, found), S.mT)

    def _roots(self, content: Tensor, style: Tensor) -> tuple[Tensor, Tensor]:
        """(Σ_c + εI)^(−½) and (Σ_s + εI)^½."""
        rule = self.gradient
        if rule == "exact":
            return matrix_inv_sqrt(content, eps=self.eps), matrix_sqrt(style, eps=self.eps)
        identity = torch.eye(content.shape[-1], dtype=content.dtype, device=content.device)
        L, V = eigh(torch.cat([content, style]) + self.eps * identity, gradient=rule)
        if isinstance(rule, PowerIteration):
            V = rule.truncate(L, V)
        L = L.clamp(min=self.eps)
        power = torch.cat([L[: len(content)].rsqrt(), L[len(content) :].sqrt()])
        matrices = precise_matmul(V * power.unsqueeze(-2), V.mT)
        return matrices[: len(content)], matrices[len(content) :]

    def extra_repr(self) -> str:
        """Channels, groups, ε and the gradient."""
        return f"{super().extra_repr()}, eps={self.eps}, gradient={self.gradient!r}, per_sample={self.per_sample}"
