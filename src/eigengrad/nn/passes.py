"""The passes over a feature map that whitening takes: two in the forward direction, two in the backward one.

    statistics   μ and M of each group
    whiten       y = diag(γ) S (x − μ) + β
    sums         G = Σ dy (x − μ)ᵀ, Σ dy, and diag(G Sᵀ)
    gradient     dx = Aᵀ (dy − Σdy/m) + (gM + gMᵀ)/m (x − μ), with A = diag(γ) S

Once in products of BLAS, which run anywhere, and once in compiled kernels, each of which reads its maps once.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .. import kernels
from ..kernels import huge_pages
from ..kernels.memory import (
    InMemory,
    address,
    address_or_null,
    empty_like,
    readable,
    readable_map,
    readable_strided,
    writable,
)
from ..kernels.templates import template
from ..kernels.ways import way_through
from .layout import Layout, channels_fast, memory_format

if TYPE_CHECKING:
    from ..kernels.runtime.launch import Launcher

__all__ = ["BlasPasses", "KernelPasses", "passes_over"]


def passes_over(x: Tensor, groups: int) -> BlasPasses | KernelPasses:
    """The faster of the two that can work on ``x``, which is dense; see :func:`.layout.dense`."""
    if kernels.usable(x) and x.numel() > 0:
        return _kernel_passes(x.shape, x.dtype, channels_fast(x), groups)
    return BlasPasses(x, groups)


class BlasPasses:
    """In torch operations.

    Points are centred only where the mean is far off: y = A x + c copies nothing, but Σ xxᵀ/m − μμᵀ loses as many
    digits as (μ/σ)² has.
    """

    _FAR = 64.0

    def __init__(self, x: Tensor, groups: int) -> None:
        self.layout, self.far = Layout.of(x, groups), True
        self.column = groups, x.shape[1] // groups, 1

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean (C,), the same in the type of ``x``, and covariance (groups, d, d)."""
        count = max(x.numel() // max(x.shape[1], 1), 1)
        mean = x.sum([0, *range(2, x.ndim)]) / count
        column = mean.view(self.column)
        if x.is_cpu:  # elsewhere the decision would wait for the device
            cov = self.layout.sum_products(x, x) / count - column @ column.mT
            variance = torch.diagonal(cov, dim1=-2, dim2=-1)
            self.far = bool((column.squeeze(-1) ** 2 > self._FAR * variance).any())
            if not self.far:
                return mean, mean, cov
        centred = self._centred(x, mean)
        return mean, mean, self.layout.sum_products(centred, centred) / count

    def whiten(self, x: Tensor, S: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor) -> Tensor:
        """The output, in the layout of ``x``."""
        A = S if weight is None else weight.view(self.column) * S
        offset = torch.zeros_like(mean) if bias is None else bias.to(mean.dtype)
        if not self.far:
            offset = offset - (A @ mean.view(self.column)).flatten()
        y = torch.empty_like(x)
        self.layout.affine(A, offset, self._centred(x, mean), out=y)
        return y

    def sums(self, dy: Tensor, x: Tensor, S: Tensor, mean: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(groups, d, d), (C,) and (C,)."""
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

    def _centred(self, x: Tensor, mean: Tensor) -> Tensor:
        return x - mean.view(1, -1, *[1] * (x.ndim - 2)) if self.far else x


@functools.cache
def _vector_bytes() -> int:
    """How wide the kernels' vectors are on this CPU."""
    from ..kernels import vectors

    return vectors.BYTES


class KernelPasses:
    """In compiled kernels: one of the :mod:`eigengrad.kernels.ways`, and ``whitening`` between the passes.

    Means are float64; what is subtracted from the points is their rounded value, and the rest goes into the offsets.
    How the points are cut for sums depends on the shape alone, so results do not depend on the number of threads.
    """

    _SLABS = 16  # at most so many threads share a sum
    _TOTALS = 1 << 16  # at most so many partial sums, unless there are fewer than four slabs
    _STREAMED = 1 << 23  # bytes of a result that does not stay in a cache

    def __init__(self, shape: torch.Size, dtype: torch.dtype, fast: bool, groups: int) -> None:
        self.dtype, size, width = dtype, dtype.itemsize, _vector_bytes() // dtype.itemsize
        self.groups, self.d = groups, shape[1] // groups
        channels, positions = shape[1], math.prod(shape[2:])
        self.points, self.fast = shape[0] * positions, fast or positions == 1
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        self.format = formats.get(len(shape), torch.contiguous_format) if fast else torch.contiguous_format
        self.shape = self.points, channels, positions, int(self.fast), self.d
        rows = -(-self.d // 4) * 4
        self.span = _span(self.d, width) if self.fast else 1
        tile = self.span * rows * size  # bytes for one point
        self.summed = _length(self.points, (1 << 17) // tile, 256)
        self.mixed = _length(self.points, (1 << 16) // tile, 64)
        self.way = way_through(self.points, channels, positions, self.fast, self.d, width)
        if self.way == "channel_vectors":
            self.summed = self.mixed = 128  # so few points that they are still in a cache when they are read again
        whole = not self.fast and positions % width == 0 and self.d == rows
        self.tiles = shape[0] * -(-positions // self.mixed) if whole else -(-self.points // self.mixed)
        streamable = whole or (self.fast and channels % width == 0 and self.span * self.d % width == 0)
        self.streamed = streamable and self.points * channels * size >= self._STREAMED
        blocks = rows // 4
        totals = groups * (blocks + 1) * blocks * 16
        work = self.points * channels * (self.d + 16) >> 21
        fits = max(4, self._TOTALS // totals)
        self.slabs = max(1, min(self._SLABS, work, fits, -(-self.points // self.summed)))
        weights, offsets = groups * rows * rows, groups * rows
        self.weight_bytes = weights * size
        # Templates of what is of one size every time.
        self.doubles, self.channels = template([channels], torch.float64), template([channels], dtype)
        self.matrices = template([groups, self.d, self.d], dtype)
        self.totals = template([self.slabs, totals], torch.float64)
        self.forward_weights = template([weights + offsets], dtype)
        self.backward_weights = template([2 * weights + offsets], dtype)

    def statistics(self, x: Tensor, cov: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Mean (C,) in float64, the same in the type of ``x``, and covariance (groups, d, d), in ``cov`` if given."""
        C = self.groups * self.d
        x, mean, rounded = self._map(x), empty_like(self.doubles), empty_like(self.channels)
        cov = empty_like(self.matrices) if cov is None else writable(cov, self.dtype, C * self.d)
        self._kernel("feature_maps", "pivots")(address(x), *self.shape[:4], address(mean))
        totals = self._sum(x, x, mean)
        self._kernel("whitening", "mean_and_covariance")(
            address(totals), self.slabs, self.points, C, self.d, address(mean), address(rounded), address(cov)
        )
        return mean, rounded, cov

    def whiten_by_root(
        self, x: Tensor, L: Tensor, V: Tensor, eps: float, weight: Tensor | None, bias: Tensor | None, mean: Tensor
    ) -> tuple[Tensor, Tensor]:
        """S = (M + εI)^(−½) from the eigenpairs of M, and :meth:`whiten` with it."""
        rows, weight, bias = self._by_columns(V), self._of_channels(weight), self._of_channels(bias)
        L, mean = self._values(L), self._mean(mean)
        S, packed = empty_like(self.matrices), empty_like(self.forward_weights)
        weights, offsets = address(packed), address(packed) + self.weight_bytes
        self._kernel("whitening", "whiten_by_root")(
            address(L), address(rows), eps, address_or_null(weight), address_or_null(bias), address(mean), self.groups,
            self.d, address(S), weights, offsets,
        )  # fmt: skip
        return S, self._mix(self._map(x), None, mean, weights, offsets)

    def whiten(self, x: Tensor, S: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor) -> Tensor:
        """The output, in the layout of ``x``."""
        S, weight, bias = self._square(S), self._of_channels(weight), self._of_channels(bias)
        mean, packed = self._mean(mean), empty_like(self.forward_weights)
        weights, offsets = address(packed), address(packed) + self.weight_bytes
        self._kernel("whitening", "forward_weights")(
            address(S), address_or_null(weight), address_or_null(bias), address(mean), self.groups, self.d,
            weights, offsets,
        )  # fmt: skip
        return self._mix(self._map(x), None, mean, weights, offsets)

    def sums(self, dy: Tensor, x: Tensor, S: Tensor, mean: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(groups, d, d), (C,) and (C,)."""
        C, S, mean = self.groups * self.d, self._square(S), self._mean(mean)
        totals = self._sum(self._map(dy), self._map(x), mean)
        G, sums, slopes = empty_like(self.matrices), empty_like(self.channels), empty_like(self.channels)
        self._kernel("whitening", "products_and_sums")(
            address(totals), self.slabs, address(mean), address(S), C, self.d, address(G),
            address(sums), address(slopes),
        )  # fmt: skip
        return G, sums, slopes

    def gradient_by_root(
        self, dy: Tensor, x: Tensor, S: Tensor, L: Tensor, V: Tensor, eps: float, weight: Tensor | None, mean: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of ``x``, in its layout, of γ and of β: :meth:`sums` and :meth:`gradient` in one."""
        dy, x, S, L, mean = self._map(dy), self._map(x), self._square(S), self._values(L), self._mean(mean)
        rows, weight = self._by_columns(V), self._of_channels(weight)
        totals = self._sum(dy, x, mean)
        slopes, sums = empty_like(self.channels), empty_like(self.channels)
        G, gM, packed = empty_like(self.matrices), empty_like(self.matrices), empty_like(self.backward_weights)
        weights, offsets = address(packed), address(packed) + 2 * self.weight_bytes
        self._kernel("whitening", "gradient_by_root")(
            address(totals), self.slabs, address(mean), address(S), address_or_null(weight), address(L),
            address(rows), eps, self.points, self.groups, self.d, address(G), address(gM), address(sums),
            address(slopes), weights, offsets,
        )  # fmt: skip
        return self._mix(dy, x, mean, weights, offsets), slopes, sums

    def inverse_root_gradient(self, G: Tensor, weight: Tensor | None, L: Tensor, V: Tensor, eps: float) -> Tensor:
        """The gradient of M, from that of A = diag(γ) S and the eigenpairs of M."""
        G, L, rows, weight = self._square(G), self._values(L), self._by_columns(V), self._of_channels(weight)
        gM = empty_like(self.matrices)
        self._kernel("whitening", "inverse_root_gradient")(
            address(G), address_or_null(weight), address(L), address(rows), eps, self.groups, self.d, address(gM)
        )
        return gM

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
        S, gM, weight, shift = self._square(S), self._square(gM), self._of_channels(weight), self._of_channels(shift)
        sums, mean = readable(sums, self.dtype, self.groups * self.d), self._mean(mean)
        packed = empty_like(self.backward_weights)
        weights, offsets = address(packed), address(packed) + 2 * self.weight_bytes
        self._kernel("whitening", "backward_weights")(
            address(S), address(gM), address_or_null(weight), address(sums), address_or_null(shift), address(mean), m,
            self.groups, self.d, weights, offsets,
        )  # fmt: skip
        return self._mix(self._map(dy), self._map(x), mean, weights, offsets)

    def _sum(self, left: InMemory, right: InMemory, centre: InMemory) -> InMemory:
        """The totals of :mod:`eigengrad.kernels.feature_maps`, a row a slab."""
        totals = empty_like(self.totals)
        arguments = address(left), address(right), address(centre), *self.shape, address(totals)
        sizes = self.slabs, self.summed, self.span
        nanoseconds = (0.06 + 0.0125 * self.d) * (1 if left is right else 2)
        self._run(self._kernel(self.way, "moments"), arguments, self.slabs, sizes, nanoseconds)
        return totals

    def _mix(self, first: InMemory, second: InMemory | None, centre: InMemory, weights: int, offsets: int) -> InMemory:
        y = huge_pages.empty_like(first)
        maps = address(first), address_or_null(second), address(centre), *self.shape
        arguments = *maps, weights, offsets, address(y)
        streamed = self.streamed and address(y) % _vector_bytes() == 0
        sizes = self.mixed, self.span, int(streamed)
        nanoseconds = (0.1 + 0.021 * self.d) * (1 if second is None else 2)
        self._run(self._kernel(self.way, "mix"), arguments, self.tiles, sizes, nanoseconds)
        return y

    def _kernel(self, module: str, name: str) -> Launcher:
        return kernels.load(module, name, self.dtype)

    def _map(self, x: Tensor) -> InMemory:
        """A map (N, C, *spatial), or a gradient of one, in the layout that was planned for."""
        return readable_map(x, self.dtype, self.points * self.groups * self.d, self.format)

    def _mean(self, mean: Tensor) -> InMemory:
        return readable(mean, torch.float64, self.groups * self.d)

    def _square(self, S: Tensor) -> InMemory:
        """A matrix for each group, (groups, d, d)."""
        return readable(S, self.dtype, self.groups * self.d * self.d)

    def _values(self, L: Tensor) -> InMemory:
        """The eigenvalues of each group, (groups, d)."""
        return readable(L, self.dtype, self.groups * self.d)

    def _by_columns(self, V: Tensor) -> InMemory:
        """A tensor that has the columns of ``V`` one after the other in memory: mostly ``V`` itself."""
        return readable_strided(V, self.dtype, self.matrices.shape, (self.d * self.d, 1, self.d))

    def _of_channels(self, parameter: Tensor | None) -> InMemory | None:
        """γ, β or another number for each channel, (C,), as the kernels read it."""
        return None if parameter is None else readable(parameter, self.dtype, self.groups * self.d)

    def _run(
        self, kernel: Launcher, arguments: tuple[int, ...], count: int, sizes: tuple[int, ...], cost: float
    ) -> None:
        """A kernel that takes ``cost`` nanoseconds a value over ``count`` parts of the points."""
        kernel.launch(arguments, count, 1, sizes, self.points * self.groups * self.d * cost * 1e-3)


@functools.lru_cache(maxsize=1024)
def _kernel_passes(shape: torch.Size, dtype: torch.dtype, fast: bool, groups: int) -> KernelPasses:
    """What depends on the shape alone is worked out once."""
    return KernelPasses(shape, dtype, fast, groups)


def _length(points: int, fitting: int, least: int) -> int:
    """Points of a tile: multiples of 64, as many as fit, from ``least`` to 1024, and no more than there are."""
    return min(max(least, min(1024, fitting // 64 * 64)), -(-points // 64) * 64)


def _span(d: int, width: int) -> int:
    """How many groups of channels that are next to each other in memory share a tile: 64 channels, in whole vectors."""
    most = max(1, 64 // d)
    return next((span for span in range(most, 0, -1) if span * d % width == 0), most)
