"""How close the eigenvalues of a random covariance matrix come to each other.

For X of shape d × n with independent standard normal entries, each row centred, X Xᵀ is a Wishart matrix with
m = n − 1 degrees of freedom. Its eigenvalues have exactly the distribution of those of B Bᵀ for a bidiagonal B with
independent entries (Dumitriu and Edelman 2002; it is what Householder reflections make of X):

    B_ii = χ(m − i),  i = 0 … d − 1,        B_{i+1,i} = χ(d − 1 − i),  i = 0 … d − 2.

B Bᵀ is tridiagonal, so a sample of all eigenvalues costs 2d random numbers and O(d²) operations instead of 2d² numbers
and O(d³): ten thousand matrices with d = 600 take a minute.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import quad  # type: ignore[import-untyped]
from scipy.linalg import lapack  # type: ignore[import-untyped]

__all__ = ["close_pairs", "dense_smallest_gaps", "smallest_gaps"]

Array = NDArray[np.float64]


def smallest_gaps(d: int, n: int, count: int, generator: np.random.Generator) -> Array:
    """The smallest difference of two eigenvalues of X Xᵀ, for ``count`` matrices X of shape d × n: (count,)."""
    _check(d, n)
    main = generator.chisquare(n - 1 - np.arange(d), size=(count, d))
    below = generator.chisquare(d - 1 - np.arange(d - 1), size=(count, d - 1))
    diagonal = main.copy()
    diagonal[:, 1:] += below
    beside = np.sqrt(main[:, :-1] * below)
    gaps = np.empty(count)
    for i in range(count):
        eigenvalues, info = lapack.dsterf(diagonal[i], beside[i])
        if info:
            raise ArithmeticError(f"dsterf did not converge for matrix {i} with d = {d} (info {info})")
        gaps[i] = np.diff(eigenvalues).min()
    return gaps


def dense_smallest_gaps(
    d: int, n: int, count: int, generator: np.random.Generator, *, entries: str = "normal"
) -> Array:
    """The smallest gaps of X Xᵀ for matrices X that are drawn and multiplied: a check of :func:`smallest_gaps`.

    Args:
        d, n, count: as above.
        generator: of the entries.
        entries: "normal", or "uniform" for numbers from [0, 1), whose variance is 1/12.
    """
    _check(d, n)
    gaps = np.empty(count)
    batch = max(1, 2_000_000 // (d * n))
    for start in range(0, count, batch):
        size = min(batch, count - start)
        X = generator.standard_normal((size, d, n)) if entries == "normal" else generator.random((size, d, n))
        X -= X.mean(-1, keepdims=True)
        gaps[start : start + size] = np.diff(np.linalg.eigvalsh(X @ X.transpose(0, 2, 1)), axis=-1).min(-1)
    return gaps


def close_pairs(d: int, n: int, threshold: float) -> float:
    """The expected number of neighbouring eigenvalues of X Xᵀ closer than a small threshold, for large d.

    Locally, eigenvalues of real symmetric random matrices repel: where ρ is their density, a gap is below s with
    probability (π²/12)(ρs)². Over the Marchenko–Pastur density ρ(x) that adds up to (π²/12) s² ∫ρ³.
    """
    _check(d, n)
    ratio = d / n
    low, high = (1 - math.sqrt(ratio)) ** 2, (1 + math.sqrt(ratio)) ** 2

    def cubed_density(x: float) -> float:  # of eigenvalues of X Xᵀ/n, which sums to one
        return float((math.sqrt(max((high - x) * (x - low), 0.0)) / (2 * math.pi * ratio * x)) ** 3)

    integral = float(quad(cubed_density, low, high)[0])
    return math.pi**2 / 12 * threshold**2 * d**3 / n**2 * integral


def _check(d: int, n: int) -> None:
    if d < 2 or n <= d:
        raise ValueError(f"expected 2 ≤ d < n, a covariance with two eigenvalues and full rank; got d = {d}, n = {n}")
