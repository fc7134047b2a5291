"""The kernels' vectors: what their operations promise about rounding."""

import numpy as np
import pytest

numba = pytest.importorskip("numba")

from eigengrad.kernels.simd.memory import load, store  # noqa: E402
from eigengrad.kernels.simd.vectors import lanes_of, reciprocal, rsqrt_rounded, width  # noqa: E402


@numba.njit
def apply_root(number, x, y):
    lanes = lanes_of(number)
    for i in range(0, len(x), width(lanes)):
        store(y, i, rsqrt_rounded(load(lanes, x, i)))


@numba.njit
def apply_reciprocal(number, x, y):
    lanes = lanes_of(number)
    for i in range(0, len(x), width(lanes)):
        store(y, i, reciprocal(load(lanes, x, i)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("apply", "exact", "ulps"),
    [(apply_root, lambda x: 1 / np.sqrt(x), 1.25), (apply_reciprocal, lambda x: 1 / x, 1.0)],
    ids=["reciprocal root", "reciprocal"],
)
def test_newton_steps_reach_round_off(apply, exact, ulps, dtype):
    """Over four octaves, all that there is to it: exponents scale out."""
    x = np.exp2(np.random.default_rng(0).uniform(-2, 2, 1 << 16)).astype(dtype)
    y = np.empty_like(x)
    apply(dtype(0), x, y)
    expected = exact(x.astype(np.longdouble))
    assert (np.abs(y - expected) <= ulps * np.spacing(expected.astype(dtype))).all()
