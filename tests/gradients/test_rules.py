"""Every rule × transform × type × spectrum, for eigh and for svd. The matrix itself is in rules_matrix.py."""

import contextlib
import math
from contextlib import nullcontext
from dataclasses import dataclass

import pytest
import torch
from torch.func import hessian, jacfwd, jacrev

import eigengrad as eg
from eigengrad.gradients import RULES as REGISTRY
from eigengrad.gradients import PairRule, resolve
from eigengrad.gradients.spectrum import pair_gaps
from eigengrad.testing import SPECTRA, adjoint_defect, random_hermitian, random_unitary
from rules_matrix import (
    DOUBLE,
    DTYPES,
    PAIR_RULES,
    REGULAR,
    RULES,
    TRANSFORMS,
    Decomposition,
    N,
    decompositions,
    one_by_one,
    spectra,
    transforms,
)

SINGLE = [torch.float32, torch.float64]


def relative_error(actual, expected):
    """Per matrix, ‖actual − expected‖ / ‖expected‖, in double precision because squares overflow in single."""
    double = torch.complex128 if expected.is_complex() else torch.float64
    error, size = (x.to(double).flatten(-2).norm(dim=-1) for x in (actual - expected, expected))
    return error / torch.where(size > 0, size, torch.ones_like(size))


def all_matrices(decomposition, generator, dtype):
    regular = any(case.rule == decomposition.rule for case in REGULAR)
    names = [name for name in spectra(regular) for _ in range(2)]
    return names, torch.cat([decomposition.matrices(name, generator, dtype) for name in spectra(regular)])


def test_every_rule_of_the_registry_is_in_the_matrix():
    assert {type(rule) for rule in REGISTRY.values()} == {type(case.rule) for case in RULES}


# Transforms ---------------------------------------------------------------------------------------------------------


@pytest.mark.sample(2)
@pytest.mark.parametrize(("transform", "dtype"), transforms())
@pytest.mark.parametrize("decomposition", decompositions(RULES))
def test_transform_gives_the_gradient_of_plain_backward(decomposition, transform, dtype, generator):
    names, batch = all_matrices(decomposition, generator, dtype)
    if transform == "compile":
        names, batch = names[::7], batch[::7]
    if decomposition.rule == eg.Taylor(degree=1000) and dtype.itemsize == 4 * (1 + dtype.is_complex):
        keep = [not name.startswith("1e-30") for name in names]  # dV is up to 1e39, more than the type can hold
        names, batch = [name for name, kept in zip(names, keep, strict=True) if kept], batch[torch.tensor(keep)]
    expected = one_by_one(decomposition.loss, batch)
    error = relative_error(TRANSFORMS[transform](decomposition.loss, batch), expected)
    worst = error.nan_to_num(nan=math.inf).argmax()
    assert error[worst] < 1e5 * torch.finfo(dtype).eps, names[worst]


@pytest.mark.parametrize("decomposition", decompositions(RULES))
def test_hessian_is_the_same_in_every_mode(decomposition, generator):
    A = decomposition.matrices("separated", generator, torch.float64)[0]
    expected = jacrev(jacrev(decomposition.loss))(A)
    for mode in (hessian, lambda f: jacrev(jacfwd(f))):
        torch.testing.assert_close(
            mode(decomposition.loss)(A), expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max())
        )


@pytest.mark.parametrize("name", ["eigh", "svd"])
def test_nested_forward_mode_is_right_or_refused(name, generator):
    """Wrong in torch for every autograd.Function with a jvp, silently: github.com/pytorch/pytorch/issues/197867."""
    decomposition = Decomposition(name, eg.Exact())
    A = decomposition.matrices("separated", generator, torch.float64)[0]
    try:
        actual = jacfwd(jacfwd(decomposition.loss))(A)
    except NotImplementedError:
        return
    torch.testing.assert_close(actual, hessian(decomposition.loss)(A))


