"""Eigendecomposition for larger n, or few matrices: divide and conquer on one matrix, vectors along its rows.

1. Householder reduction to tridiagonal form (``householder``).
2. Tear it into 2^l leaves of at most 8 rows, T = diag(T_1, T_2) + ρ v vᵀ at each cut, and solve all leaves at once by
   QL, a leaf a lane (``ql``): one chain alone would be pure latency. Where one matrix has too few leaves to fill the
   lanes, two or more are taken together.
3. Merge neighbours: the problem in their eigenvectors is diag(d) + ρ z zᵀ (``secular``), whose eigenvectors U multiply
   theirs: 4/3 n³ multiply-adds in all, in a kernel that keeps 4×2 vectors of the result in registers.
4. Apply the reflectors to the vectors (``reflectors``) and write them in order.

The tridiagonal problem is solved in double precision for float32 as well: it is the smaller part, and single precision
would lose a digit there. Where z has zeros or d has ties, eigenpairs pass through a merge unchanged (deflation).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..runtime.compile import device_function, inline, kernel
from ..runtime.work import DONE, add_status, next_chunk
from ..simd.arrays import decomposition_at, zeros
from ..simd.blocks import add_outer, store_block, zero_block
from ..simd.denormals import restore_denormals, suspend_denormals
from ..simd.memory import aligned, load, store
from ..simd.transposes import transpose
from ..simd.vectors import lanes_of, narrow_lanes_of, splat, width
from .householder import PANEL, read_square, tridiagonalise
from .reflectors import reflect
from .secular import roots, unit_vectors
from .sweeps import KEPT_SWEEPS, diagonalise

__all__ = ["divide_and_conquer"]

_LEAF = 8


@inline
def _divide_and_conquer(
    lanes: Any, thin: Any, double: Any, A: Any, L: Any, V: Any, first: int, last: int, n: int
) -> int:
    """Eigenvalues into L and eigenvectors, as rows, into V, for the matrices ``first`` to ``last``; n ≥ 2.

    ``double`` are the lanes of the tridiagonal problem, ``thin`` as many of the matrices' own number type. Reads the
    lower triangles. Returns the sum of 1, if some matrix was not finite (its result is NaN), and 2, if some did not
    converge.
    """
    W, D = width(lanes), width(double)
    P = 2 * W
    stride = (n + P - 1) // P * P
    cuts = np.empty(n + 1, np.int64)
    count = _cut(n, cuts)
    together = max(1, min(D // count, last - first))  # matrices whose leaves are solved at once
    room = (n + P) * stride
    square, there, U = aligned(lanes, stride * stride), aligned(lanes, room), aligned(lanes, room)
    here, reflectors = aligned(lanes, together * room), aligned(lanes, together * room)
    diagonal, off, tau = aligned(double, together * n), aligned(double, together * n), aligned(lanes, together * n)
    order, factors = np.empty(together * n, np.int64), np.empty((together, 2))
    w, p = aligned(lanes, PANEL * stride + 4), aligned(lanes, stride)
    rows, sums = aligned(lanes, max(stride, 2 * PANEL) * W), aligned(lanes, max(W, 2 * PANEL))
    ramp, tile = zeros(lanes, 5 * W), aligned(lanes, W * W)
    for i in range(2 * W, 3 * W):  # not a slice, for which numba compiles a function of its own
        ramp[i] = 1
    ramp[4 * W] = 1
    leaves = aligned(double, (2 + _LEAF + 3 * KEPT_SWEEPS) * _LEAF * D)
    work, column, lists = np.empty((7, n + 2 * D)), aligned(double, n * D), np.empty((4, n + W), np.int64)
    status = 0
    for begin in range(first, last, together):
        members = min(together, last - begin)
        for g in range(members):
            back, again = read_square(lanes, A, (begin + g) * n * n, n, stride, square, tile)
            factors[g, 0], factors[g, 1] = back, again
            if not back > 0:
                status |= 1
            own, their = diagonal[g * n : (g + 1) * n], off[g * n : (g + 1) * n]
            mode = suspend_denormals()
            tridiagonalise(
                lanes, n, stride, square, reflectors[g * room :], w, p, rows, sums, own, their, tau[g * n :], ramp
            )
            restore_denormals(mode)
            for c in range(1, count):
                rho = abs(their[cuts[c] - 1])
                own[cuts[c] - 1] -= rho
                own[cuts[c]] -= rho
        mode = suspend_denormals()
        if not _solve_leaves(double, members, n, count, cuts, diagonal, off, here, room, stride, P, order, leaves):
            status |= 2
        restore_denormals(mode)
        for g in range(members):
            mode = suspend_denormals()
            own, ranks = diagonal[g * n : (g + 1) * n], order[g * n : (g + 1) * n]
            source, target = here[g * room : (g + 1) * room], there
            step = 1
            while step < count:
                for c in range(0, count, 2 * step):
                    low, middle, high = cuts[c], cuts[c + step], cuts[c + 2 * step]
                    _merge(
                        lanes, thin, double, low, middle, high, off[g * n + middle - 1], own, ranks, source, target,
                        U, stride, work, column, lists,
                    )  # fmt: skip
                source, target = target, source
                step *= 2
            reflect(lanes, n, stride, reflectors[g * room :], tau[g * n :], p, source)
            restore_denormals(mode)
            _write(lanes, n, source, own, ranks, factors[g, 0], factors[g, 1], begin + g, L, V, lists[0])
    return status


@device_function
def _cut(n: int, cuts: Any) -> int:
    """The leaves' borders: a power of two of nearly equal parts. Returns their number."""
    count = 1
    while n > count * _LEAF:
        count *= 2
    for c in range(count + 1):
        cuts[c] = n * c // count
    return count


