"""The passes over a feature map that whitening takes: two in the forward direction, two in the backward one.

    statistics   μ and M of each group
    whiten       y = diag(γ) S (x − μ) + β
    sums         G = Σ dy (x − μ)ᵀ, Σ dy, and diag(G Sᵀ)
    gradient     dx = Aᵀ (dy − Σdy/m) + (gM + gMᵀ)/m (x − μ), with A = diag(γ) S

Once in products of BLAS, which run anywhere, and once in compiled kernels, each of which reads its maps once. For the
inverse square root S = (M + εI)^(−½) each has the algebra between the passes as well.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import kernels
from .._inputs import matmul
from ..kernels import KernelPasses, kernel_passes
from ..matrix_functions.inv_sqrt import InvSqrt
from .layout import Layout, channels_fast, memory_format

__all__ = ["BlasPasses", "Passes", "passes_over"]


class BlasPasses:
    """Passes over maps (N, C, *spatial) of one shape and type, C channels in groups of d, m points, by BLAS.

    Points are centred only where the mean is far off: y = A x + c copies nothing, but Σ xxᵀ/m − μμᵀ loses as many
    digits as (μ/σ)² has.
    """

    _FAR = 64.0

    def __init__(self, x: Tensor, groups: int) -> None:
        self.layout, self.far = Layout.of(x, groups), True
        self.column = groups, x.shape[1] // groups, 1

    def statistics(self, x: Tensor, cov: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Mean (C,), the same in the type of ``x``, and covariance (groups, d, d), in ``cov`` if given."""
        mean, found = self._moments(x)
        return mean, mean, found if cov is None else cov.copy_(found)

    def _moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        count = max(x.numel() // max(x.shape[1], 1), 1)
        mean = x.sum([0, *range(2, x.ndim)]) / count
        column = mean.view(self.column)
        if x.device.type == "cpu":  # elsewhere the decision would wait for the device
            cov = self.layout.sum_products(x, x) / count - column @ column.mT
            variance = torch.diagonal(cov, dim1=-2, dim2=-1)
            self.far = bool((column.squeeze(-1) ** 2 > self._FAR * variance).any())
            if not self.far:
                return mean, cov
        centred = self._centred(x, mean)
        return mean, self.layout.sum_products(centred, centred) / count

    def whiten(self, x: Tensor, S: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor) -> Tensor:
        """The output, in the layout of ``x``."""
        A = S if weight is None else weight.view(self.column) * S
        offset = torch.zeros_like(mean) if bias is None else bias.to(mean.dtype)
        if not self.far:
            offset = offset - (A @ mean.view(self.column)).flatten()
        y = torch.empty_like(x)
        self.layout.affine(A, offset, self._centred(x, mean), out=y)
        return y

    def whiten_by_root(
        self, x: Tensor, L: Tensor, V: Tensor, eps: float, weight: Tensor | None, bias: Tensor | None, mean: Tensor
    ) -> tuple[Tensor, Tensor]:
        """S = (M + εI)^(−½) from the eigenpairs of M, and :meth:`whiten` with it."""
        S = matmul(V * InvSqrt().value((L + eps).clamp(min=eps)).unsqueeze(-2), V.mT)
        return S, self.whiten(x, S, weight, bias, mean)

    def sums(self, dy: Tensor, x: Tensor, S: Tensor, mean: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """G (groups, d, d), Σ dy (C,) and diag(G Sᵀ) (C,)."""
        dy = dy.contiguous(memory_format=memory_format(x))
        sums = dy.sum([0, *range(2, dy.ndim)])
        G = self.layout.sum_products(dy, self._centred(x, mean))
        if not self.far:
            G = G - sums.view(self.column) @ mean.view(self.column).mT
        return G, sums, (G * S).sum(-1).flatten()

    def gradient(
        self,
        dy: Tensor,
        x: Tensor,
        S: Tensor,
        gM: Tensor,
        weight: Tensor | None,
        sums: Tensor,
        mean: Tensor,
        m: int,
        shift: Tensor | None = None,
    ) -> Tensor:
        """The gradient of ``x``, in its layout, with ``shift`` (C,) added to every point."""
        dy = dy.contiguous(memory_format=memory_format(x))
        At = (S if weight is None else weight.view(self.column) * S).mT
        B = (gM + gM.mT) / m
        offset = -(At @ sums.view(self.column)) / m
        if shift is not None:
            offset = offset + shift.view(self.column)
        if not self.far:
            offset = offset - B @ mean.view(self.column)
        dx = torch.empty_like(x)
        self.layout.affine(At, offset.flatten(), dy, out=dx)
        self.layout.matrices(dx).baddbmm_(self.layout.operator(B), self.layout.matrices(self._centred(x, mean)))
        return dx

    def inverse_root_gradient(self, G: Tensor, weight: Tensor | None, L: Tensor, V: Tensor, eps: float) -> Tensor:
        """The gradient of M, from that of A = diag(γ) S and the eigenpairs of M."""
        gS, values = G if weight is None else weight.view(self.column) * G, (L + eps).clamp(min=eps)
        E = matmul(matmul(V.mT, (gS + gS.mT) * 0.5), V)
        return matmul(matmul(V, InvSqrt().weigh(values.unsqueeze(-1), values.unsqueeze(-2), E)), V.mT)

    def gradient_by_root(
        self, dy: Tensor, x: Tensor, S: Tensor, L: Tensor, V: Tensor, eps: float, weight: Tensor | None, mean: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of ``x``, in its layout, of γ and of β: :meth:`sums` and :meth:`gradient` in one."""
        G, sums, slopes = self.sums(dy, x, S, mean)
        gM = self.inverse_root_gradient(G, weight, L, V, eps)
        count = max(x.numel() // max(x.shape[1], 1), 1)
        return self.gradient(dy, x, S, gM, weight, sums, mean, count), slopes, sums

    def _centred(self, x: Tensor, mean: Tensor) -> Tensor:
        return x - mean.view(1, -1, *[1] * (x.ndim - 2)) if self.far else x


#: One of the two, which have the same methods.
Passes = BlasPasses | KernelPasses


def passes_over(x: Tensor, groups: int) -> Passes:
    """The faster of the two that can work on ``x``, which is dense; see :func:`.layout.dense`."""
    found = kernel_passes(x.shape, x.dtype, channels_fast(x), groups) if kernels.usable(x) and x.numel() > 0 else None
    return BlasPasses(x, groups) if found is None else found
