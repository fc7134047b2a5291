"""Divided differences against mpmath, from tied points to points that are hundreds of orders of magnitude apart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import mpmath
import pytest
import torch
from torch import Tensor

from eigengrad.matrix_functions.divided_differences import GivenFunction, SmoothFunction
from eigengrad.matrix_functions.power import Power
from functions_matrix import BY_NAME, FUNCTIONS, GIVEN, NAMED, Entry, burg, ids

DTYPES = [torch.float64, torch.float32]
EPS = {dtype: torch.finfo(dtype).eps for dtype in DTYPES}
RATIOS = [
    1.0,
    1 + 1e-15,
    1 + 1e-12,
    1 + 1e-9,
    1 + 3e-7,
    1 + 1e-6,
    1 + 1e-4,
    1.01,
    1.3,
    2.0,
    2.9,
    3.1,
    10.0,
    1e3,
    1e6,
    1e12,
]
BASES = {
    torch.float64: [1e-300, 1e-100, 1e-30, 1e-8, 0.37, 1.0, 7.0, 1e8, 1e30, 1e100],
    torch.float32: [1e-30, 1e-20, 1e-8, 0.37, 1.0, 7.0, 1e8, 1e18],
}
GAPS = [0.0, 1e-300, 1e-30, 1e-16, 1e-12, 1e-8, 1e-5, 1e-3, 0.1, 1.0, 10.0, 60.0]
SHIFTS = [-60.0, -3.0, -1.0, -1e-8, 0.0, 1e-300, 1e-8, 0.5, 2.0, 20.0]


def first_exact(entry: Entry, x: float, y: float) -> mpmath.mpf:
    f, df, _ = entry.exact
    x, y = mpmath.mpf(x), mpmath.mpf(y)
    return df(x) if x == y else (f(x) - f(y)) / (x - y)


def second_exact(entry: Entry, x: float, y: float, z: float) -> mpmath.mpf:
    x, y, z = sorted((x, y, z))
    if x == z:
        return entry.exact[2](mpmath.mpf(x)) / 2
    return (first_exact(entry, y, z) - first_exact(entry, x, y)) / (mpmath.mpf(z) - mpmath.mpf(x))


def points(entry: Entry, dtype: torch.dtype) -> list[tuple[float, float]]:
    """Pairs as the type holds them."""
    if entry.domain == "real":
        pairs = [(s, s + g) for s in SHIFTS for g in GAPS]
    else:
        pairs = [(b, b * r) for b in BASES[dtype] for r in RATIOS]
    rounded = torch.tensor(pairs, dtype=torch.float64).to(dtype)
    return [(x.item(), y.item()) for x, y in rounded]


def column(values: Iterable[float], dtype: torch.dtype) -> Tensor:
    """One 1×1 matrix per value: what a function may know of the others in its batch is nothing."""
    return torch.tensor(list(values), dtype=dtype)[:, None, None]


def worst(
    got: Tensor, exact: list[mpmath.mpf], where: list[tuple[float, ...]], scale: float = 0.0
) -> tuple[float, str]:
    """The largest error where the true value is a normal number of the type, and where that is.

    Relative, and divided by 1 + scale · Σ|log x|.
    """
    info = torch.finfo(got.dtype)
    found = (0.0, "nowhere")
    compared = 0
    for value, true, point in zip(got.flatten().tolist(), exact, where, strict=True):
        if not (info.tiny * 4 < abs(true) < info.max / 4):
            continue
        compared += 1
        error = float(abs(mpmath.mpf(value) - true) / abs(true)) if mpmath.isfinite(value) else float("inf")
        if scale:
            error /= 1 + scale * sum(abs(math.log(x)) for x in point)
        if not error <= found[0]:
            found = (error, f"{point}: got {value}, expected {mpmath.nstr(true, 20)}")
    assert compared >= 20
    return found


@pytest.fixture(autouse=True)
def fifty_digits():
    with mpmath.workdps(110):  # 50 after the cancellation of two difference quotients
        yield


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("entry", NAMED, ids=ids(NAMED))
def test_first_is_accurate_to_round_off_at_every_gap(entry, dtype):
    pairs = points(entry, dtype)
    got = entry.scalar.first(column((x for x, _ in pairs), dtype), column((y for _, y in pairs), dtype))
    # An exponent p − 1 that is rounded costs |log x| · eps, whatever the formula.
    scale = 0.1 if isinstance(entry.scalar, Power) else 0.0
    error, place = worst(got, [first_exact(entry, *pair) for pair in pairs], pairs, scale)
    assert error <= 32 * EPS[dtype], place


@pytest.mark.parametrize("entry", [e for e in NAMED if e.domain != "real"], ids=lambda e: e.name)
def test_first_in_float32_reaches_as_far_as_its_result(entry):
    extremes = torch.tensor([10.0**k for k in range(-30, 31, 3)]).tolist()
    room = torch.finfo(torch.float32).max / 4
    extremes = [x for x in extremes if abs(entry.exact[0](mpmath.mpf(x))) < room]  # where f(A) itself is representable
    pairs = list(itertools.combinations_with_replacement(extremes, 2))
    x, y = (column(side, torch.float32) for side in zip(*pairs, strict=True))
    exact = [first_exact(entry, *pair) for pair in pairs]
    error, place = worst(entry.scalar.first(x, y), exact, pairs)
    # Coarse on purpose: the fact is that nothing overflows or underflows on the way.
    assert error <= 1e-4, place


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("entry", FUNCTIONS, ids=ids(FUNCTIONS))
def test_first_is_symmetric(entry, dtype):
    pairs = [(x, y) for x, y in points(entry, dtype) if not entry.given or 1e-3 < abs(x) < 1e3]
    x, y = (column(side, dtype) for side in zip(*pairs, strict=True))
    torch.testing.assert_close(entry.scalar.first(x, y), entry.scalar.first(y, x), rtol=8 * EPS[dtype], atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("entry", [e for e in NAMED if e.domain == "non-negative"], ids=lambda e: e.name)
def test_first_with_one_zero_is_the_value_over_the_argument(entry, dtype):
    y = column([1e-12, 1e-8, 0.5, 1.0, 3.0, 1e10], dtype)
    expected = [first_exact(entry, 0.0, v) for v in y.flatten().tolist()]
    got = entry.scalar.first(torch.zeros_like(y), y).flatten().tolist()
    for value, true in zip(got, expected, strict=True):
        assert abs(value - true) <= 16 * EPS[dtype] * abs(true)


@pytest.mark.parametrize("name", ["power(1)", "power(2)", "power(3)"])
def test_first_of_a_smooth_power_at_two_zeros_is_its_slope_there(name):
    entry = BY_NAME[name]
    zero = torch.zeros(1, 1, 1, dtype=torch.float64)
    assert entry.scalar.first(zero, zero).item() == (1.0 if name == "power(1)" else 0.0)


def triples(entry: Entry, dtype: torch.dtype) -> list[tuple[float, float, float]]:
    gaps = [0.0, 1e-15, 1e-12, 1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0]
    if entry.domain == "real":
        raw = [(s, s + g * t, s + g) for s in (-3.0, 0.5, 2.0) for g in gaps for t in (0.0, 0.3, 1.0)]
    else:
        ratios = [*(1 + g for g in gaps), 30.0, 1e6, 1e12]
        raw = [(b, b * r**t, b * r) for b in (1e-6, 0.37, 1.0, 50.0) for r in ratios for t in (0.0, 0.3, 1.0)]
    return [tuple(row) for row in torch.tensor(raw, dtype=torch.float64).to(dtype).tolist()]


# The recursion takes over from the mean of ½ f″ where the gap is about eps^(1/4), and loses eps/gap there.
SECOND_ACCURACY = {dtype: 8 * EPS[dtype] ** (3 / 4) for dtype in DTYPES}
SMOOTH = [entry for entry in NAMED if isinstance(entry.scalar, SmoothFunction)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("entry", SMOOTH, ids=ids(SMOOTH))
def test_second_is_as_accurate_as_documented(entry, dtype):
    if entry.name == "power(1)":
        pytest.skip("f″ is zero: see the test of that")
    where = triples(entry, dtype)
    x, y, z = (column(side, dtype) for side in zip(*where, strict=True))
    error, place = worst(entry.scalar.second(x, y, z), [second_exact(entry, *w) for w in where], where)
    assert error <= SECOND_ACCURACY[dtype], place


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_second_of_the_identity_function_is_zero(dtype):
    entry = BY_NAME["power(1)"]
    x, y, z = (column(side, dtype) for side in zip(*triples(entry, dtype), strict=True))
    got = entry.scalar.second(x, y, z)
    # In units of f′/x, the natural size of a second difference.
    assert (got.abs() * x).max() <= 16 * EPS[dtype] ** (2 / 3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("entry", [*SMOOTH, *GIVEN], ids=ids([*SMOOTH, *GIVEN]))
def test_second_is_symmetric_in_its_arguments(entry, dtype):
    where = [w for w in triples(entry, dtype) if w[0] > -10 and 1e-3 < abs(w[2]) < 1e3]
    args = [column(side, dtype) for side in zip(*where, strict=True)]
    reference = entry.scalar.second(*args)
    for order in itertools.permutations(args):
        torch.testing.assert_close(entry.scalar.second(*order), reference, rtol=8 * EPS[dtype], atol=0)


@pytest.mark.parametrize("name", ["power(2)", "power(3)"])
def test_second_of_a_smooth_power_at_zeros(name):
    entry = BY_NAME[name]
    zero, one = (torch.full((1, 1, 1), v, dtype=torch.float64) for v in (0.0, 1.0))
    expected = {"power(2)": (1.0, 1.0), "power(3)": (0.0, 1.0)}[name]  # f[0,0,0], f[0,0,1]
    got = (entry.scalar.second(zero, zero, zero).item(), entry.scalar.second(zero, zero, one).item())
    assert got == pytest.approx(expected, abs=1e-12)


# The docstring of GivenFunction: about 1e-12 in float64, 1e-5 in float32, in units of the slope (1 for both functions
# on the points below).
GIVEN_ACCURACY = {torch.float64: 5e-12, torch.float32: 2e-5}
GIVEN_CENTRES = {"given sin": [0.0, 0.4, 1.0, 1.5707963267948966, 3.0], "given burg": [0.6, 0.9, 1.0, 1.1, 1.9]}


def given_pairs(entry: Entry, dtype: torch.dtype) -> list[tuple[float, float]]:
    gaps = [0.0] + [10.0 ** (k / 2) for k in range(-33, 1)]
    raw = [(c - t * g, c + (1 - t) * g) for c in GIVEN_CENTRES[entry.name] for g in gaps for t in (0.0, 0.5)]
    rounded = torch.tensor(raw, dtype=torch.float64).to(dtype).tolist()
    return [(x, y) for x, y in rounded if entry.domain == "real" or x > 0.3]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("entry", GIVEN, ids=ids(GIVEN))
def test_first_of_a_given_function_is_as_accurate_as_documented(entry, dtype):
    pairs = given_pairs(entry, dtype)
    x, y = (column(side, dtype) for side in zip(*pairs, strict=True))
    got = entry.scalar.first(x, y).flatten().tolist()
    errors = [float(abs(v - first_exact(entry, *pair))) for v, pair in zip(got, pairs, strict=True)]
    place = max(range(len(errors)), key=errors.__getitem__)
    assert errors[place] <= GIVEN_ACCURACY[dtype], f"{pairs[place]}: got {got[place]}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("entry", GIVEN, ids=ids(GIVEN))
def test_second_of_a_given_function_is_as_accurate_as_documented(entry, dtype):
    where = [(x, x + t * (y - x), y) for x, y in given_pairs(entry, dtype) for t in (0.0, 0.4, 1.0)]
    where = [tuple(row) for row in torch.tensor(where, dtype=dtype).tolist()]
    x, y, z = (column(side, dtype) for side in zip(*where, strict=True))
    got = entry.scalar.second(x, y, z).flatten().tolist()
    errors = [float(abs(v - second_exact(entry, *w))) for v, w in zip(got, where, strict=True)]
    place = max(range(len(errors)), key=lambda i: errors[i] if errors[i] == errors[i] else float("inf"))
    # One difference quotient of a function that is itself known to GIVEN_ACCURACY: cube root of eps, squared.
    assert errors[place] <= 16 * EPS[dtype] ** (2 / 3), f"{where[place]}: got {got[place]}"


def test_first_of_an_oscillating_given_function_is_right_where_slopes_agree_by_chance():
    # cos takes the same value on both sides of 32π; the slope between them is not constant for that.
    entry = BY_NAME["given sin"]
    centre = 32 * torch.pi
    for half in (0.05, 0.2, 0.4):
        x, y = column([centre - half], torch.float64), column([centre + half], torch.float64)
        expected = float(first_exact(entry, x.item(), y.item()))
        assert entry.scalar.first(x, y).item() == pytest.approx(expected, abs=GIVEN_ACCURACY[torch.float64])


def test_first_of_a_given_function_over_a_whole_period_is_zero():
    # Eigenvalues 1000 and 1000 + 2π: equal slopes, a hundredth of the scale apart, and nothing between them is flat.
    entry = BY_NAME["given sin"]
    x, y = column([1000.0], torch.float64), column([1000.0 + 2 * torch.pi], torch.float64)
    assert entry.scalar.first(x, y).item() == pytest.approx(0.0, abs=1e-11)


def test_a_given_function_without_d2f_says_so_when_its_curvature_is_needed():
    f = GivenFunction(burg, lambda x: 1 - 1 / x)
    x = column([1.0], torch.float64)
    with pytest.raises(ValueError, match="d2f"):
        f.second(x, x, x)


@pytest.mark.parametrize("entry", NAMED, ids=ids(NAMED))
def test_named_functions_compare_and_hash_by_value(entry):
    twin = type(entry.scalar)(**vars(entry.scalar))
    assert twin == entry.scalar
    assert hash(twin) == hash(entry.scalar)
