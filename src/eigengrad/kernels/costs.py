"""What kernels take, in microseconds of one thread: which of them to choose, and how many threads are worth their cost.

Fitted to medians on one core of an AMD EPYC (Zen 4, 3.7 GHz, vectors of 64 bytes) in November 2026, by the eye: within
a third from n = 2 to 512. Choices are made from shapes alone, never from the machine or the number of threads, so that
results do not depend on them.

``width`` is how many numbers a vector holds; n the size of matrices, ``batch`` how many there are.
"""

from __future__ import annotations

__all__ = [
    "affine_pass",
    "batched_ql",
    "batched_ql_half",
    "bracket",
    "divide_and_conquer",
    "jacobi",
    "moments_pass",
    "root_products",
    "vjp_batched",
    "vjp_single",
]


def jacobi(n: int, batch: int, width: int) -> float:
    """Jacobi rotations, n ≤ 4."""
    return _vectors(batch, width) * 0.5


def batched_ql(n: int, batch: int, width: int) -> float:
    """QL, a matrix a lane."""
    return _vectors(batch, width) * (1.5 + 0.02 * n**2 + 1.35e-3 * n**3)


def batched_ql_half(n: int, single: bool) -> float:
    """QL in half registers, which one of them holds all matrices of."""
    return 1 + (0.014 if single else 0.016) * n**2 + (6.2e-4 if single else 7.2e-4) * n**3


def divide_and_conquer(n: int, batch: int, single: bool) -> float:
    """Divide and conquer, one matrix after the other."""
    return batch * (4 + 0.15 * n + (5e-3 if single else 6.5e-3) * n**2 + (7e-5 if single else 1.2e-4) * n**3)


def vjp_batched(n: int, batch: int, width: int, function: bool) -> float:
    """A backward pass, a matrix a lane: through a rule, or a matrix function."""
    return _vectors(batch, width) * (0.5 + (1.4e-3 if function else 1.15e-3) * n**3)


def vjp_single(n: int, batch: int, single: bool) -> float:
    """A backward pass, one matrix after the other."""
    return batch * (0.2 + 3e-3 * n**2 + 6e-5 * n**3) * (1.0 if single else 1.5)


def bracket(n: int, batch: int) -> float:
    """What is between the products of a backward pass."""
    return batch * 2e-3 * n**2


def root_products(n: int, batch: int, products: int) -> float:
    """Products of n × n matrices around a square root."""
    return batch * products * (1 + 3e-5 * n**3)


def moments_pass(values: int, d: int, maps: int) -> float:
    """Sums and products over feature maps of so many values each, in groups of d channels."""
    return values * maps * (0.06 + 0.0125 * d) * 1e-3


def affine_pass(values: int, d: int, maps: int) -> float:
    """An affine map of feature maps of so many values each, in groups of d channels."""
    return values * maps * (0.1 + 0.021 * d) * 1e-3


def _vectors(batch: int, width: int) -> int:
    return -(-batch // width)
