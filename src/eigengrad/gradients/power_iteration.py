"""The paper's SVD-PI: eigenvectors from the decomposition, their gradient from power iterations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from .._execution import can_read
from ..arguments import require_integer, require_non_negative, require_positive
from .observation import observe_kept, observe_pass, observers
from .removed import is_attributed, warn_removed
from .rule import GradientRule, exact_and_missing
from .spectrum import round_off
from .taylor import Taylor


class _Deflation(NamedTuple):
    """One turn of Algorithm 1's loop: the matrix before deflation, its leading eigenvector, and who goes on."""

    M: Tensor  # (..., n, n)
    v: Tensor  # (..., n, 1)
    norm: Tensor  # ‖M v‖, (..., 1, 1)
    kept: Tensor  # boolean, (..., 1, 1)


@dataclass(frozen=True)
class PowerIteration(GradientRule):
    """The gradient of ``steps`` power iterations with deflation: the paper's Algorithm 1.

    The eigenvectors come from the decomposition. Then, from the largest eigenvalue down, v_i takes ``steps`` power
    iterations on the deflated matrix M_{i−1}, its Rayleigh quotient is compared with λ_i, and
    M_i = M_{i−1} − M_{i−1} v_i v_iᵀ. The backward pass goes through the same matrices in reverse:

        gM_{i−1} += Σ_k M_{i−1}^k (I − v_i v_iᵀ) / ‖M_{i−1} v_i‖^{k+1} · gv_i v_iᵀ,    k = 0 … steps − 1.

    **Through the deflation.** Gradients flow through M_i back to v_1 … v_i, as they do when automatic differentiation
    runs over Algorithm 1. For the pair i, j with λ_i > λ_j the result is :class:`Taylor` of degree steps − 1 where v_i
    depends on v_j, and of degree steps − 2 where v_j depends on v_i (whose share comes only through the
    deflation). If the deflation were held constant, the second would be +1/λ_j: wrong in sign and unbounded.

    **When it stops.** Eigenvectors are dropped, and receive no gradient, from the first i on for which λ_i ≤ eps, or
    the Rayleigh quotient is off by ``rayleigh_error`` or more, or v_1 … v_{i−1} already hold the share ``energy`` of
    Σλ. Eigenvalues are known to n · finfo.eps · max|λ| only, so one that exceeds eps by no more than that counts as
    eps: of a covariance without full rank, M + εI has eigenvalues that *are* ε, computed a little above or below it.
    An indefinite matrix is shifted as for Taylor, which puts its lowest eigenvalue at eps: that one is dropped.

    **As printed.** Algorithm 1 counts λ_i itself in the energy, which is 1 at i = n, and its ``rank`` starts at 1: the
    last eigenvector of every matrix is dropped, unless it is the only one. With ``inclusive`` so does this
    rule; by default the test looks at the eigenvectors before v_i, and a matrix of full rank keeps them all.

    **Truncation.** ``eigh`` returns all eigenvectors whatever the rule. Algorithm 1 also computes its whitening matrix
    from the kept pairs alone; the layers that implement it (:mod:`eigengrad.nn`) do so by :meth:`truncate`.

    It costs n·steps products one after the other and loses accuracy as deflation goes on. :class:`Taylor` gives
    the same gradient in closed form; use this rule to reproduce SVD-PI.

    Args:
        steps: power iterations per eigenvector, at least 1. The work that proposed SVD-PI takes 19; the paper's K
            makes K + 1.
        eps: smallest eigenvalue that is dropped. ``None`` is the ε that a layer adds to its covariance, and
            n · finfo.eps · max|λ| where nobody adds one.
        rayleigh_error: relative error of the Rayleigh quotient that stops the loop.
        energy: share of Σλ that is enough.
        inclusive: count λ_i itself in the energy, as Algorithm 1 is printed.
        stop: whether the loop has stopping conditions at all. Without, every eigenvector above round-off is kept, in
            both passes, and the four parameters before this one say nothing.

    >>> import torch, eigengrad as eg
    >>> A = torch.eye(3, requires_grad=True)
    >>> eg.eigh(A, gradient=eg.PowerIteration(steps=19)).eigenvectors.sum().backward()
    >>> bool(torch.isfinite(A.grad).all())
    True
    """

    steps: int = 19
    eps: float | None = None
    rayleigh_error: float = 0.1
    energy: float = 1 - 1e-4
    inclusive: bool = False
    stop: bool = True

    def __post_init__(self) -> None:
        require_integer("PowerIteration", "steps", self.steps, minimum=1)
        if self.eps is not None:
            require_positive("PowerIteration", "eps", self.eps)
        require_non_negative("PowerIteration", "rayleigh_error", self.rayleigh_error)
        require_positive("PowerIteration", "energy", self.energy)
        for name in ("inclusive", "stop"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"PowerIteration: {name} must be a bool; got {getattr(self, name)!r}")

    def kept(self, L: Tensor, V: Tensor) -> Tensor:
        """Which eigenvectors the stopping conditions leave: boolean (..., n), in the (ascending) order of ``L``."""
        return _kept(L, self._deflate(L, V)[0])

    def truncate(self, L: Tensor, V: Tensor) -> Tensor:
        """Ṽ: the eigenvectors (..., n, n) with zeros in place of the dropped ones, differentiable in ``V``."""
        return V * self.kept(L.detach(), V.detach()).unsqueeze(-2)

    def for_covariance(self, eps: float) -> PowerIteration:
        """The rule with the ε that was added to a covariance, unless it has an ε of its own."""
        return self if self.eps is not None or eps == 0 else replace(self, eps=eps)

    def pullback(self, L: Tensor, V: Tensor, gL: Tensor | None, gV: Tensor | None) -> Tensor:
        n = L.shape[-1]
        if n == 0 or (gL is None and gV is None):
            return torch.zeros_like(V)
        turns, scale = self._deflate(L, V)
        if observers:
            observe_kept(_kept(L, turns))
        G = torch.zeros_like(V)
        for i in reversed(range(len(turns))):
            turn, column = turns[i], n - 1 - i
            G = torch.where(turn.kept, self._pull_turn(turn, G, None if gV is None else gV[..., column, None]), G)
        G = G / scale
        if gV is not None:
            self._account(L, V, gV, (G + G.mH) * 0.5)
        if gL is not None:
            G = G + (V * (gL * _kept(L, turns)).unsqueeze(-2)) @ V.mH
        return (G + G.mH) * 0.5

    def _account(self, L: Tensor, V: Tensor, gV: Tensor, G: Tensor) -> None:
        """Compare the gradient of the eigenvectors with the exact one, for the observers and the warning."""
        watched = not observers and is_attributed() and L.device.type == "cpu" and can_read(L, V, gV, G)
        if not (observers or watched) or torch.compiler.is_compiling():
            return
        exact, removed = exact_and_missing(L, V, gV, G)
        observe_pass(exact, removed)
        if watched and (removed > 0.5 * exact).any():
            warn_removed(self)

    def pushforward(self, L: Tensor, V: Tensor, dA: Tensor) -> tuple[Tensor, Tensor]:
        turns, scale = self._deflate(L, V)
        dA = (dA + dA.mH) * 0.5
        dM = dA / scale
        columns = []
        for turn in turns:
            dv, deflated = self._push_turn(turn, dM)
            columns.append(torch.where(turn.kept, dv, torch.zeros_like(dv)))
            dM = torch.where(turn.kept, deflated, dM)
        dropped = torch.zeros_like(V[..., len(turns) :])
        dV = torch.cat([dropped, *columns[::-1]], -1)
        dL = torch.diagonal(V.mH @ dA @ V, dim1=-2, dim2=-1).real * _kept(L, turns)
        return dL, dV

    def _deflate(self, L: Tensor, V: Tensor) -> tuple[list[_Deflation], Tensor]:
        """Algorithm 1's loop, for the whole batch at once, on A divided by its scale (which is returned).

        There may be fewer turns than eigenvalues: those that are missing are dropped.
        """
        turns: list[_Deflation] = []
        if L.shape[-1] == 0:
            return turns, L.new_ones(())
        positive, floor = Taylor(eps=self.eps if self.stop else None).positive(L)
        scale = positive.amax(-1, keepdim=True)
        values = (positive / scale).flip(-1)
        drop = self._drop(values, floor / scale)
        M = (V * (positive / scale).unsqueeze(-2)) @ V.mH
        alive = torch.ones_like(values[..., :1], dtype=torch.bool).unsqueeze(-1)
        # Where nobody has to wait for it, the loop ends with the last matrix that goes on; the turns behind are masks.
        readable = L.device.type == "cpu" and can_read(values, drop) and not torch.compiler.is_compiling()
        for i in range(L.shape[-1]):
            if readable and not (alive & ~drop[..., i, None, None]).any():
                break
            v, norm = V[..., -1 - i, None], torch.ones_like(scale.unsqueeze(-1))
            for _ in range(self.steps):
                image = M @ v
                norm = torch.linalg.vector_norm(image, dim=-2, keepdim=True)
                v = torch.where(norm > 0, image / torch.where(norm > 0, norm, torch.ones_like(norm)), v)
            image = M @ v
            rayleigh = (v.mH @ image).real
            norm = torch.linalg.vector_norm(image, dim=-2, keepdim=True)
            value = values[..., i, None, None]
            stop = drop[..., i, None, None]
            if self.stop:
                stop = stop | ((rayleigh - value).abs() >= self.rayleigh_error * value)
            alive = alive & ~stop
            # A dropped turn is masked out, but must not produce an infinity that a zero could multiply.
            norm = torch.where(alive, norm, torch.ones_like(norm))
            turns.append(_Deflation(M, v, norm, alive))
            M = torch.where(alive, M - image @ v.mH, M)
        return turns, scale.unsqueeze(-1)

    def _drop(self, values: Tensor, floor: Tensor) -> Tensor:
        """Where λ_i ≤ ε or the energy is enough: boolean, of descending eigenvalues (..., n) with largest 1."""
        roundoff = round_off(values)
        if not self.stop:
            return values <= roundoff
        # None is round-off itself, which has no margin of its own.
        too_small = values <= (floor if self.eps is None else floor + roundoff)
        energy = values.cumsum(-1)
        if not self.inclusive:
            return too_small | (energy - values >= self.energy * energy[..., -1:])
        enough = energy >= self.energy * energy[..., -1:]
        first = torch.arange(values.shape[-1], device=values.device) == 0
        return too_small | (enough & ~first)

    def _pull_turn(self, turn: _Deflation, G: Tensor, gv: Tensor | None) -> Tensor:
        """Gradient of M_{i−1} from that of M_i and that of v_i."""
        M, v, norm, _ = turn
        image = G @ v
        g = -(M.mH @ image + G.mH @ (M @ v))
        if gv is not None:
            g = g + gv
        term = (g - v @ (v.mH @ g)) / norm
        total = term
        for _ in range(self.steps - 1):
            term = (M.mH @ term) / norm
            total = total + term
        return G - image @ v.mH + total @ v.mH

    def _push_turn(self, turn: _Deflation, dM: Tensor) -> tuple[Tensor, Tensor]:
        """(dv_i, dM_i) from dM_{i−1}: the adjoint of :meth:`_pull_turn`."""
        M, v, norm, _ = turn
        image = dM @ v
        term = image / norm
        total = term
        for _ in range(self.steps - 1):
            term = (M @ term) / norm
            total = total + term
        dv = total - v @ (v.mH @ total)
        return dv, dM - image @ v.mH - (M @ dv) @ v.mH - (M @ v) @ dv.mH


def _kept(L: Tensor, turns: list[_Deflation]) -> Tensor:
    dropped = torch.zeros_like(L[..., len(turns) :], dtype=torch.bool)
    return torch.cat([dropped, *(turn.kept[..., 0] for turn in turns[::-1])], -1)
