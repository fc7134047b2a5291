"""The implicit QL iteration on symmetric tridiagonal matrices, one matrix a lane, in lockstep.

A sweep chases a bulge from the end of the matrix to its first unfinished row by plane rotations, after a shift towards
the eigenvalue there (Wilkinson's); about 1.7 sweeps an eigenvalue are needed. Each lane deflates at its own pace: where
an off-diagonal entry is zero the chain starts anew with its lane's own shift and no rotation, so a lane that has
finished, or a block that has split, costs its neighbours nothing but its idle time.

The chain of one sweep is sequential: each rotation needs the previous one. So everything off the critical path is
computed beside it, and 1/√ comes in two factors that are multiplied into the results (see ``rsqrt``).
"""

from __future__ import annotations

from typing import Any

from ..runtime.compile import device_function
from ..simd.memory import load, store
from ..simd.vectors import absolute, any_lane, copy_sign, fma, reciprocal, rsqrt, select, splat, sqrt, width

__all__ = ["SWEEPS", "apply_rotation", "find_blocks", "finish_sweep", "rotate", "start_sweep"]

SWEEPS = 60  # an eigenvalue, before giving up: LAPACK's bound is 30


@device_function
def find_blocks(lanes: Any, diagonal: Any, off: Any, start: int, n: int, fresh: bool, epsilon: float) -> Any:
    """The first row that is unfinished in some lane, or −1, and the vector of shifts for the lanes' own first blocks.

    Off-diagonal entries with |e| ≤ ε (|d| + |d′|) + ε/4 are set to zero on the way: relative, with a floor, as the
    matrix is scaled to size 1; without the floor, graded and rank-deficient matrices never finish, because their small
    entries are round-off themselves. Later sweeps need to look only until every lane has found its block, as a sweep
    cleans what it leaves behind.
    """
    W = width(lanes)
    zero, one, two = splat(lanes, 0.0), splat(lanes, 1.0), splat(lanes, 2.0)
    relative, floor = splat(lanes, epsilon), splat(lanes, 0.25 * epsilon)
    found = one < zero
    d0, d1, e0 = zero, zero, one
    row = -1
    for m in range(start, n - 1):
        e, d, next_d = load(lanes, off, m * W), load(lanes, diagonal, m * W), load(lanes, diagonal, (m + 1) * W)
        alive = absolute(e) > fma(relative, absolute(d) + absolute(next_d), floor)
        store(off, m * W, select(alive, e, zero))
        if row < 0 and any_lane(alive):
            row = m
        first = alive & (~found)
        d0, d1, e0 = select(first, d, d0), select(first, next_d, d1), select(first, e, e0)
        found = found | alive
        if not fresh and not any_lane(~found):
            break
    g = (d1 - d0) / (two * e0)
    return row, d0 - e0 / (g + copy_sign(sqrt(fma(g, g, one)), g))


@device_function
def start_sweep(lanes: Any, diagonal: Any, shift: Any, n: int) -> Any:
    """The state of the chain before its first rotation."""
    zero, one = splat(lanes, 0.0), splat(lanes, 1.0)
    g = load(lanes, diagonal, (n - 1) * width(lanes)) - shift
    return g, one, one, zero, one > zero, zero


@device_function
def rotate(
    lanes: Any, diagonal: Any, off: Any, i: int, shift: Any, epsilon: float,
    g: Any, sin: Any, cos: Any, p: Any, restarted: Any, next_size: Any,
) -> Any:  # fmt: skip
    """One step of the chain, on rows i and i + 1: its new state, then the factors of :func:`apply_rotation`."""
    W = width(lanes)
    zero, one = splat(lanes, 0.0), splat(lanes, 1.0)
    relative, floor = splat(lanes, epsilon), splat(lanes, 0.25 * epsilon)
    tiny = splat(lanes, 1e-36 if off.itemsize == 4 else 1e-300)
    e, d, next_d = load(lanes, off, i * W), load(lanes, diagonal, i * W), load(lanes, diagonal, (i + 1) * W)
    f, b = sin * e, cos * e
    remaining = next_d - p
    r2 = fma(g, g, fma(f, f, tiny))
    inner = fma(b + b, g, (d - remaining) * f)
    split = absolute(e) <= zero
    y, k = rsqrt(r2)
    k = copy_sign(k, g)  # the sign of r is free; this one keeps the angle below a right one
    cross, new_cos, new_sin, r = (y * inner) * k, (y * g) * k, (y * f) * k, r2 * (y * k)
    vanished = r2 <= tiny + tiny
    if any_lane(vanished):
        new_cos, new_sin = select(vanished, one, new_cos), select(vanished, zero, new_sin)
        cross, r = select(vanished, b + b, cross), select(vanished, zero, r)
    new_sin = select(split, zero, new_sin)
    p = new_sin * cross
    new_d = remaining + p
    new_e = select(split, g, r)
    done = (absolute(new_e) <= fma(relative, absolute(new_d) + next_size, floor)) | restarted
    store(off, (i + 1) * W, select(done, zero, new_e))
    store(diagonal, (i + 1) * W, new_d)
    g = select(split, d - shift, fma(new_cos, cross, -b))
    new_cos = select(split, one, new_cos)
    # The vectors are turned by this angle to round-off, but stay orthogonal only as far as the sine fits the tangent of
    # half the angle: so it is corrected to be 2t/(1 + t²), with 1/(1 + t²) = (1 + cos)/2. Where one shear is all that
    # can be seen, it is made at once: two halves of it could both be lost to rounding, time and again.
    more = one + new_cos
    tan = new_sin * reciprocal(more)
    twice = tan + tan
    turn = fma(fma(-tan, tan * new_sin, twice - new_sin), splat(lanes, 0.5) * more, new_sin)
    small = absolute(tan) < splat(lanes, 2.0**-14 if off.itemsize == 4 else 2.0**-28)
    tan, other = select(small, twice, tan), select(small, zero, tan)
    return g, select(split, one, new_sin), new_cos, p, split, absolute(new_d), tan, turn, other


@device_function
def finish_sweep(lanes: Any, diagonal: Any, off: Any, row: int, g: Any, p: Any, restarted: Any) -> None:
    """Close the chain at its first row."""
    W = width(lanes)
    store(diagonal, row * W, load(lanes, diagonal, row * W) - p)
    store(off, row * W, select(restarted, splat(lanes, 0.0), g))


@device_function
def apply_rotation(first: Any, second: Any, third: Any, x: Any, y: Any) -> Any:
    """(cos x − sin y, sin x + cos y) as three shears: with sin in the middle, tan(angle/2) before and after it.

    One operation less than products with cos and sin take, and better: their rounding changes lengths, while a shear
    that is undone by the next one changes none, whatever its factor.
    """
    x = fma(-first, y, x)
    y = fma(second, x, y)
    return fma(-third, y, x), y
