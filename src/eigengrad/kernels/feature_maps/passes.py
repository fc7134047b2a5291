"""The passes over a feature map that whitening takes, by kernels: tensors in, tensors out.

What they compute is in :mod:`eigengrad.nn.passes`, where the same passes stand in torch operations.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .. import costs, huge_pages
from ..dispatch import KernelsUnavailableError, load, vector_bytes
from ..memory import InMemory, address, address_or_null, maker, readable, readable_strided, writable
from .arguments import AffineArguments, MomentsArguments
from .backends import select_backend

if TYPE_CHECKING:
    from ..runtime.launch import Launcher

__all__ = ["KernelPasses", "kernel_passes"]


class KernelPasses:
    """One of the :mod:`.backends` for the passes, and :mod:`.whitening` between them.

    Means are float64; what is subtracted from the points is their rounded value, and the rest goes into the offsets.
    How the points are cut for sums depends on the shape alone, so results do not depend on the number of threads.
    """

    def __init__(self, shape: torch.Size, dtype: torch.dtype, fast: bool, groups: int) -> None:
        self.dtype, size, width = dtype, dtype.itemsize, vector_bytes() // dtype.itemsize
        self.groups, self.d = groups, shape[1] // groups
        channels, positions = shape[1], math.prod(shape[2:])
        self.points, self.fast = shape[0] * positions, fast or positions == 1
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        self.format = formats.get(len(shape), torch.contiguous_format) if fast else torch.contiguous_format
        self.shape = self.points, channels, positions, int(self.fast), self.d
        rows = -(-self.d // 4) * 4
        self.groups_per_tile = _groups_per_tile(self.d, width) if self.fast else 1
        tile = self.groups_per_tile * rows * size  # bytes for one point
        self.moments_length = _length(self.points, costs.MOMENTS_TILE // tile, 256)
        self.affine_length = _length(self.points, costs.AFFINE_TILE // tile, 64)
        self.backend = select_backend(self.points, channels, positions, self.fast, self.d, width)
        if self.backend == "nhwc_broadcast":
            self.moments_length = self.affine_length = costs.BROADCAST_POINTS
        whole = not self.fast and positions % width == 0 and self.d == rows
        self.tiles = shape[0] * -(-positions // self.affine_length) if whole else -(-self.points // self.affine_length)
        streamable = whole or (self.fast and channels % width == 0 and self.groups_per_tile * self.d % width == 0)
        self.streamed = streamable and self.points * channels * size >= costs.STREAMED
        blocks = rows // 4
        partial_sums = groups * (blocks + 1) * blocks * 16
        work = -(-self.points * channels * (self.d + 16) // costs.SPLIT_WORK)
        fits = max(4, costs.PARTIAL_SUMS // partial_sums)
        self.splits = max(1, min(costs.SPLITS, work, fits, -(-self.points // self.moments_length)))
        weights, offsets = groups * rows * rows, groups * rows
        self.weight_bytes = weights * size
        # What is of one size every time.
        self.new_doubles, self.new_channels = maker([channels], torch.float64), maker([channels], dtype)
        self.matrices = torch.Size([groups, self.d, self.d])
        self.new_matrices = maker(self.matrices, dtype)
        self.new_partial_sums = maker([self.splits, partial_sums], torch.float64)
        self.new_forward_weights = maker([weights + offsets], dtype)
        self.new_backward_weights = maker([2 * weights + offsets], dtype)

    def statistics(self, x: Tensor, cov: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Mean (C,) in float64, the same in the type of ``x``, and covariance (groups, d, d), in ``cov`` if given."""
        C = self.groups * self.d
        x, mean, rounded = self._map(x), self.new_doubles(), self.new_channels()
        cov = self.new_matrices() if cov is None else writable(cov, self.dtype, C * self.d)
        self._kernel("feature_maps.whitening", "pivots")(address(x), *self.shape[:4], address(mean))
        partial_sums = self._sum(x, x, mean)
        self._kernel("feature_maps.whitening", "mean_and_covariance")(
            address(partial_sums), self.splits, self.points, C, self.d, address(mean), address(rounded), address(cov)
        )
        return mean, rounded, cov

    def whiten_by_root(
        self, x: Tensor, L: Tensor, V: Tensor, eps: float, weight: Tensor | None, bias: Tensor | None, mean: Tensor
    ) -> tuple[Tensor, Tensor]:
        """S = (M + εI)^(−½) from the eigenpairs of M, and :meth:`whiten` with it."""
        L, rows, S = self._values(L), self._by_columns(V), self.new_matrices()
        return S, self._whiten(x, S, weight, bias, mean, (address(L), address(rows), eps))

    def whiten(self, x: Tensor, S: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor) -> Tensor:
        """The output, in the layout of ``x``."""
        return self._whiten(x, self._square(S), weight, bias, mean, (0, 0, 0.0))

    def _whiten(
        self, x: Tensor, S: InMemory, weight: Tensor | None, bias: Tensor | None, mean: Tensor,
        eigenpairs: tuple[int, int, float],
    ) -> Tensor:  # fmt: skip
        weight, bias, mean = self._of_channels(weight), self._of_channels(bias), self._mean(mean)
        packed = self.new_forward_weights()
        weights, offsets = address(packed), address(packed) + self.weight_bytes
        self._kernel("feature_maps.whitening", "forward_weights")(
            *eigenpairs, address(S), address_or_null(weight), address_or_null(bias), address(mean), self.groups, self.d,
            weights, offsets,
        )  # fmt: skip
        return self._apply_affine(self._map(x), None, mean, weights, offsets)

    def sums(self, dy: Tensor, x: Tensor, S: Tensor, mean: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Σ dy (x − μ)ᵀ (groups, d, d), Σ dy (C,), and the gradient of γ (C,)."""
        S, mean = self._square(S), self._mean(mean)
        partial_sums = self._sum(self._map(dy), self._map(x), mean)
        G, sums, slopes = self.new_matrices(), self.new_channels(), self.new_channels()
        self._algebra(
            partial_sums=address(partial_sums), mean=address(mean), S=address(S), G=address(G), sums=address(sums),
            slopes=address(slopes),
        )  # fmt: skip
        return G, sums, slopes

    def gradient_by_root(
        self, dy: Tensor, x: Tensor, S: Tensor, L: Tensor, V: Tensor, eps: float, weight: Tensor | None, mean: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of ``x``, in its layout, of γ and of β: :meth:`sums` and :meth:`gradient` in one."""
        dy, x, S, L, mean = self._map(dy), self._map(x), self._square(S), self._values(L), self._mean(mean)
        rows, weight = self._by_columns(V), self._of_channels(weight)
        partial_sums = self._sum(dy, x, mean)
        slopes, sums = self.new_channels(), self.new_channels()
        G, gM, packed = self.new_matrices(), self.new_matrices(), self.new_backward_weights()
        weights, offsets = address(packed), address(packed) + 2 * self.weight_bytes
        self._algebra(
            partial_sums=address(partial_sums), mean=address(mean), S=address(S), weight=address_or_null(weight),
            L=address(L), V=address(rows), eps=eps, points=self.points, G=address(G), gM=address(gM),
            sums=address(sums), slopes=address(slopes), weights=weights, offsets=offsets,
        )  # fmt: skip
        return self._apply_affine(dy, x, mean, weights, offsets), slopes, sums

    def inverse_root_gradient(self, G: Tensor, weight: Tensor | None, L: Tensor, V: Tensor, eps: float) -> Tensor:
        """The gradient of M, from that of A = diag(γ) S and the eigenpairs of M."""
        G, L, rows, weight = self._square(G), self._values(L), self._by_columns(V), self._of_channels(weight)
        gM = self.new_matrices()
        self._algebra(
            weight=address_or_null(weight), L=address(L), V=address(rows), eps=eps, G=address(G), gM=address(gM)
        )
        return gM

    def gradient(
        self, dy: Tensor, x: Tensor, S: Tensor, gM: Tensor, weight: Tensor | None, sums: Tensor, mean: Tensor, m: int,
        shift: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """The gradient of ``x``, in its layout, with ``shift`` (C,) added to every point."""
        S, gM, weight, shift = self._square(S), self._square(gM), self._of_channels(weight), self._of_channels(shift)
        sums, mean = readable(sums, self.dtype, self.groups * self.d), self._mean(mean)
        packed = self.new_backward_weights()
        weights, offsets = address(packed), address(packed) + 2 * self.weight_bytes
        self._algebra(
            mean=address(mean), S=address(S), weight=address_or_null(weight), points=m, gM=address(gM),
            sums=address(sums), shift=address_or_null(shift), weights=weights, offsets=offsets,
        )  # fmt: skip
        return self._apply_affine(self._map(dy), self._map(x), mean, weights, offsets)

    def _algebra(
        self, *, partial_sums: int = 0, mean: int = 0, S: int = 0, weight: int = 0, L: int = 0, V: int = 0,
        eps: float = 0.0, points: int = 0, G: int = 0, gM: int = 0, sums: int = 0, slopes: int = 0, shift: int = 0,
        weights: int = 0, offsets: int = 0,
    ) -> None:  # fmt: skip
        """Those steps of :func:`.whitening.backward_weights` whose addresses are given."""
        self._kernel("feature_maps.whitening", "backward_weights")(
            partial_sums, self.splits, mean, S, weight, L, V, eps, points, self.groups, self.d, G, gM, sums, slopes,
            shift, weights, offsets,
        )  # fmt: skip

    def _sum(self, left: InMemory, right: InMemory, centre: InMemory) -> InMemory:
        """The partial sums of :mod:`.harness`, a row a split."""
        partial_sums = self.new_partial_sums()
        maps = address(left), address(right), address(centre), *self.shape
        sizes = self.moments_length, self.groups_per_tile
        arguments = MomentsArguments(*maps, *sizes, address(partial_sums), self.splits)
        cost = costs.moments_pass(self.points * self.groups * self.d, self.d, 1 if left is right else 2)
        self._kernel(f"feature_maps.{self.backend}", "moments").launch(arguments, self.splits, 1, cost)
        return partial_sums

    def _apply_affine(
        self, first: InMemory, second: InMemory | None, centre: InMemory, weights: int, offsets: int
    ) -> InMemory:
        y = huge_pages.empty_like(first)
        streamed = self.streamed and address(y) % vector_bytes() == 0
        maps = address(first), address_or_null(second), address(centre), *self.shape
        sizes = self.affine_length, self.groups_per_tile
        arguments = AffineArguments(*maps, *sizes, weights, offsets, address(y), int(streamed), self.tiles)
        cost = costs.affine_pass(self.points * self.groups * self.d, self.d, 1 if second is None else 2)
        self._kernel(f"feature_maps.{self.backend}", "apply_affine").launch(arguments, self.tiles, 1, cost)
        return y

    def _kernel(self, module: str, name: str) -> Launcher:
        return load(module, name, self.dtype)

    def _map(self, x: Tensor) -> InMemory:
        """A map (N, C, *spatial), or a gradient of one, in the layout that was planned for."""
        return readable(x, self.dtype, self.points * self.groups * self.d, self.format)

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
        return readable_strided(V, self.dtype, self.matrices, (self.d * self.d, 1, self.d))

    def _of_channels(self, parameter: Tensor | None) -> InMemory | None:
        """γ, β or another number for each channel, (C,), as the kernels read it."""
        return None if parameter is None else readable(parameter, self.dtype, self.groups * self.d)


def kernel_passes(shape: torch.Size, dtype: torch.dtype, fast: bool, groups: int) -> KernelPasses | None:
    """The passes over maps (N, C, *spatial), whose channels are ``fast`` or slow in memory; None without kernels."""
    try:
        return _kernel_passes(shape, dtype, fast, groups)
    except KernelsUnavailableError:
        return None


@functools.lru_cache(maxsize=1024)
def _kernel_passes(shape: torch.Size, dtype: torch.dtype, fast: bool, groups: int) -> KernelPasses:
    """What depends on the shape alone is worked out once."""
    return KernelPasses(shape, dtype, fast, groups)


def _length(points: int, fitting: int, least: int) -> int:
    """Points of a tile: multiples of 64, as many as fit, from ``least`` to 1024, and no more than there are."""
    return min(max(least, min(1024, fitting // 64 * 64)), -(-points // 64) * 64)


def _groups_per_tile(d: int, width: int) -> int:
    """How many groups of channels that are next to each other in memory share a tile: 64 channels, in whole vectors."""
    most = max(1, 64 // d)
    return next((groups_per_tile for groups_per_tile in range(most, 0, -1) if groups_per_tile * d % width == 0), most)
