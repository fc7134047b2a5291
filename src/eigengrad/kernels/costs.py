"""What kernels take, in microseconds of one thread: which of them to choose, and how many threads are worth their cost.

All numbers are from one core of an AMD EPYC (Zen 4, 3.7 GHz, vectors of 64 bytes, caches of 32 KiB and 1 MiB) in
November 2026. The costs are fitted to medians by the eye, within a third from n = 2 to 512; sizes are where the
faster of two choices changed. Choices are made from shapes and the width of vectors, never from the number of threads,
so that results do not depend on it.

``width`` is how many numbers a vector holds; n the size of matrices, ``batch`` how many there are, ``single`` whether
numbers have single precision.
"""

from __future__ import annotations

#: Microseconds of work for each thread but the first. Below, entering a region takes longer than it saves: 4 µs where
#: the threads are awake, on two cores.
THREAD_COST = 10.0

LARGEST = 512  # n of matrices that kernels decompose; LAPACK and its threads are as fast beyond
LARGEST_BATCHED_QL = 64  # n; larger matrices do not fit the second-level cache together
LARGEST_BATCHED_VJP = 32  # n; likewise, with two more matrices for each
LARGEST_SINGLE_VJP = 64  # n, up to which the products of one matrix are quicker here than by BLAS and its threads

MOMENTS_TILE, AFFINE_TILE = 1 << 17, 1 << 16  # bytes of a tile: shares of the second-level cache
BROADCAST_POINTS = 128  # points of a tile where channels fill vectors: still in the first-level cache when read again
DIRECT_CHANNELS = 16  # the largest d for which reading rows again, less their centre, is quicker than writing a tile
STREAMED = 1 << 23  # bytes of a result that does not stay in a cache
PREFETCHED = 1 << 22  # bytes of a map from which its next tile is worth prefetching: smaller maps are in a cache
SPLITS = 16  # at most so many threads share a sum
SPLIT_WORK = 1 << 21  # numbers times (d + 16) for a split, at most: about 30 µs
PARTIAL_SUMS = 1 << 16  # at most so many, unless there are fewer than four splits


def jacobi(n: int, batch: int, width: int) -> float:
    """Jacobi rotations, n ≤ 4."""
    return _vectors(batch, width) * 0.5


def batched_ql(n: int, batch: int, width: int) -> float:
    """QL, a matrix a lane."""
    return _vectors(batch, width) * (1.5 + 0.02 * n**2 + 1.35e-3 * n**3)


def batched_ql_half(n: int, single: bool) -> float:
    """QL in half registers, one of which holds all matrices."""
    return 1 + (0.014 if single else 0.016) * n**2 + (6.2e-4 if single else 7.2e-4) * n**3


def divide_and_conquer(n: int, batch: int, width: int, single: bool) -> float:
    """Divide and conquer, one matrix after the other."""
    in_vectors = (5e-3 if single else 6.5e-3) * n**2 + (7e-5 if single else 1.2e-4) * n**3
    return batch * (4 + 0.15 * n + in_vectors * _narrower(width, single))


def shared_divide_and_conquer(n: int, batch: int, width: int, single: bool) -> float:
    """:func:`divide_and_conquer` for a choice: threads can share single matrices, but not a block of them.

    From 120 µs on that is a gain, the greater the fewer blocks there would be; 0.6 and 0.8 are what two threads leave.
    """
    alone = divide_and_conquer(n, batch, width, single)
    return alone * (1.0 if alone < 120.0 else 0.6 if batch <= width else 0.8)


def vjp_batched(n: int, batch: int, width: int, function: bool) -> float:
    """A backward pass, a matrix a lane: through a rule, or a matrix function."""
    return _vectors(batch, width) * (0.5 + (1.4e-3 if function else 1.15e-3) * n**3)


def vjp_single(n: int, batch: int, width: int, single: bool) -> float:
    """A backward pass, one matrix after the other."""
    return batch * (0.2 + (3e-3 * n**2 + 6e-5 * n**3) * _narrower(width, single)) * (1.0 if single else 1.5)


def bracket(n: int, batch: int) -> float:
    """The work between the products of a backward pass."""
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


def _narrower(width: int, single: bool) -> float:
    """How many vectors take the place of one of 64 bytes."""
    return (16 if single else 8) / width