@device_function
def _solve_leaves(
    double: Any, members: int, n: int, count: int, cuts: Any, diagonal: Any, off: Any, here: Any, room: int,
    stride: int, P: int, order: Any, scratch: Any,
) -> bool:  # fmt: skip
    """All leaves by QL, D at a time, from their ends (QL wants large entries last, the reduction leaves them first).

    There are ``count`` in each of the ``members``, matrices of size n. Smaller leaves are filled up with rows of their
    own that nothing touches.
    """
    D = width(double)
    zero, one = splat(double, 0.0), splat(double, 1.0)
    values, couplings = scratch[: _LEAF * D], scratch[_LEAF * D : 2 * _LEAF * D]
    vectors, rotations = scratch[2 * _LEAF * D :], scratch[(2 + _LEAF) * _LEAF * D :]
    starts = np.empty(KEPT_SWEEPS + 1, np.int64)
    size = cuts[1]
    for c in range(1, count):
        size = max(size, cuts[c + 1] - cuts[c])
    converged = True
    for group in range(0, members * count, D):
        lanes_used = min(D, members * count - group)
        for i in range(size):
            store(values, i * D, zero)
            store(couplings, i * D, zero)
        for i in range(_LEAF * _LEAF):
            store(vectors, i * D, zero)
        for i in range(size):
            store(vectors, (i * _LEAF + i) * D, one)
        for lane in range(lanes_used):
            member, c = divmod(group + lane, count)
            low, high = member * n + cuts[c], member * n + cuts[c + 1]
            for i in range(high - low):
                values[i * D + lane] = diagonal[high - 1 - i]
            for i in range(high - low - 1):
                couplings[i * D + lane] = off[high - 2 - i]
        epsilon = 2.0**-30 if here.itemsize == 4 else 2.0**-53
        if not diagonalise(double, double, size, values, couplings, vectors, 0, _LEAF, epsilon, rotations, starts):
            converged = False
        for lane in range(lanes_used):
            member, c = divmod(group + lane, count)
            low, m, base = member * n + cuts[c], cuts[c + 1] - cuts[c], member * room + cuts[c] * stride
            for k in range(m):
                diagonal[low + k] = values[k * D + lane]
                for i in range(m):
                    here[base + k // P * m * P + i * P + k % P] = vectors[((m - 1 - i) * _LEAF + k) * D + lane]
            _sort(diagonal, order, low, m)
    return converged


@device_function
def _sort(values: Any, order: Any, low: int, m: int) -> None:
    """order[low : low + m]: the local numbers of values[low : low + m], ascending, by insertion."""
    for i in range(m):
        value, j = values[low + i], i
        while j > 0 and values[low + order[low + j - 1]] > value:
            order[low + j] = order[low + j - 1]
            j -= 1
        order[low + j] = i


@device_function
def _merge(
    lanes: Any, thin: Any, double: Any, low: int, middle: int, high: int, coupling: float,
    values: Any, order: Any, here: Any, there: Any, U: Any, stride: int, work: Any, column: Any, lists: Any,
) -> None:  # fmt: skip
    """The eigenpairs of rows low to high from those of its two halves; the vectors go from ``here`` to ``there``."""
    P = 2 * width(lanes)
    m, half = high - low, middle - low
    d, z, squares, nearest, offset, cosines, sines = work[0], work[1], work[2], work[3], work[4], work[5], work[6]
    kept, passed, turned, partner = lists[0], lists[1], lists[2], lists[3]
    rho = 2 * abs(coupling)
    sign = np.sqrt(0.5) if coupling >= 0 else -np.sqrt(0.5)
    for c in range(half):  # z: the last row of the upper half's vectors and the first row of the lower half's
        offset[c] = here[low * stride + c // P * half * P + (half - 1) * P + c % P] * np.sqrt(0.5)
    for c in range(m - half):
        offset[half + c] = here[middle * stride + c // P * (m - half) * P + c % P] * sign
    precision = 2.0**-24 if U.itemsize == 4 else 2.0**-53
    k, rotations = _deflate(
        low, half, m, rho, precision, values, order, offset, kept, passed, turned, partner, cosines, sines
    )
    for i in range(k):
        d[i], z[i] = values[low + kept[i]], offset[kept[i]]
        squares[i] = z[i] * z[i]
    if k > 0:
        roots(double, thin, k, d, squares, rho, nearest, offset, 2.0**-13 if U.itemsize == 4 else 2.0**-26)
        unit_vectors(double, thin, k, d, z, rho, nearest, offset, kept, U, m, P, column)
    _pass_through(lanes, m, k, passed, U)
    for t in range(rotations - 1, -1, -1):
        _rotate_rows(lanes, m, U, turned[t], partner[t], cosines[t], sines[t])
    for t in range(m - k):
        squares[t] = values[low + passed[t]]
    for i in range(k):
        values[low + i] = nearest[i] + offset[i]
    for t in range(m - k):
        values[low + k + t] = squares[t]
    _sort(values, order, low, m)
    top: Any = np.int64(0)  # as a literal it would be a type of its own, for which all is compiled again
    _multiply(lanes, half, here, low * stride, U, top, m, there, low * stride)
    _multiply(lanes, m - half, here, middle * stride, U, half, m, there, low * stride)


@device_function
def _deflate(
    low: int, half: int, m: int, rho: float, precision: float, values: Any, order: Any, z: Any,
    kept: Any, passed: Any, turned: Any, partner: Any, cosines: Any, sines: Any,
) -> Any:  # fmt: skip
    """Part the columns, in ascending order, into those that take part and those that pass through unchanged.

    A column passes if its z vanishes, or if it is so close to the next that a rotation of the two, which is recorded,
    makes its z vanish. Returns how many take part, and the number of rotations.
    """
    biggest = 0.0
    for c in range(m):
        biggest = max(biggest, abs(values[low + c]), abs(z[c]))
    tolerance = 8 * precision * biggest
    k, gone, rotations, before = 0, 0, 0, -1
    i, j = 0, half
    for _ in range(m):
        upper, lower = order[low + min(i, half - 1)], half + order[low + min(j, m - 1)]
        if j >= m or (i < half and values[low + upper] <= values[low + lower]):
            c = upper
            i += 1
        else:
            c = lower
            j += 1
        if rho * abs(z[c]) <= tolerance:
            passed[gone] = c
            gone += 1
            continue
        if before >= 0:
            d0, d1 = values[low + before], values[low + c]
            length2 = z[c] * z[c] + z[before] * z[before]
            if abs((d1 - d0) * z[c] * z[before]) <= tolerance * length2:
                length = np.sqrt(length2)
                cos, sin = z[c] / length, -z[before] / length
                z[c], z[before] = length, 0.0
                values[low + before], values[low + c] = d0 * cos * cos + d1 * sin * sin, d0 * sin * sin + d1 * cos * cos
                turned[rotations], partner[rotations], cosines[rotations], sines[rotations] = before, c, cos, sin
                rotations += 1
                passed[gone] = before
                gone += 1
            else:
                kept[k] = before
                k += 1
        before = c
    if before >= 0:
        kept[k] = before
        k += 1
    return k, rotations


@device_function
def _pass_through(lanes: Any, m: int, k: int, passed: Any, U: Any) -> None:
    """Columns k to m of U: unit vectors for the columns that passed."""
    W = width(lanes)
    P = 2 * W
    zero = splat(lanes, 0.0)
    for t in range(m - k):
        for place in range(passed[t] * P, ((m - 1) // P * m + passed[t] + 1) * P, m * P):
            store(U, place, zero)
            store(U, place + W, zero)
    for t in range(m - k):
        place = (k + t) // P * m * P + (k + t) % P
        for i in range(m):
            U[place + i * P] = 0
        U[place + passed[t] * P] = 1


@device_function
def _rotate_rows(lanes: Any, m: int, U: Any, row: int, other: int, cos: float, sin: float) -> None:
    """A deflating rotation of two columns of the vectors, done on the rows of U that they meet."""
    W = width(lanes)
    P = 2 * W
    c, s = splat(lanes, cos), splat(lanes, sin)
    for panel in range(0, (m + P - 1) // P * m * P, m * P):
        for w in range(0, P, W):
            x, y = load(lanes, U, panel + row * P + w), load(lanes, U, panel + other * P + w)
            store(U, panel + row * P + w, c * x - s * y)
            store(U, panel + other * P + w, s * x + c * y)


@device_function
def _multiply(
    lanes: Any, size: int, here: Any, source: int, U: Any, first: int, m: int, there: Any, target: int
) -> None:
    """Rows first to first + size of the product: a half's vectors (size × size) times its rows of U, in panels."""
    P = 2 * width(lanes)
    for panel in range(0, (m + P - 1) // P * m * P, m * P):
        right, out = panel + first * P, target + panel + first * P
        for r in range(0, size - size % 4, 4):
            four = _add_products(lanes, zero_block(lanes, 8), size, here, source + r * P, U, right)
            store_block(lanes, there, out + r * P, P, four, 2, size < 0)
        for r in range(size - size % 4, size):
            one = _add_products(lanes, zero_block(lanes, 2), size, here, source + r * P, U, right)
            store_block(lanes, there, out + r * P, P, one, 2, size < 0)


@inline
def _add_products(lanes: Any, block: Any, size: int, here: Any, left: int, U: Any, right: int) -> Any:
    """Add rows of a half's vectors, from ``left`` on, times two vectors of columns of U, to a block."""
    P, none = 2 * width(lanes), splat(lanes, 0.0)
    for panel in range(0, size, P):
        for i in range(left + panel * size, left + panel * size + min(P, size - panel)):
            block = add_outer(lanes, block, 2, U, right, none, here, i, P)
            right += P
    return block


@device_function
def _write(
    lanes: Any, n: int, vectors: Any, values: Any, order: Any, back: float, again: float, matrix: int,
    L: Any, V: Any, offsets: Any,
) -> None:  # fmt: skip
    """One matrix's eigenpairs in ascending order; columns become rows, W×W at a time."""
    W = width(lanes)
    P = 2 * W
    for k in range(n):
        L[matrix * n + k] = values[order[k]] * back * again
        offsets[order[k]] = (matrix * n + k) * n
    for c in range(0, n, W):
        panel = c // P * n * P + c % P
        for i in range(0, n, W):
            transpose(lanes, vectors, panel + i * P, P, V, offsets[c:], i, n - i, n - c)
    if not back > 0:
        for i in range(matrix * n * n, (matrix + 1) * n * n):
            V[i] = np.nan


@kernel
def divide_and_conquer(number: Any, A: int, L: int, V: int, batch: int, n: int, work: int) -> int:
    """Decompose matrices, n ≥ 2; :mod:`..eigensolvers` says what the arguments are."""
    lanes, narrow, doubles = lanes_of(number), narrow_lanes_of(number), lanes_of(np.float64(0))
    matrices, values, vectors = decomposition_at(lanes, A, L, V, batch, n)
    begin, end = next_chunk(work, batch)
    while begin < end:
        add_status(work, _divide_and_conquer(lanes, narrow, doubles, matrices, values, vectors, begin, end, n))
        begin, end = next_chunk(work, batch)
    return DONE