# Facts of every rule ------------------------------------------------------------------------------------------------


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", DOUBLE, ids=str)
@pytest.mark.parametrize("decomposition", decompositions(RULES))
def test_reverse_mode_is_the_adjoint_of_forward_mode(decomposition, dtype, generator):
    names, batch = all_matrices(decomposition, generator, dtype)
    defects = [adjoint_defect(decomposition, A, generator, hermitian=decomposition.hermitian) for A in batch]
    wrong = {name: defect for name, defect in zip(names, defects, strict=True) if not defect < 1e-10}
    assert not wrong


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("decomposition", decompositions(REGULAR))
def test_gradient_and_its_gradient_are_finite_at_every_spectrum(decomposition, dtype, generator):
    names, batch = all_matrices(decomposition, generator, dtype)
    batch.requires_grad_()
    (first,) = torch.autograd.grad(decomposition.loss(batch).sum(), batch, create_graph=True)
    finite = first.isfinite().flatten(1).all(1)
    assert not [name for name, ok in zip(names, finite, strict=True) if not ok]
    # Second derivatives are of order 1/scale², which at 1e-30 is no number of single precision.
    weights = torch.randn(first.shape, generator=generator, dtype=dtype)
    (second,) = torch.autograd.grad((first * weights.conj()).real.sum(), batch)
    finite = second.isfinite().flatten(1).all(1)
    assert not [name for name, ok in zip(names, finite, strict=True) if not ok and not name.startswith("1e-30")]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", RULES, ids=str)
def test_gradient_is_hermitian(case, dtype, generator):
    decomposition = Decomposition("eigh", case.rule)
    _, batch = all_matrices(decomposition, generator, dtype)
    gA = one_by_one(decomposition.loss, batch)
    assert relative_error(gA.mH, gA).max() < 4 * N * torch.finfo(dtype).eps


@pytest.mark.parametrize("q", [0.0, 0.1, 0.5, 0.9, 0.999, 1 - 1e-5])
@pytest.mark.parametrize("case", RULES, ids=str)
def test_share_of_the_exact_gradient_is_the_documented_one(case, q, generator):
    """At two eigenvalues 1 and q, and so in the limit q → 0 as well: there a rule is exact, or says what it loses."""
    A = random_hermitian(torch.tensor([q, 1.0], dtype=torch.float64), generator)
    weights = torch.randn(2, generator=generator, dtype=torch.float64)

    def gradient(rule):
        B = A.clone().requires_grad_()
        return torch.autograd.grad((eg.eigh(B, gradient=rule).eigenvectors[:, -1] @ weights) ** 2, B)[0]

    exact = gradient(eg.Exact())
    share = float((gradient(case.rule) * exact).sum() / (exact * exact).sum())
    # The gap of A is q's up to round-off of A.
    assert 1 - share == pytest.approx(case.lost(q), abs=1e-10, rel=1e-9)


@pytest.mark.parametrize("c", [2.0**-100, 2.0**100], ids=["1e-30", "1e30"])
@pytest.mark.parametrize("case", [case for case in RULES if case.scale_free], ids=str)
@pytest.mark.parametrize("dtype", SINGLE, ids=str)
def test_rule_is_scale_free(case, dtype, c, generator):
    names = [name for name in spectra(case.regular) if name != "zeros" and not name.startswith("1e")]
    L = torch.stack([SPECTRA[name]((N,), generator) for name in names]).to(dtype)
    V = random_unitary(L.shape, generator).to(dtype)
    gV = torch.randn(V.shape, generator=generator, dtype=dtype)
    expected = case.rule.pullback(L, V, None, gV)
    error = relative_error(case.rule.pullback(c * L, V, None, gV) * c, expected)
    worst = int(error.nan_to_num(nan=math.inf).argmax())
    assert error[worst] < 10 * torch.finfo(dtype).eps, names[worst]


@pytest.mark.parametrize("c", [1e-30, 1e-10, 1e10, 1e30])
@pytest.mark.parametrize("decomposition", decompositions([case for case in RULES if case.scale_free]))
def test_matrix_times_c_has_the_gradient_over_c_in_float32(decomposition, c, generator):
    A = decomposition.matrices("separated", generator, torch.float32)
    expected = one_by_one(decomposition.loss, A)
    error = relative_error(one_by_one(decomposition.loss, A * c) * c, expected)
    assert error.max() < 1e-4


@pytest.mark.parametrize("case", REGULAR, ids=str)
def test_sign_at_a_tie_follows_the_order_of_the_indices(case, generator):
    """With V = I and dA = 1 the change of V is R itself: never negative above the diagonal, never positive below."""
    L = torch.stack([spectrum((N,), generator) for spectrum in SPECTRA.values()])
    R = case.rule.pushforward(L, torch.eye(N, dtype=L.dtype).expand(len(L), N, N), torch.ones(N, N, dtype=L.dtype))[1]
    assert (R.triu() >= 0).all()
    assert (R.tril() <= 0).all()
    if case in PAIR_RULES:
        assert torch.equal(R, -R.mT)


