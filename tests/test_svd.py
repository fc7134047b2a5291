"""svd as a drop-in for torch.linalg.svd: values, the exact gradient, rank deficiency, and its relation to eigh."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import eigengrad as eg
from eigengrad.testing import (
    SPECTRA,
    adjoint_defect,
    random_cotangents,
    random_hermitian,
    random_matrix,
    random_unitary,
)
from rules_matrix import DTYPES, PAIR_RULES, Case

SHAPES = [(4, 4), (6, 3), (3, 6)]
DOUBLE = [torch.float64, torch.complex128]
REGULAR = [case for case in PAIR_RULES if case.regular]


def singular_values(name, k, generator):
    return SPECTRA[name]((k,), generator).abs().sort(descending=True).values


def matrix(m, n, generator, dtype=torch.float64, spectrum="separated"):
    return random_matrix(singular_values(spectrum, min(m, n), generator), m, n, generator, dtype)


def gradient(A, full_matrices=False, **arguments):
    """gA for incoming gradients that are random, but the same in every call."""
    A = A.detach().clone().requires_grad_()
    outputs = tuple(eg.svd(A, full_matrices, **arguments))
    scale = outputs[1].detach().amax(-1, keepdim=True)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    cotangents = random_cotangents([x.detach() for x in outputs], scale, torch.Generator().manual_seed(7))
    return torch.autograd.grad(outputs, A, cotangents)[0]


# Values -------------------------------------------------------------------------------------------------------------


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("full_matrices", [True, False], ids=["full", "thin"])
@pytest.mark.parametrize(
    "shape", [(4, 4), (6, 3), (3, 6), (1, 1), (1, 5), (0, 3), (3, 0), (2, 0, 3, 2), (2, 3, 5, 4)], ids=str
)
def test_values_are_those_of_torch_for_every_shape(shape, full_matrices, dtype, generator):
    A = torch.randn(shape, generator=generator, dtype=dtype)
    actual, expected = eg.svd(A, full_matrices), torch.linalg.svd(A, full_matrices)
    assert isinstance(actual, torch.return_types.linalg_svd)
    for x, y in zip(actual, expected, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
    tolerance = 100 * torch.finfo(dtype).eps
    torch.testing.assert_close(actual.S, expected.S, rtol=tolerance, atol=tolerance)
    k = min(shape[-2:])
    product = (actual.U[..., :k] * actual.S.unsqueeze(-2)) @ actual.Vh[..., :k, :]
    torch.testing.assert_close(product, A, rtol=tolerance, atol=tolerance)


@pytest.mark.sample(2)
@pytest.mark.parametrize("full_matrices", [True, False], ids=["full", "thin"])
@pytest.mark.parametrize("case", PAIR_RULES, ids=str)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (1, 1), (0, 3, 2), (2, 0, 4)], ids=str)
def test_degenerate_shapes_have_gradients_in_both_modes(shape, case, full_matrices):
    A = torch.ones(shape, dtype=torch.float64, requires_grad=True)
    sum(x.sum() for x in eg.svd(A, full_matrices, gradient=case.rule)).backward()
    torch.testing.assert_close(A.grad, torch.ones_like(A))  # where A has entries, it is 1×1 and its own singular value
    function = lambda A: tuple(eg.svd(A, full_matrices, gradient=case.rule))  # noqa: E731
    dU, dS, dVh = torch.func.jvp(function, (A.detach(),), (torch.ones_like(A),))[1]
    torch.testing.assert_close(dS, torch.ones_like(dS))
    assert dU.abs().sum() == dVh.abs().sum() == 0


# The exact gradient -------------------------------------------------------------------------------------------------


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", DOUBLE, ids=str)
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_exact_gradient_agrees_with_finite_differences_to_second_order(m, n, dtype, generator):
    A = matrix(m, n, generator, dtype).requires_grad_()

    def function(A):
        U, S, Vh = eg.svd(A, full_matrices=False, gradient="exact")
        return S, U.abs() ** 2, Vh.abs() ** 2, U[:, :2] @ Vh[:2]

    assert gradcheck(function, A, check_forward_ad=True)
    assert gradgradcheck(function, A, check_fwd_over_rev=True)


@pytest.mark.parametrize("dtype", DOUBLE, ids=str)
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_gradients_may_be_batched(m, n, dtype, generator):
    """torch.autograd.grad(is_grads_batched=True), as torch.autograd.functional.jacobian(vectorize=True) uses it."""
    A = matrix(m, n, generator, dtype).requires_grad_()
    U, _, Vh = eg.svd(A, full_matrices=False, gradient="exact")
    product = U[:, :2] @ Vh[:2]
    cotangents = torch.randn(3, m, n, generator=generator, dtype=dtype)
    expected = torch.stack([torch.autograd.grad(product, A, g, retain_graph=True)[0] for g in cotangents])
    (actual,) = torch.autograd.grad(product, A, cotangents, is_grads_batched=True)
    torch.testing.assert_close(actual, expected)


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", DOUBLE, ids=str)
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_exact_gradient_of_full_matrices_agrees_with_finite_differences(m, n, dtype, generator):
    """For losses of the projector on the additional columns: more the decomposition does not determine."""
    A = matrix(m, n, generator, dtype).requires_grad_()
    k = min(m, n)

    def function(A):
        U, S, Vh = eg.svd(A, full_matrices=True, gradient="exact")
        rest_u, rest_v = U[:, k:], Vh[k:].mH
        return S, U[:, :k].abs() ** 2, Vh[:k].abs() ** 2, rest_u @ rest_u.mH, rest_v @ rest_v.mH, U[:, :1] @ Vh[:1]

    assert gradcheck(function, A, check_forward_ad=True)
    assert gradgradcheck(function, A)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("m", "n"), SHAPES)
@pytest.mark.parametrize(
    "case",
    [case for case in PAIR_RULES if isinstance(case.rule, eg.Exact | eg.Mask) and case.rule != eg.Mask(1e-2)],
    ids=str,
)
def test_gradient_is_that_of_torch_for_separated_full_rank(case, m, n, dtype, generator):
    A = matrix(m, n, generator, dtype).requires_grad_()
    outputs = torch.linalg.svd(A, full_matrices=False)
    cotangents = random_cotangents([x.detach() for x in outputs], torch.ones(()), generator)
    (expected,) = torch.autograd.grad(outputs, A, cotangents)
    (actual,) = torch.autograd.grad(eg.svd(A, full_matrices=False, gradient=case.rule), A, cotangents)
    tolerance = 1e3 * torch.finfo(dtype).eps * float(expected.abs().max())
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", DOUBLE, ids=str)
def test_truncate_that_keeps_everything_of_a_square_matrix_is_exact(dtype, generator):
    A = matrix(4, 4, generator, dtype)
    torch.testing.assert_close(gradient(A, gradient=eg.Truncate(rank=4)), gradient(A, gradient="exact"))


@pytest.mark.parametrize("dtype", DOUBLE, ids=str)
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_taylor_tends_to_exact_with_its_degree(m, n, dtype, generator):
    """What is missing of the largest term is q^(K+1) for the two closest singular values, of ratio q."""
    A = matrix(m, n, generator, dtype)
    S = torch.linalg.svdvals(A)
    q = float((S[1:] / S[:-1]).max())
    exact = gradient(A, gradient="exact")
    for degree in (3, 9, 30):
        error = (gradient(A, gradient=eg.Taylor(degree)) - exact).norm() / exact.norm()
        assert error < 10 * q ** (degree + 1) + 1e-12


# Ties and rank deficiency -------------------------------------------------------------------------------------------


@pytest.mark.sample(2)
@pytest.mark.parametrize("full_matrices", [True, False], ids=["full", "thin"])
@pytest.mark.parametrize(("m", "n"), SHAPES)
@pytest.mark.parametrize("case", REGULAR, ids=str)
def test_gradient_is_finite_at_every_spectrum(case, m, n, full_matrices, generator):
    for name in SPECTRA:
        for dtype in DTYPES:
            A = matrix(m, n, generator, dtype, name)
            assert gradient(A, full_matrices, gradient=case.rule).isfinite().all(), (name, dtype)


@pytest.mark.parametrize(("m", "n"), SHAPES)
@pytest.mark.parametrize("case", REGULAR, ids=str)
def test_gradient_is_finite_at_exact_zeros_ones_and_a_single_row(case, m, n):
    for A in (
        torch.zeros(m, n),
        torch.ones(m, n),
        torch.eye(m, n),
        torch.zeros(m, n).index_fill(0, torch.tensor(0), 3.0),
    ):
        assert gradient(A, True, gradient=case.rule).isfinite().all()


@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_mask_is_exact_for_the_range_of_a_rank_deficient_matrix(m, n, generator):
    """Perturbed within its range and corange, such a matrix keeps its rank, and U S^2 Uᴴ is differentiable."""
    U, V = random_unitary((m,), generator, columns=2), random_unitary((n,), generator, columns=2)
    A = U @ torch.tensor([[2.0, 0.3], [0.1, 1.0]], dtype=torch.float64) @ V.mT
    E = U @ torch.randn(2, 2, generator=generator, dtype=torch.float64) @ V.mT
    W = torch.randn(m, n, generator=generator, dtype=torch.float64)

    def loss(A):
        U, S, Vh = eg.svd(A, full_matrices=False, gradient="mask")
        return ((U[:, :2] * S[:2].square()) @ Vh[:2] * W).sum()

    h = 1e-5
    difference = (loss(A + h * E) - loss(A - h * E)) / (2 * h)
    torch.testing.assert_close((torch.func.grad(loss)(A) * E).sum(), difference, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("case", REGULAR, ids=str)
def test_a_tall_matrix_has_the_exact_reciprocal_of_sigma_down_to_round_off(case):
    """u_σ turns out of the span by 1/σ, which is the truth for U Vᴴ too; at round-off it counts as zero."""
    for sigma in (1.0, 1e-3, 1e-6, 1e-9, 1e-12, 1e-20, 0.0):
        A = torch.zeros(3, 2, dtype=torch.float64)
        A[0, 0], A[1, 1] = 1.0, sigma
        A.requires_grad_()
        U = eg.svd(A, full_matrices=False, gradient=case.rule).U
        g = torch.autograd.grad(U[2, 1], A)[0].abs().max().item()
        assert g == pytest.approx(1 / sigma if sigma > 3 * torch.finfo(A.dtype).eps else 0.0)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", DOUBLE, ids=str)
@pytest.mark.parametrize(("m", "n"), SHAPES)
@pytest.mark.parametrize("case", REGULAR, ids=str)
def test_reverse_mode_is_the_adjoint_of_forward_mode_for_full_matrices(case, m, n, dtype, generator):
    for name in SPECTRA:
        A = matrix(m, n, generator, dtype, name)
        defect = adjoint_defect(lambda A: tuple(eg.svd(A, gradient=case.rule)), A, generator, hermitian=False)
        assert defect < 1e-10, name


# Gauge --------------------------------------------------------------------------------------------------------------


def test_loss_of_the_common_phase_is_refused(generator):
    A = matrix(4, 3, generator, torch.complex128).requires_grad_()
    U, _, Vh = eg.svd(A, full_matrices=False)
    with pytest.raises(eg.GaugeError, match=r"svd.*phase"):
        U[0].imag.sum().backward(retain_graph=True)
    with pytest.raises(eg.GaugeError, match=r"svd.*phase"):
        Vh[0].real.sum().backward(retain_graph=True)
    (U[0] @ Vh[:, 0]).imag.backward()  # a product of both has none


def test_loss_of_the_phase_is_refused_beside_a_neighbour_with_a_large_gradient(generator):
    A = torch.stack([matrix(4, 3, generator, torch.complex64) for _ in range(2)]).requires_grad_()
    U = eg.svd(A, full_matrices=False).U
    with pytest.raises(eg.GaugeError, match="phase"):
        (U[0, 0].imag.sum() + 1e6 * (U[1, 0].abs() ** 4).sum()).backward()


# Against eigh -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DOUBLE, ids=str)
@pytest.mark.parametrize("case", PAIR_RULES, ids=str)
def test_svd_and_eigh_agree_for_positive_matrices(case, dtype, generator):
    """Of a Hermitian dA only the term with the gap is left, so that both use the same R."""
    A = random_hermitian(SPECTRA["separated"]((5,), generator), generator, dtype)
    W = torch.rand(5, 5, generator=generator, dtype=torch.float64)

    def of(decompose):
        B = A.clone().requires_grad_()
        values, V = decompose((B + B.mH) / 2)
        ((V.abs() ** 2 * W).sum() + (values * W[0]).sum()).backward()
        return B.grad

    left = of(lambda A: (lambda U, S, Vh: (S, U))(*eg.svd(A, gradient=case.rule)))
    right = of(lambda A: (lambda U, S, Vh: (S, Vh.mH))(*eg.svd(A, gradient=case.rule)))
    eigen = of(lambda A: tuple(x.flip(-1) for x in eg.eigh(A, gradient=case.rule)))
    torch.testing.assert_close(left, eigen, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(right, eigen, rtol=1e-9, atol=1e-9)


@pytest.mark.sample(2)
@pytest.mark.parametrize("c", [2.0**-100, 2.0**100], ids=["1e-30", "1e30"])
@pytest.mark.parametrize("spectrum", ["separated", "ties", "half rank", "cluster 1e-06", "graded"])
@pytest.mark.parametrize("case", [case for case in REGULAR if case.scale_free], ids=str)
def test_gradient_of_a_scaled_matrix_is_scaled(case: Case, spectrum, c, generator):
    """In float32, on a diagonal matrix, so that rounding is the same at every scale."""
    A = torch.zeros(6, 4)
    A[:4] = torch.diag(singular_values(spectrum, 4, generator).float())
    expected, actual = (gradient(B, gradient=case.rule) for B in (A, A * c))
    torch.testing.assert_close(actual * c, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


# The ends of the range ----------------------------------------------------------------------------------------------


def vector_loss(U, S, Vh):
    """Of the vectors alone, so that it is the same for every multiple of the matrix; blind to their common signs."""
    W = torch.sin(torch.arange(1.0, 1 + U.shape[-2] * Vh.shape[-1], dtype=torch.float64))
    W = W.reshape(U.shape[-2], Vh.shape[-1]).to(U.dtype)
    return (W[:, : U.shape[-1]] * U**2).sum((-2, -1)) + (W * (U[..., :1] @ Vh[..., :1, :])).sum((-2, -1))


def vector_gradient(A, **arguments):
    A = A.detach().clone().requires_grad_()
    return torch.autograd.grad(vector_loss(*eg.svd(A, full_matrices=False, **arguments)).sum(), A)[0]


@pytest.mark.sample(2)
@pytest.mark.filterwarnings("ignore::eigengrad.GradientWarning")  # below 3e-39 the gradient overflows
@pytest.mark.parametrize("scale", [1e-42, 1e-39, 3e-39, 1e-38, 1e-37, 1e-36, 1e-33, 1e-30, 1e30, 1e37], ids=str)
@pytest.mark.parametrize("case", [case for case in PAIR_RULES if case.scale_free], ids=str)
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_gradient_is_that_of_float64_limited_to_the_range_of_float32(m, n, case, scale, generator):
    A = (matrix(m, n, generator) * scale).float()
    expected, actual = (vector_gradient(B, gradient=case.rule) for B in (A.double(), A))
    limits = torch.finfo(torch.float32)
    assert actual.isfinite().all()
    # Singular values are known to a few ulps, and to the last denormal bit; a gap is a quarter of σ_max / n or more.
    denormal = limits.smallest_normal * limits.eps
    error = 100 * limits.eps + 8 * min(m, n) * denormal / scale
    expected = expected.clamp(limits.min, limits.max)
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=error * float(expected.abs().max()))


@pytest.mark.sample(2)
@pytest.mark.filterwarnings("ignore::eigengrad.GradientWarning")
@pytest.mark.parametrize("scale", [1e-44, 1e-42, 1e-39, 1e-38, 1e-36], ids=str)
@pytest.mark.parametrize("spectrum", ["ties", "half rank", "rank one", "identity", "graded", "cluster 1e-06"])
@pytest.mark.parametrize("case", REGULAR, ids=str)
def test_gradient_of_denormal_matrices_is_finite(case, spectrum, scale, generator):
    for dtype, factor in ((torch.float32, 1.0), (torch.float64, 1e-270)):
        A = (matrix(6, 4, generator, spectrum=spectrum) * scale * factor).to(dtype)
        assert vector_gradient(A, gradient=case.rule).isfinite().all()
        dA = torch.randn(A.shape, generator=generator, dtype=dtype) * float(A.abs().max())
        tangents = torch.func.jvp(lambda A: tuple(eg.svd(A, False, gradient=case.rule)), (A,), (dA,))[1]
        assert all(x.isfinite().all() for x in tangents)


def test_gradient_that_does_not_fit_is_the_largest_number_with_a_warning(generator):
    A = matrix(5, 3, generator)
    true = vector_gradient(A)
    with pytest.warns(eg.GradientWarning, match=r"svd: a matrix is so small .* torch\.float32"):
        actual = vector_gradient((A * 1e-41).float())
    largest = torch.finfo(torch.float32).max
    too_large = true.abs() > 1e-2
    assert (actual.abs() == largest)[too_large].all()
    assert torch.equal(actual.sign()[too_large].double(), true.sign()[too_large])


def test_tiny_matrix_does_not_touch_its_neighbours_in_the_batch(generator):
    A = torch.stack([matrix(5, 3, generator, torch.float32) for _ in range(4)])
    A[1] *= 2.0**-124
    A[2] = 0
    together = vector_gradient(A)
    alone = torch.stack([vector_gradient(B) for B in A])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=0)
    torch.testing.assert_close(together[1] * 2.0**-124, vector_gradient(A[1] * 2.0**124), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("transform", ["vmap", "compile", "complex"])
def test_tiny_matrices_are_right_in_transforms(transform, generator, dynamo):
    kind = torch.complex64 if transform == "complex" else torch.float32
    A = torch.stack([matrix(5, 3, generator, kind) for _ in range(2)])
    W = torch.randn(5, 3, generator=generator)

    def loss(A):
        return (W * eg.svd(A, full_matrices=False).U.abs() ** 2).sum()

    def backward(A):
        A = A.detach().requires_grad_()
        return torch.autograd.grad(loss(A), A)[0]

    gradient = {
        "vmap": torch.func.vmap(torch.func.grad(loss)),
        "compile": torch.compile(backward, backend="aot_eager"),
        "complex": backward,
    }[transform]
    torch.testing.assert_close(gradient(A * 2.0**-124) * 2.0**-124, gradient(A), rtol=1e-3, atol=1e-3)


# Arguments ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_computed_in_float32_and_cast_back(dtype, generator):
    A = matrix(4, 3, generator, dtype).requires_grad_()
    outputs, wide = eg.svd(A), eg.svd(A.detach().float())
    assert all(torch.equal(x, y.to(dtype)) for x, y in zip(outputs, wide, strict=True))
    outputs.S.sum().backward()
    assert A.grad.dtype == dtype


def test_complex_half_has_real_singular_values(generator):
    U, S, Vh = eg.svd(matrix(4, 3, generator, torch.complex64).to(torch.complex32))
    assert (U.dtype, S.dtype, Vh.dtype) == (torch.complex32, torch.float16, torch.complex32)


@pytest.mark.parametrize("gradient", ["power_iteration", eg.PowerIteration(steps=3)], ids=str)
def test_power_iteration_is_refused_with_the_alternatives(gradient):
    with pytest.raises(ValueError, match=r"PowerIteration.*'taylor'"):
        eg.svd(torch.eye(2), gradient=gradient)
