"""The matrix types of LAPACK's tests of symmetric eigensolvers (dchkst, ddrvst), and the ratios that they measure.

A type is a function of the size n, a source of randomness and the number type; it returns a symmetric (n, n) matrix.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from eigengrad.testing import MATRICES, random_hermitian

Type = Callable[[int, torch.Generator, torch.dtype], Tensor]


def _uniform(n: int, generator: torch.Generator) -> Tensor:
    return torch.rand(n, generator=generator, dtype=torch.float64)


def _signs(n: int, generator: torch.Generator) -> Tensor:
    return torch.randint(2, (n,), generator=generator).double() * 2 - 1


def _spectra(n: int, generator: torch.Generator, eps: float) -> dict[str, Tensor]:
    """Eigenvalues as in LAPACK's dlatms (modes 3, 4, 1, 2, 5, 6), with random signs, and those that break ours."""
    steps = torch.linspace(0, 1, n, dtype=torch.float64)
    first = (torch.arange(n) == 0).double()
    return {
        "geometric": eps**steps * _signs(n, generator),
        "arithmetic": (1 - steps * (1 - eps)) * _signs(n, generator),
        "clustered at ε": (first + (1 - first) * eps) * _signs(n, generator),
        "clustered at 1": (1 - (torch.arange(n) == n - 1).double() * (1 - eps)) * _signs(n, generator),
        "log-random": eps ** _uniform(n, generator) * _signs(n, generator),
        "normal": torch.randn(n, generator=generator, dtype=torch.float64),
        "−1, 0, 1": torch.randint(-1, 2, (n,), generator=generator).double(),
        "−1, 1": _signs(n, generator),
        "0, 1": torch.randint(2, (n,), generator=generator).double(),
        "pairs": (torch.arange(n) // 2).double() + 1,
        "few values": torch.randint(1, 5, (n,), generator=generator).double(),
        "cluster of width ε": 1 + eps * _uniform(n, generator),
        "cluster of width √ε": 1 + eps**0.5 * _uniform(n, generator),
        "rank one": first,
        "half rank": (torch.arange(n) < (n + 1) // 2) * (1 + _uniform(n, generator)),
        "positive": 1 + _uniform(n, generator),
    }


def _in_a_random_basis(name: str, scale: Callable[[torch.dtype], float] = lambda dtype: 1.0) -> Type:
    def matrix(n: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
        values = _spectra(n, generator, torch.finfo(dtype).eps)[name]
        return random_hermitian(values * scale(dtype), generator, dtype)

    return matrix


def _diagonal(name: str) -> Type:
    def matrix(n: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
        values = _spectra(n, generator, torch.finfo(dtype).eps)[name]
        return torch.diag(values[torch.randperm(n, generator=generator)]).to(dtype)

    return matrix


def _named(name: str) -> Type:
    return lambda n, generator, dtype: MATRICES[name](n, generator).to(dtype)


def _tridiagonal(n: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    off = torch.randn(n - 1, generator=generator, dtype=torch.float64)
    A = torch.diag(torch.randn(n, generator=generator, dtype=torch.float64))
    return (A + torch.diag(off, 1) + torch.diag(off, -1)).to(dtype)


def _blocks(n: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Blocks of three rows, and what is left over."""
    A = torch.zeros(n, n, dtype=torch.float64)
    for i in range(0, n, 3):
        size = min(3, n - i)
        A[i : i + size, i : i + size] = MATRICES["gaussian"](size, generator)
    return A.to(dtype)


def _sparse(n: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    A = MATRICES["gaussian"](n, generator)
    mask = torch.triu(torch.rand(n, n, generator=generator) < 0.1)
    return (A * (mask | mask.mT)).to(dtype)


_BASIC = list(_spectra(1, torch.Generator(), 1e-7))

#: Matrix types by name.
TYPES: dict[str, Type] = {
    "zero": lambda n, generator, dtype: torch.zeros(n, n, dtype=dtype),
    "identity": lambda n, generator, dtype: torch.eye(n, dtype=dtype),
    **{f"{name}, diagonal": _diagonal(name) for name in ("geometric", "arithmetic", "clustered at ε", "−1, 0, 1")},
    **{name: _in_a_random_basis(name) for name in _BASIC},
    **{
        f"{name}, {end}": _in_a_random_basis(name, scale)
        for name in ("arithmetic", "log-random", "−1, 0, 1")
        for end, scale in (
            ("near overflow", lambda dtype: torch.finfo(dtype).max / 4),
            ("near underflow", lambda dtype: torch.finfo(dtype).tiny / torch.finfo(dtype).eps * 4),
        )
    },
    "tridiagonal": _tridiagonal,
    "blocks": _blocks,
    "sparse": _sparse,
    **{
        name: _named(name)
        for name in (
            "gaussian", "ones", "almost diagonal", "almost the identity", "reversal", "Wilkinson", "glued Wilkinson",
            "second difference", "Toeplitz", "Hilbert", "arrow", "bipartite", "twin blocks", "rows from 1 to 1e-6",
            "rows from 1e-6 to 1", "corner",
        )
    },
}  # fmt: skip


def matrices(n: int, dtype: torch.dtype, seed: int) -> Tensor:
    """One of each type, (types, n, n)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([matrix(n, generator, dtype) for matrix in TYPES.values()])


# Ratios -------------------------------------------------------------------------------------------------------------


def _wide(x: Tensor) -> np.ndarray:
    """In a type with digits to spare: float64 for float32, the machine's long double for float64."""
    return x.numpy().astype(np.float64 if x.dtype == torch.float32 else np.longdouble)


def _norm(X: np.ndarray) -> np.ndarray:
    return np.sqrt((X * X).sum((-2, -1)))


def ratios(A: Tensor, L: Tensor, V: Tensor, reference: np.ndarray) -> np.ndarray:
    """The three ratios of each matrix of a batch, in the Frobenius norm: (3, b).

    |A − VΛVᵀ| / (n ε |A|), |VᵀV − I| / (n ε), and max|λ − reference| / (n ε |A|). (|A| of zero counts as 1.)
    """
    n, eps = A.shape[-1], torch.finfo(A.dtype).eps
    a, values, v = _wide(A), _wide(L), _wide(V)
    vt = np.swapaxes(v, -1, -2)
    # By a power of two to size 1: squares of the largest and smallest numbers would leave the range of float64.
    size = np.abs(a).max((-2, -1))
    unit = np.exp2(-np.frexp(np.where(size > 0, size, 1))[1].astype(a.dtype))
    a, values = a * unit[:, None, None], values * unit[:, None]
    norm = np.where(size > 0, _norm(a), 1)
    residual = _norm(a - (v * values[:, None, :]) @ vt) / norm
    defect = _norm(vt @ v - np.eye(n, dtype=a.dtype))
    error = np.abs(values - reference.astype(a.dtype) * unit[:, None]).max(-1) / norm
    return np.stack([residual, defect, error]).astype(np.float64) / (n * eps)


def reference_values(A: Tensor) -> np.ndarray:
    """Eigenvalues with digits to spare, ascending (b, n): in float64 for float32, else by Jacobi in long double."""
    L, V = np.linalg.eigh(A.double().numpy())
    if A.dtype == torch.float32:
        return L
    return np.stack([_refined(a, v) for a, v in zip(_wide(A), V.astype(np.longdouble), strict=True)])


def _refined(a: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Eigenvalues from eigenvectors that are right to round-off of float64: (n, n) each, to (n,).

    The vectors are made orthogonal by a step of Newton's; then VᵀAV is diagonal but for entries of size 1e-16 |A|,
    which Jacobi's rotations remove where they matter.
    """
    n = len(a)
    size = np.abs(a).max()
    if size == 0:
        return np.zeros(n, a.dtype)
    unit = np.exp2(np.frexp(size)[1].astype(a.dtype))
    a = a / unit
    v = v @ (1.5 * np.eye(n, dtype=a.dtype) - 0.5 * (v.T @ v))
    b = v.T @ a @ v
    b = 0.5 * (b + b.T)
    for _ in range(8):
        rest = np.abs(np.triu(b, 1))
        gaps = np.abs(np.diag(b)[:, None] - np.diag(b))
        # A pair moves its two values by b²/gap; and by no more than |b|.
        moves = np.minimum(rest, rest**2 / np.maximum(gaps, np.finfo(a.dtype).tiny))
        pairs = np.argwhere(moves > 2 * np.finfo(a.dtype).eps)
        if len(pairs) == 0:
            break
        for i, j in pairs:
            if b[i, j] == 0:
                continue
            theta = (b[j, j] - b[i, i]) / (2 * b[i, j])
            t = (1 if theta >= 0 else -1) / (abs(theta) + np.sqrt(theta * theta + 1))
            c = 1 / np.sqrt(t * t + 1)
            turn = np.array([[c, t * c], [-t * c, c]], a.dtype)
            b[:, [i, j]] = b[:, [i, j]] @ turn
            b[[i, j], :] = turn.T @ b[[i, j], :]
    return np.sort(np.diag(b)) * unit