@pytest.mark.parametrize(
    "case", [c for c in REGULAR if isinstance(c.rule, eg.Saturate | eg.Taylor | eg.Clip | eg.PowerIteration)], ids=str
)
def test_tied_pair_is_not_dropped(case):
    L = torch.tensor([1.0, 1.0, 2.0], dtype=torch.float64)
    R = case.rule.pushforward(L, torch.eye(3, dtype=L.dtype), torch.ones(3, 3, dtype=L.dtype))[1]
    assert R[0, 1] > 0 > R[1, 0]


@pytest.mark.parametrize("rule", ["mask", "lorentzian", "truncate"])
def test_tied_pair_is_dropped(rule):
    L = torch.tensor([1.0, 1.0, 2.0], dtype=torch.float64)
    R = resolve(rule).pushforward(L, torch.eye(3, dtype=L.dtype), torch.ones(3, 3, dtype=L.dtype))[1]
    assert R[0, 1] == R[1, 0] == 0
    assert R[0, 2] == pytest.approx(1.0, rel=1e-10)


BOUNDS = {
    eg.Saturate(): lambda scale, spread, roundoff: 1 / (1e-5 * spread),
    eg.Saturate(rtol=0.1): lambda scale, spread, roundoff: 1 / (0.1 * spread),
    eg.Clip(threshold=7.0): lambda scale, spread, roundoff: 7.0 + 0 * scale,
    eg.Lorentzian(broadening=1e-6): lambda scale, spread, roundoff: 1 / (2 * 1e-3 * spread),
    eg.Mask(): lambda scale, spread, roundoff: 1 / roundoff,
    eg.Mask(rtol=1e-3): lambda scale, spread, roundoff: 1 / (1e-3 * spread),
    eg.Truncate(): lambda scale, spread, roundoff: 1 / roundoff,
    eg.Taylor(degree=4): lambda scale, spread, roundoff: 5 / roundoff,
    eg.Taylor(degree=4, eps=1e-3): lambda scale, spread, roundoff: 5 / 1e-3 + 0 * scale,
}


@pytest.mark.parametrize("rule", BOUNDS, ids=str)
def test_documented_bound_on_the_reciprocal_holds_at_every_spectrum(rule, generator):
    for name, spectrum in SPECTRA.items():
        L = spectrum((50, N), generator)
        R = rule.pushforward(L, torch.eye(N, dtype=L.dtype).expand(50, N, N), torch.ones(50, N, N, dtype=L.dtype))[1]
        scale = L.abs().amax(-1)
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        roundoff = N * torch.finfo(L.dtype).eps * scale
        spread = L[..., -1] - L[..., 0]
        spread = torch.where(spread > roundoff, spread, scale)
        limit = BOUNDS[rule](scale, spread, roundoff)
        assert (R.abs().amax((-2, -1)) <= limit * (1 + 1e-12)).all(), name


# Particular rules ---------------------------------------------------------------------------------------------------


def test_mask_is_exact_for_a_projector_on_a_degenerate_space(generator):
    """Such a loss is differentiable at the tie: finite differences say how."""
    A = random_hermitian(torch.tensor([1.0, 1.0, 1.0, 2.0, 3.0]), generator)
    E = random_hermitian(torch.tensor([-2.0, -1.0, 0.5, 1.0, 2.0]), generator)
    W = random_hermitian(torch.arange(5.0), generator)

    def loss(A):
        V = eg.eigh(A, gradient="mask").eigenvectors[:, :3]
        return (V @ V.mT * W).sum()

    h = 1e-5
    difference = (loss(A + h * E) - loss(A - h * E)) / (2 * h)
    torch.testing.assert_close((torch.func.grad(loss)(A) * E).sum(), difference, rtol=1e-8, atol=1e-8)


