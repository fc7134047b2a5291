"""One table of matrix functions and one of spectra. A new function is one line in FUNCTIONS."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath
import torch
from torch import Tensor

import eigengrad as eg
from eigengrad.matrix_functions import logdet, low_rank, nuclear_norm, pinv, spectral_projector
from eigengrad.matrix_functions.divided_differences import GivenFunction, ScalarFunction
from eigengrad.matrix_functions.exp import Exp
from eigengrad.matrix_functions.inv_sqrt import InvSqrt
from eigengrad.matrix_functions.log import Log
from eigengrad.matrix_functions.power import Power, WholePower
from eigengrad.matrix_functions.sqrt import Sqrt
from eigengrad.values import eigvalsh, svdvals

Mp = Callable[[Any], Any]


@dataclass(frozen=True)
class Entry:
    """A matrix function, the scalar function behind it, and what mpmath says f, f′ and f″ are."""

    name: str
    call: Callable[..., Tensor]
    scalar: ScalarFunction
    exact: tuple[Mp, Mp, Mp]
    domain: str = "positive"
    every_order: bool = False
    takes_eps: bool = True
    degree: float | None = None  # f′(c x) = c^degree f′(x)
    indefinite: bool = False  # takes eigenvalues of both signs; ``domain`` then says which points to test it on

    @property
    def given(self) -> bool:
        return isinstance(self.scalar, GivenFunction)


def _power(p: float) -> Entry:
    q = mpmath.mpf(p)
    exact = (lambda x: x**q, lambda x: q * x ** (q - 1), lambda x: q * (q - 1) * x ** (q - 2))
    domain = "positive" if p < 0 else "non-negative"
    whole = float(p).is_integer()
    scalar = WholePower(p) if whole else Power(p)
    call = functools.partial(_matrix_power, p)
    return Entry(f"power({p})", call, scalar, exact, domain, degree=p - 1, indefinite=whole)


def _matrix_power(p: float, A: Tensor, **options: Any) -> Tensor:
    return eg.matrix_power(A, p, **options)


def _given(name: str, f: Any, df: Any, d2f: Any, exact: tuple[Mp, Mp, Mp], domain: str) -> Entry:
    return Entry(name, lambda A, **k: eg.matrix_function(A, f, df, d2f, **k), GivenFunction(f, df, d2f), exact, domain)


_SQRT = (mpmath.sqrt, lambda x: 1 / (2 * mpmath.sqrt(x)), lambda x: -1 / (4 * x * mpmath.sqrt(x)))
_RSQRT = (
    lambda x: 1 / mpmath.sqrt(x),
    lambda x: -1 / (2 * x * mpmath.sqrt(x)),
    lambda x: 3 / (4 * x * x * mpmath.sqrt(x)),
)
_LOG = (mpmath.log, lambda x: 1 / x, lambda x: -1 / (x * x))
_SIN = (mpmath.sin, mpmath.cos, lambda x: -mpmath.sin(x))
_BURG = (lambda x: x - mpmath.log(x), lambda x: 1 - 1 / x, lambda x: 1 / (x * x))


def burg(x: Tensor) -> Tensor:
    """x − log x, whose slope vanishes at 1 where its value does not."""
    return x - torch.log(x)


FUNCTIONS = [
    Entry("sqrt", eg.matrix_sqrt, Sqrt(), _SQRT, "non-negative", every_order=True, degree=-0.5),
    Entry("inv_sqrt", eg.matrix_inv_sqrt, InvSqrt(), _RSQRT, every_order=True, degree=-1.5),
    *[_power(p) for p in (-1.7, -1, -0.5, 0.3, 0.5, 1, 2, 3)],
    Entry("log", eg.matrix_log, Log(), _LOG, degree=-1.0),
    Entry("exp", eg.matrix_exp, Exp(), (mpmath.exp,) * 3, "real", takes_eps=False),
    _given("given sin", torch.sin, torch.cos, lambda x: -torch.sin(x), _SIN, "real"),
    _given("given burg", burg, lambda x: 1 - 1 / x, lambda x: x**-2, _BURG, "positive"),
]
BY_NAME = {entry.name: entry for entry in FUNCTIONS}
NAMED = [entry for entry in FUNCTIONS if not entry.given]
GIVEN = [entry for entry in FUNCTIONS if entry.given]

INDEFINITE = [entry for entry in FUNCTIONS if entry.indefinite]

#: Eigenvalues, all positive, and whether the matrix is rotated (False keeps ties exact to the last bit).
SPECTRA = {
    "generic": ((0.6, 1.3, 2.1), True),
    "identity": ((1.0, 1.0, 1.0), False),
    "identity to round-off": ((1.0, 1.0, 1.0), True),
    "diag(1,1,2)": ((1.0, 1.0, 2.0), False),
    "(1,1,2) to round-off": ((1.0, 1.0, 2.0), True),
    "gap 1e-9": ((1.0, 1.0 + 1e-9, 2.0), True),
    "rank one plus 0.1": ((0.1, 0.1, 1.1), True),
}


#: The same with both signs: what whole powers take.
SIGNED = {
    "generic": ((-1.7, -0.4, 0.9, 1.6), True),
    "opposite": ((-1.0, -0.5, 0.5, 1.0), False),
    "opposite to round-off": ((-1.0, -0.5, 0.5, 1.0), True),
    "negative tie": ((-1.0, -1.0, 1.0, 2.0), False),
    "negative tie to round-off": ((-1.0, -1.0, 1.0, 2.0), True),
    "negative": ((-2.0, -1.0, -1.0, -0.7), True),
    "gaps 1e-9": ((-1.0 - 1e-9, -1.0, 1.0, 1.0 + 1e-9), True),
}


def ids(entries: list[Entry]) -> list[str]:
    return [entry.name for entry in entries]


def rotation(n: int, dtype: torch.dtype = torch.float64, seed: int = 0, batch: tuple[int, ...] = ()) -> Tensor:
    """A random unitary matrix."""
    generator = torch.Generator().manual_seed(seed)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.linalg.qr(torch.randn(*batch, n, n, dtype=wide, generator=generator))[0].to(dtype)


def randn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(1000 + seed)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(shape, dtype=wide, generator=generator).to(dtype)


def hermitian(X: Tensor) -> Tensor:
    return (X + X.mH) * 0.5


def matrix(eigenvalues: Any, dtype: torch.dtype = torch.float64, *, rotate: bool = True, seed: int = 0) -> Tensor:
    """A Hermitian matrix with these eigenvalues (a sequence, or a tensor with batch dimensions in front)."""
    L = torch.as_tensor(eigenvalues, dtype=torch.float64)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    D = torch.diag_embed(L).to(wide)
    if not rotate:
        return D.to(dtype)
    Q = rotation(L.shape[-1], wide, seed)
    return hermitian(Q @ D @ Q.mH).to(dtype)


def spectrum(name: str, dtype: torch.dtype = torch.float64) -> Tensor:
    eigenvalues, rotate = SPECTRA[name]
    return matrix(eigenvalues, dtype, rotate=rotate)


def gradient(call: Callable[[Tensor], Tensor], A: Tensor, G: Tensor) -> Tensor:
    """The gradient of Re⟨G, call(A)⟩."""
    A = A.detach().requires_grad_()
    return torch.autograd.grad(call(A), A, G)[0]


def relative_error(got: Tensor, expected: Tensor) -> float:
    """‖got − expected‖/‖expected‖ in the Frobenius norm, in double precision; NaN counts as infinite."""
    wide = torch.complex128 if expected.is_complex() else torch.float64
    got, expected = got.detach().to(wide), expected.detach().to(wide)
    scale = expected.abs().max()
    scale = scale if scale > 0 else torch.ones_like(scale)
    error = torch.linalg.vector_norm((got - expected) / scale) / torch.linalg.vector_norm(expected / scale)
    return float(torch.nan_to_num(error, nan=torch.inf))


@dataclass(frozen=True)
class Subject:
    """A function of matrices that is no scalar function of them: what it takes, and of what shape its result is."""

    name: str
    call: Callable[..., Tensor]
    square: bool  # Hermitian and positive definite
    shape: Callable[[int, int], tuple[int, ...]]  # of the result, from m and n
    smooth: bool = True  # to second order, at ties (and whatever the rule)
    smallest: int = 0  # n that its other arguments allow


SUBJECTS = [
    Subject("spectral_projector", functools.partial(spectral_projector, k=1), True, lambda m, n: (m, n), smallest=1),
    Subject("low_rank", functools.partial(low_rank, k=1), False, lambda m, n: (m, n), smallest=1),
    Subject("nuclear_norm", nuclear_norm, False, lambda m, n: ()),
    Subject("logdet", logdet, True, lambda m, n: ()),
    Subject("pinv", pinv, False, lambda m, n: (n, m)),
    Subject("pinv hermitian", functools.partial(pinv, hermitian=True), True, lambda m, n: (n, m)),
    Subject("eigvalsh", eigvalsh, True, lambda m, n: (n,), smooth=False),
    Subject("svdvals", svdvals, False, lambda m, n: (min(m, n),), smooth=False),
]
