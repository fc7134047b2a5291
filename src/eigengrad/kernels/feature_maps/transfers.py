"""Whitening and colouring matrices of whole batches, by kernels: tensors in, tensors out. See :mod:`.coloring`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .. import costs
from ..dispatch import load
from ..memory import address, empty_like, readable

__all__ = ["Transfers"]


class Transfers:
    """T = α (Σ_s + εI)^½ (Σ_c + εI)^(−½) + (1 − α) I for pairs of covariances, and back.

    Args:
        L, V: eigenvalues (count, d) and eigenvectors (count, d, d) of the covariances, of all contents first.
        contents: how many of them are contents; content i goes with style i modulo their number.
        alpha, eps: α, and ε > 0.
    """

    def __init__(self, L: Tensor, V: Tensor, contents: int, alpha: float, eps: float) -> None:
        count, d = L.shape
        self.dtype, self.d, self.count, self.contents, self.alpha, self.eps = V.dtype, d, count, contents, alpha, eps
        self.L = readable(L, self.dtype, count * d)
        self.rows = readable(V.mT, self.dtype, count * d * d)  # V mostly has this layout
        self.S = empty_like(V.mT)
        arguments = address(self.L), address(self.rows), eps, contents, address(self.S)
        self._run("vjp.matrix_roots", "roots", arguments, count, 1)

    def transfers(self) -> Tensor:
        """T of all contents, (contents, d, d)."""
        T = empty_like(self.S[: self.contents])
        arguments = address(self.S), self.alpha, self.count - self.contents, address(T)
        self._run("feature_maps.coloring", "transfers", arguments, self.contents, 1)
        return T

    def gradients(self, gT: Tensor) -> Tensor:
        """The gradients of all covariances, (count, d, d), symmetric, from those of T."""
        G, gM = readable(gT, self.dtype, self.contents * self.d * self.d), empty_like(self.S)
        pairs = address(self.L), address(self.rows), self.eps, self.alpha, self.contents, address(gM)
        arguments = address(G), address(self.S), *pairs
        self._run("feature_maps.coloring", "transfer_gradients", arguments, self.count, 5)
        return gM

    def _run(self, module: str, name: str, arguments: Sequence[Any], matrices: int, products: int) -> None:
        cost = costs.root_products(self.d, matrices, products)
        load(module, name, self.dtype).launch((*arguments, matrices, self.d), matrices, 1, cost)