def test_truncate_keeps_the_fewest_eigenvalues_that_hold_the_energy():
    L = torch.tensor([[-1.0, 0.0, 1.0, 9.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    assert eg.Truncate(energy=0.9).kept(L[:2]).tolist() == [[False] * 3 + [True], [True] * 4]
    assert eg.Truncate(energy=0.95).kept(L[:1]).tolist() == [[False, False, True, True]]
    assert eg.Truncate(energy=0.5).kept(L[1:2]).tolist() == [[False, False, True, True]]
    assert eg.Truncate(rank=1).kept(L).tolist() == [[False] * 3 + [True]] * 3
    assert eg.Truncate(rank=9).kept(L).all()


@pytest.mark.parametrize("case", PAIR_RULES, ids=str)
def test_reciprocal_is_symmetric_with_a_finite_diagonal(case, generator):
    L = SPECTRA["separated"]((3, N), generator)
    R = case.rule.reciprocal(L)
    assert torch.equal(R, R.mT)
    assert R.diagonal(dim1=-2, dim2=-1).isfinite().all()


# Rules as objects ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", RULES, ids=str)
def test_rule_is_a_frozen_value_that_hashes(case):
    copy = type(case.rule)(**vars(case.rule))
    assert copy == case.rule
    assert hash(copy) == hash(case.rule)
    with pytest.raises(AttributeError):
        case.rule.anything = 1
    assert eval(repr(case.rule), vars(eg)) == case.rule


@pytest.mark.parametrize("name", REGISTRY)
def test_name_and_rule_give_the_same_gradient(name, generator):
    A = random_hermitian(torch.tensor([1.0, 2.0, 2.5]), generator)
    by_name, by_rule = (
        one_by_one(lambda A, g=g: (eg.eigh(A, gradient=g).eigenvectors[0] ** 4).sum(), A[None])
        for g in (name, REGISTRY[name])
    )
    assert torch.equal(by_name, by_rule)


@pytest.mark.parametrize("gradient", ["tailor", "Taylor", ""])
def test_unknown_name_lists_the_choices(gradient):
    with pytest.raises(ValueError, match="taylor") as error:
        eg.eigh(torch.eye(2), gradient=gradient)
    assert repr(gradient) in str(error.value)
    assert all(name in str(error.value) for name in REGISTRY)


@pytest.mark.parametrize("gradient", [None, 9, eg.Taylor])
def test_what_is_no_rule_is_a_type_error(gradient):
    with pytest.raises(TypeError, match="gradient"):
        eg.eigh(torch.eye(2), gradient=gradient)


@pytest.mark.parametrize(
    ("rule", "arguments", "error"),
    [
        (eg.Saturate, {"rtol": 0.0}, ValueError),
        (eg.Saturate, {"rtol": "a"}, TypeError),
        (eg.Taylor, {"degree": -1}, ValueError),
        (eg.Taylor, {"degree": 2.5}, TypeError),
        (eg.Taylor, {"degree": True}, TypeError),
        (eg.Taylor, {"eps": 0.0}, ValueError),
        (eg.Taylor, {"eps": math.nan}, ValueError),
        (eg.Clip, {"threshold": 0}, ValueError),
        (eg.Clip, {"threshold": "a"}, TypeError),
        (eg.Lorentzian, {"broadening": -1e-3}, ValueError),
        (eg.Mask, {"rtol": -1.0}, ValueError),
        (eg.Truncate, {"rank": 0}, ValueError),
        (eg.Truncate, {"energy": 1.5}, ValueError),
        (eg.Truncate, {"energy": "a lot"}, TypeError),
        (eg.Truncate, {"rank": 2, "energy": 0.5}, ValueError),
        (eg.PowerIteration, {"steps": 0}, ValueError),
        (eg.PowerIteration, {"steps": 1.0}, TypeError),
        (eg.PowerIteration, {"eps": -1.0}, ValueError),
        (eg.PowerIteration, {"rayleigh_error": -0.1}, ValueError),
        (eg.PowerIteration, {"energy": 0.0}, ValueError),
    ],
    ids=str,
)
def test_bad_parameter_is_named_with_what_came(rule, arguments, error):
    with pytest.raises(error, match=rule.__name__) as raised:
        rule(**arguments)
    for name, value in arguments.items():
        assert name in str(raised.value)
        assert str(value) in str(raised.value)


def test_a_rule_of_ones_own_needs_one_method(generator):
    class Half(PairRule):
        def reciprocal(self, eigenvalues):
            gaps = pair_gaps(eigenvalues)
            return 0.5 / (gaps + torch.eye(gaps.shape[-1], dtype=gaps.dtype))

    A = random_hermitian(torch.tensor([1.0, 2.0, 4.0]), generator)[None]
    half, exact = (
        one_by_one(lambda A, g=g: (eg.eigh(A, gradient=g).eigenvectors[0] ** 4).sum(), A) for g in (Half(), eg.Exact())
    )
    torch.testing.assert_close(2 * half, exact)


def test_a_rule_with_another_default_keeps_the_kernel_and_one_with_another_method_does_not():
    @dataclass(frozen=True)
    class Coarse(eg.Taylor):
        degree: int = 3

    @dataclass(frozen=True)
    class Shifted(eg.Taylor):
        def positive(self, eigenvalues):
            p, floor = super().positive(eigenvalues)
            return p + 1.0, floor

    A = random_hermitian(torch.tensor([1.0, 2.0, 4.0]), torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    for rule in (Coarse(), Shifted()):
        assert adjoint_defect(lambda A, rule=rule: eg.eigh(A, gradient=rule), A, generator) < 1e-12
    assert Coarse._kernel_fits
    assert not Shifted._kernel_fits


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_taylor_is_differentiated_where_the_smaller_eigenvalue_is_all_but_zero(dtype):
    """R = (1 + q + …)/a with q = b/a: dR/db = 1/a² and dR/da = −1/a², to the first order in q."""
    L = torch.tensor([1e-3, 1e17], dtype=dtype, requires_grad=True)
    (g,) = torch.autograd.grad(eg.Taylor(eps=1e-4).reciprocal(L)[0, 1], L)
    torch.testing.assert_close(g * 1e34, torch.tensor([1.0, -1.0], dtype=dtype))


def test_a_rule_made_of_another_is_used_in_the_backward_pass_too():
    """The other has a kernel, which knows nothing of it."""

    @dataclass(frozen=True)
    class Halved(eg.Mask):
        def reciprocal(self, eigenvalues):
            return 0.5 * super().reciprocal(eigenvalues)

    A = random_hermitian(torch.tensor([1.0, 2.0, 4.0]), torch.Generator().manual_seed(0)).requires_grad_()
    G = torch.randn(3, 3, generator=torch.Generator().manual_seed(1), dtype=A.dtype)
    whole, half = (
        torch.autograd.grad(eg.eigh(A, gradient=rule).eigenvectors, A, G)[0] for rule in (eg.Mask(), Halved())
    )
    torch.testing.assert_close(half, 0.5 * whole)


@pytest.mark.parametrize(
    "rule", [eg.Lorentzian(1e-32), eg.Lorentzian(1e-100), eg.Clip(1e60), eg.Taylor(eps=1e-60)], ids=str
)
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1.0])
def test_parameters_that_a_type_cannot_hold_give_no_nan(rule, scale):
    for monitored in (False, True):  # by the kernel, and by torch operations
        A = (scale * torch.eye(3)).requires_grad_()
        with eg.GradientMonitor() if monitored else contextlib.nullcontext():
            eg.eigh(A, gradient=rule).eigenvectors.sum().backward()
        assert A.grad.isfinite().all()


@pytest.mark.parametrize("n", [0, 1])
def test_nothing_to_differentiate_can_be_differentiated_twice(n):
    for function in (lambda A: eg.eigh(A).eigenvectors, lambda A: eg.polar(A).U):
        A = torch.ones(n, n, requires_grad=True)
        (gradient,) = torch.autograd.grad(function(A).square().sum(), A, create_graph=True)
        gradient.sum().backward()
        assert torch.equal(A.grad, torch.zeros(n, n))


@pytest.mark.parametrize("gap", [1e-3, 1e-5, 1e-7, 1e-9, 1e-12])
def test_third_derivatives_with_taylor_are_right_near_a_tie(gap):
    """R″ of (1 + q + … + q⁹)/a with q = b/a, by b at a = 1: the sum of k (k − 1) q^(k−2)."""
    L = torch.tensor([1 - gap, 1.0], dtype=torch.float64, requires_grad=True)
    R = eg.Taylor().reciprocal(L)[0, 1]
    (first,) = torch.autograd.grad(R, L, create_graph=True)
    (second,) = torch.autograd.grad(first[0], L)
    q = 1 - gap
    assert first[0].item() == pytest.approx(sum(k * q ** (k - 1) for k in range(1, 10)), rel=1e-10)
    assert second[0].item() == pytest.approx(sum(k * (k - 1) * q ** (k - 2) for k in range(2, 10)), rel=1e-6)


@pytest.mark.parametrize("lower", [torch.complex64, torch.complex32])
def test_a_loss_in_lower_precision_does_not_depend_on_the_phase(lower):
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        A = torch.randn(5, 5, dtype=torch.complex128, generator=generator)
        A = (A + A.mH).requires_grad_()
        V = eg.eigh(A).eigenvectors.to(lower).to(torch.complex64)
        (torch.randn(5, 5, generator=generator) * V.abs() ** 2).sum().backward()
        assert A.grad.isfinite().all()
    with pytest.raises(eg.GaugeError):
        eg.eigh(A).eigenvectors.real.sum().backward()


@pytest.mark.parametrize("with_kernels", [True, False])
def test_nan_in_the_gradient_of_eigenvectors_is_not_taken_for_round_off(with_kernels):
    A = torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    gV = torch.zeros(4, 4, dtype=torch.float64)
    gV[0, 0] = torch.nan
    with nullcontext() if with_kernels else eg.kernels.disable():
        (gA,) = torch.autograd.grad(eg.eigh(A).eigenvectors, A, gV)
    assert gA.isnan().any()
