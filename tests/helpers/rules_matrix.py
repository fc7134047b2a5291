"""The test matrix: every rule × transform × type × spectrum. A new rule is tested by one line in ``RULES``."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.func import grad, jacfwd, jacrev, jvp, vmap

import eigengrad as eg
from eigengrad.gradients import GradientRule, PairRule
from eigengrad.testing import SPECTRA, random_hermitian, random_matrix

N = 5  # size of the matrices; svd has one row more


@dataclass(frozen=True)
class Case:
    """A rule and what it promises."""

    rule: GradientRule
    lost: Callable[[float], float]
    """Share of 1/(1 − q) that is missing in the derivative of the leading eigenvector of a matrix diag(1, q).

    Rules that are relative to the spread lose the same for every q < 1: the gap is the spread."""
    regular: bool = True
    """Finite at ties."""
    scale_free: bool = True

    def __str__(self) -> str:
        return repr(self.rule)


def _clamped(q: float, floor: float) -> float:
    """Taylor of degree 9 for max(q, floor) in place of q."""
    p = max(q, floor)
    return 1 - (1 - q) * (1 - p**10) / (1 - p)


RULES = [
    Case(eg.Saturate(), lost=lambda q: 0.0),
    Case(eg.Saturate(rtol=0.5), lost=lambda q: math.exp(-2)),
    Case(eg.Exact(), lost=lambda q: 0.0, regular=False),
    Case(eg.Taylor(), lost=lambda q: q**10),
    Case(eg.Taylor(degree=0), lost=lambda q: q),
    Case(eg.Taylor(degree=1000), lost=lambda q: q**1001, scale_free=False),  # at 1e-30, 1001/ε overflows in float32
    Case(eg.Taylor(eps=1e-2), lost=lambda q: _clamped(q, 1e-2), scale_free=False),
    Case(eg.Clip(), lost=lambda q: max(0.0, 1 - 100 * (1 - q)), scale_free=False),
    Case(eg.Lorentzian(), lost=lambda q: 1e-12 / (1 + 1e-12)),
    Case(eg.Lorentzian(broadening=1e-4), lost=lambda q: 1e-4 / (1 + 1e-4)),
    Case(eg.Mask(), lost=lambda q: 0.0),
    Case(eg.Mask(rtol=1e-2), lost=lambda q: 0.0),
    Case(eg.Truncate(), lost=lambda q: float(1 / (1 + q) >= 0.9999)),
    Case(eg.Truncate(energy=0.6), lost=lambda q: float(1 / (1 + q) >= 0.6)),
    Case(eg.Truncate(rank=2), lost=lambda q: 0.0),
    Case(eg.PowerIteration(), lost=lambda q: q**19),
    Case(eg.PowerIteration(steps=3, rayleigh_error=0.01), lost=lambda q: q**3),
    Case(eg.UnitNormOrNaN(), lost=lambda q: 1 - (1 - q) / math.sqrt(2), regular=False, scale_free=False),
]
REGULAR = [case for case in RULES if case.regular]
PAIR_RULES = [case for case in RULES if isinstance(case.rule, PairRule)]

DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]
DOUBLE = [torch.float64, torch.complex128]


# Decompositions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decomposition:
    """eigh or svd with a rule: functions of one matrix or of a batch."""

    name: str
    rule: GradientRule

    def __str__(self) -> str:
        return self.name

    @property
    def hermitian(self) -> bool:
        return self.name == "eigh"

    def __call__(self, A: Tensor) -> tuple[Tensor, ...]:
        if self.hermitian:
            return tuple(eg.eigh(A, gradient=self.rule))
        return tuple(eg.svd(A, full_matrices=False, gradient=self.rule))

    def loss(self, A: Tensor) -> Tensor:
        """A smooth real function of each matrix: its vectors, up to their phase, and its values over their scale."""
        if self.hermitian:
            values, V = self(A)
            vectors = (V,)
        else:
            U, values, Vh = self(A)
            vectors = (U, Vh)
        scale = values.detach().abs().amax(-1, keepdim=True)
        terms = [_weighted(values / torch.where(scale > 0, scale, torch.ones_like(scale)), 1)]
        terms += [_weighted(V.real**2 + V.imag**2 if V.is_complex() else V**2, 2) for V in vectors]
        return sum(terms)

    def matrices(self, spectrum: str, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
        """Two matrices with the spectrum: one in a random basis, one in the standard basis, where ties are exact."""
        values = SPECTRA[spectrum]((N,), generator)
        if self.hermitian:
            pair = [random_hermitian(values, generator, dtype, rotate=rotate) for rotate in (True, False)]
        else:
            values = values.abs().sort(descending=True).values
            standard = torch.zeros(N + 1, N, dtype=dtype)
            standard[:N] = torch.diag(values).to(dtype)
            pair = [random_matrix(values, N + 1, N, generator, dtype), standard]
        return torch.stack(pair)


def _weighted(x: Tensor, ndim: int) -> Tensor:
    """Sum over the last ``ndim`` dimensions with fixed weights of both signs."""
    shape = x.shape[-ndim:]
    weights = torch.sin(torch.arange(1, shape.numel() + 1, dtype=x.dtype)).reshape(shape)
    return (x * weights).flatten(-ndim).sum(-1)


def decompositions(cases: list[Case]) -> list:
    """pytest parameters: eigh with every rule, and svd with every rule that it takes."""
    chosen = [(name, case) for case in cases for name in ("eigh", "svd") if name == "eigh" or case in PAIR_RULES]
    return [pytest.param(Decomposition(name, case.rule), id=f"{name}-{case}") for name, case in chosen]


def spectra(regular: bool) -> list[str]:
    """The names of the spectra at which a rule has to give a gradient."""
    return list(SPECTRA) if regular else ["separated"]


# Transforms ---------------------------------------------------------------------------------------------------------
# Each takes a loss of one matrix and a batch (b, m, n) of them, and returns the gradient at each.

Loss = Callable[[Tensor], Tensor]


def one_by_one(loss: Loss, batch: Tensor) -> Tensor:
    """What the others are compared with: backward, for one matrix at a time."""
    gradients = []
    for A in batch:
        A = A.detach().clone().requires_grad_()
        loss(A).backward()
        gradients.append(A.grad)
    return torch.stack(gradients)


def _compiled(loss: Loss, batch: Tensor) -> Tensor:
    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=False)
    return one_by_one(compiled, batch)


def _forward_mode(loss: Loss, batch: Tensor) -> Tensor:
    """Derivatives along every entry, and for complex matrices along every entry times i."""
    basis = torch.eye(batch[0].numel(), dtype=batch.dtype).reshape(-1, *batch[0].shape)
    units = (1, 1j) if batch.is_complex() else (1,)

    def gradient(A: Tensor) -> Tensor:
        parts = [vmap(lambda dA, u=u: jvp(loss, (A,), (dA * u,))[1])(basis) * u for u in units]
        return sum(parts).reshape(batch.shape[1:])

    return vmap(gradient)(batch)


def _batched(loss: Loss, batch: Tensor) -> Tensor:
    batch = batch.detach().clone().requires_grad_()
    loss(batch).sum().backward()
    return batch.grad


TRANSFORMS: dict[str, Callable[[Loss, Tensor], Tensor]] = {
    "batch": _batched,
    "grad of a vmap": lambda loss, batch: grad(lambda A: vmap(loss)(A).sum())(batch),
    "vmap of a grad": lambda loss, batch: vmap(grad(loss))(batch),
    "vmap over the last dimension": lambda loss, batch: vmap(grad(loss), in_dims=-1)(batch.movedim(0, -1)),
    "vmap of a vmap": lambda loss, batch: vmap(vmap(grad(loss)))(batch.unsqueeze(1)).squeeze(1),
    "jacrev": lambda loss, batch: torch.stack([jacrev(loss)(A) for A in batch]),
    "jacfwd": lambda loss, batch: vmap(jacfwd(loss))(batch),
    "jvp": _forward_mode,
    "compile": _compiled,
}


def transforms() -> list:
    """pytest parameters: every transform in every type, but Jacobians in real ones and the compiler in one."""
    return [
        pytest.param(name, dtype, id=f"{name}-{dtype}")
        for name in TRANSFORMS
        for dtype in DTYPES
        if not ((name.startswith("jac") and dtype.is_complex) or (name == "compile" and dtype != torch.float64))
    ]
