"""The rule PowerIteration (the paper's SVD-PI) and the baseline power_iteration (its PI)."""

import pytest
import torch

import eigengrad as eg
from eigengrad.testing import SPECTRA, random_hermitian, random_unitary
from rules_matrix import DTYPES

ALL = {"energy": 1.0, "rayleigh_error": 0.1}  # an energy that only the whole spectrum holds


def algorithm_1(A, starts, steps):
    """The paper's Algorithm 1 as it is printed, for automatic differentiation to run over: descending eigenvectors."""
    M, vectors = A, []
    for v in starts:
        for _ in range(steps):
            v = M @ v
            v = v / torch.linalg.vector_norm(v)
        M = M - torch.outer(M @ v, v)
        vectors.append(v)
    return torch.stack(vectors, -1)


@pytest.fixture
def spectrum():
    return torch.tensor([0.2, 0.35, 0.5, 0.9, 1.3], dtype=torch.float64)


@pytest.fixture
def A(spectrum, generator):
    return random_hermitian(spectrum, generator)


# The gradient -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", range(5))
@pytest.mark.parametrize("steps", [1, 2, 3, 10, 19])
def test_gradient_is_that_of_autograd_over_algorithm_1(A, vector, steps, generator):
    """Through the deflation as well, for every eigenvector."""
    weights = torch.randn(5, generator=generator, dtype=torch.float64)
    V = torch.linalg.eigh(A).eigenvectors.flip(-1)
    B = A.clone().requires_grad_()
    (expected,) = torch.autograd.grad(algorithm_1(B, V.mT, steps)[:, vector] @ weights, B)
    expected = (expected + expected.mT) / 2
    C = A.clone().requires_grad_()
    actual = eg.eigh(C, gradient=eg.PowerIteration(steps=steps, **ALL)).eigenvectors.flip(-1)[:, vector]
    sign = torch.sign(actual.detach() @ V[:, vector])
    (actual,) = torch.autograd.grad(sign * (actual @ weights), C)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("degree", [0, 1, 4, 9, 18])
def test_proposition_power_iterations_are_a_taylor_expansion(spectrum, degree, generator):
    """K + 1 power iterations: the expansion of degree K in later eigenvectors, of degree K − 1 in earlier ones."""
    V = random_unitary((5,), generator)
    dA = random_hermitian(torch.randn(5, generator=generator, dtype=torch.float64), generator)
    _, dV = eg.PowerIteration(steps=degree + 1, **ALL).pushforward(spectrum, V, dA)
    actual = (V.mT @ dV) / (V.mT @ dA @ V)  # R
    # Ascending: the eigenvectors after v_j in the order of deflation have indices i < j.
    later = eg.Taylor(degree).reciprocal(spectrum).triu(1)
    earlier = torch.zeros_like(later)
    if degree > 0:
        earlier = -eg.Taylor(degree - 1).reciprocal(spectrum).tril(-1)
    torch.testing.assert_close(actual, later + earlier, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("degree", [1, 9])
def test_leading_eigenvector_has_the_gradient_of_taylor_of_degree_steps_minus_one(A, degree):
    def gradient(rule):
        return torch.func.grad(lambda A: (eg.eigh(A, gradient=rule).eigenvectors[:, -1] ** 4).sum())(A)

    torch.testing.assert_close(
        gradient(eg.PowerIteration(steps=degree + 1)), gradient(eg.Taylor(degree)), rtol=1e-10, atol=1e-10
    )


def test_many_steps_tend_to_the_exact_gradient(A):
    def gradient(rule):
        return torch.func.grad(lambda A: (eg.eigh(A, gradient=rule).eigenvectors[:2] ** 4).sum())(A)

    exact = gradient("exact")
    errors = [(gradient(eg.PowerIteration(steps=s, **ALL)) - exact).norm() / exact.norm() for s in (5, 20, 80)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-10


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_matrices_agree_with_taylor_for_the_leading_eigenvector(spectrum, dtype, generator):
    A = random_hermitian(spectrum, generator, dtype)

    def gradient(rule):
        B = A.clone().requires_grad_()
        (eg.eigh(B, gradient=rule).eigenvectors[:, -1].abs() ** 4).sum().backward()
        return B.grad

    tolerance = 1e3 * torch.finfo(dtype).eps
    torch.testing.assert_close(gradient(eg.PowerIteration(10)), gradient(eg.Taylor(9)), rtol=tolerance, atol=tolerance)


# The three stopping conditions --------------------------------------------------------------------------------------

NEVER = {"rayleigh_error": 1e30, "energy": 2.0, "eps": 1e-30}


def kept(rule, L, V):
    return rule.kept(L, V).tolist()


def test_eigenvalues_up_to_eps_are_dropped(spectrum, generator):
    V = random_unitary((5,), generator)
    assert kept(eg.PowerIteration(**NEVER), spectrum, V) == [True] * 5
    assert kept(eg.PowerIteration(**{**NEVER, "eps": 0.4}), spectrum, V) == [False, False, True, True, True]
    assert kept(eg.PowerIteration(**{**NEVER, "eps": 0.5}), spectrum, V) == [False, False, False, True, True]


def test_rayleigh_quotient_that_is_off_stops_the_loop(generator):
    """An eigenvector that is none, as deflation leaves them: the eigenvalue is not its quotient."""
    L = torch.tensor([1e-4, 0.5, 1.0], dtype=torch.float64)
    V = random_unitary((3,), generator)
    V[:, 0] = V[:, 1]
    assert kept(eg.PowerIteration(**NEVER), L, V) == [True, True, True]
    assert kept(eg.PowerIteration(**{**NEVER, "rayleigh_error": 0.1}), L, V) == [False, True, True]


def test_energy_may_count_the_eigenvalue_itself_as_it_is_printed(generator):
    """Then the last eigenvector of every matrix is dropped, unless it is the first."""
    V = random_unitary((4,), generator)
    for L in (torch.tensor([0.5, 0.5, 1.0, 8.0]), torch.ones(4)):
        rule = eg.PowerIteration(**{**NEVER, "energy": 0.9999, "inclusive": True})
        assert kept(rule, L.double(), V) == [False, True, True, True]
        assert kept(rule, L.double()[:1], V[:1, :1]) == [True]
    rule = eg.PowerIteration(**{**NEVER, "energy": 0.5, "inclusive": True})
    assert kept(rule, torch.tensor([0.5, 0.5, 1.0, 8.0], dtype=torch.float64), V) == [False, False, False, True]


def test_without_stopping_conditions_all_but_round_off_is_kept(generator):
    L = torch.tensor([0.0, 1e-9, 0.5, 1.0], dtype=torch.float64)
    rule = eg.PowerIteration(eps=0.7, energy=0.1, stop=False)
    assert kept(rule, L, random_unitary((4,), generator)) == [False, True, True, True]


def test_energy_that_is_reached_stops_the_loop(generator):
    L = torch.tensor([0.5, 0.5, 1.0, 8.0], dtype=torch.float64)
    V = random_unitary((4,), generator)
    for energy, count in ((0.8, 1), (0.85, 2), (0.9, 2), (0.95, 3), (0.96, 4), (1.0, 4)):
        assert kept(eg.PowerIteration(**{**NEVER, "energy": energy}), L, V) == [False] * (4 - count) + [True] * count


@pytest.mark.parametrize("eigenvalues", [[1.0, 1.0, 1.0], [0.1, 0.5, 1.0], [1e-3, 1.0, 1.0], [1.0]], ids=str)
def test_last_eigenvector_of_a_full_rank_matrix_is_kept(eigenvalues, generator):
    """Taken literally, the paper's condition on the energy drops it always."""
    A = random_hermitian(torch.tensor(eigenvalues, dtype=torch.float64), generator).requires_grad_()
    L, V = eg.eigh(A, gradient="power_iteration")
    assert all(kept(eg.PowerIteration(), L, V))
    (gA,) = torch.autograd.grad(L[0], A)
    torch.testing.assert_close(gA, torch.outer(V[:, 0], V[:, 0]))


def test_lowest_eigenvector_of_an_indefinite_matrix_does_not_depend_on_luck(generator):
    """The shift λ − λ_min + ε puts it at ε exactly, up to round-off: kept always, or dropped always."""
    L, V = torch.linalg.eigh(random_hermitian(SPECTRA["indefinite"]((200, 5), generator), generator))
    lowest = eg.PowerIteration(energy=1.0).kept(L, V)[:, 0]
    assert lowest.all() or not lowest.any()


def test_dropped_eigenvectors_get_no_gradient_and_give_none(generator):
    A = random_hermitian(torch.tensor([1e-7, 2e-7, 0.3, 1.0], dtype=torch.float64), generator).requires_grad_()
    L, V = eg.eigh(A, gradient="power_iteration")
    (gA,) = torch.autograd.grad((V[:, :2] ** 4).sum() + (L[:2] ** 2).sum(), A, retain_graph=True)
    assert (gA == 0).all()
    (gA,) = torch.autograd.grad((V[:, 2:] ** 4).sum(), A)
    assert gA.norm() > 0.1


def test_conditions_are_met_per_matrix_of_a_batch(generator):
    spectra = torch.tensor([[0.0, 0.0, 1.0], [1.0, 1.0, 1.0], [0.0, 0.4, 1.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    L, V = torch.linalg.eigh(random_hermitian(spectra, generator))
    assert kept(eg.PowerIteration(), L, V) == [
        [False, False, True],
        [True, True, True],
        [False, True, True],
        [False, False, False],
    ]


def test_matrix_does_not_feel_its_neighbours(generator):
    A = torch.cat([random_hermitian(s((2, 4), generator), generator) for s in SPECTRA.values()])
    gV = torch.randn(A.shape, generator=generator, dtype=A.dtype)
    rule = eg.PowerIteration()
    L, V = torch.linalg.eigh(A)
    together = rule.pullback(L, V, None, gV)
    alone = torch.stack([rule.pullback(*x, None, g) for *x, g in zip(L, V, gV, strict=True)])
    scale = alone.abs().amax((-2, -1), keepdim=True).clamp(min=1e-300)
    torch.testing.assert_close(together / scale, alone / scale, rtol=0, atol=1e-9)


# The baseline -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("k", [1, 3, 5])
def test_baseline_converges_to_eigh_for_separated_spectra(k, dtype, generator):
    spectrum = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0], dtype=torch.float64)
    A = random_hermitian(spectrum.expand(2, 3, 5), generator, dtype)
    L, V = eg.power_iteration(A, k, steps=80, generator=generator)
    assert isinstance(eg.power_iteration(A, k), torch.return_types.linalg_eigh)
    assert (L.shape, V.shape) == ((2, 3, k), (2, 3, 5, k))
    expected, vectors = (x.flip(-1)[..., :k] for x in torch.linalg.eigh(A))
    assert (L.dtype, V.dtype) == (expected.dtype, vectors.dtype)
    tolerance = 1e3 * torch.finfo(dtype).eps
    torch.testing.assert_close(L, expected, rtol=tolerance, atol=tolerance)
    overlap = (V.conj() * vectors).sum(-2).abs()
    torch.testing.assert_close(overlap, torch.ones_like(overlap), rtol=tolerance, atol=tolerance)


def test_baseline_with_few_steps_has_not_converged_where_eigenvalues_are_close(generator):
    A = random_hermitian(torch.tensor([1.0, 1.99, 2.0], dtype=torch.float64), generator)
    exact = torch.linalg.eigvalsh(A)[-1]
    few, many = (
        exact - eg.power_iteration(A, 1, s, generator=torch.Generator().manual_seed(3)).eigenvalues[0]
        for s in (2, 2000)
    )
    assert few > 1e-4
    assert abs(many) < 1e-10


def test_baseline_is_reproducible_with_a_generator(A):
    first, again, other = (eg.power_iteration(A, 2, 3, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
    assert not torch.equal(first.eigenvectors, other.eigenvectors)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("steps", [1, 3, 40])
def test_baseline_gradient_is_that_of_its_iterations(spectrum, steps, dtype, generator):
    A = random_hermitian(spectrum[:3], generator, dtype).requires_grad_()

    def function(A):
        L, V = eg.power_iteration(A, 2, steps, generator=torch.Generator().manual_seed(5))
        return L, V

    # Without the symmetry of A the iterations are differentiable as well.
    assert torch.autograd.gradcheck(function, A, check_forward_ad=True)


def test_baseline_is_scale_free(A):
    expected = eg.power_iteration(A.float(), 2, 5, generator=torch.Generator().manual_seed(1))
    for c in (1e-30, 1e30):
        L, V = eg.power_iteration(A.float() * c, 2, 5, generator=torch.Generator().manual_seed(1))
        torch.testing.assert_close(L / c, expected.eigenvalues, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(V, expected.eigenvectors, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("A", [torch.zeros(3, 3), torch.diag(torch.tensor([1.0, 0.0, 0.0]))], ids=["zeros", "rank one"])
def test_baseline_beyond_the_rank_gives_zero_eigenvalues_and_unit_vectors(A, generator):
    A.requires_grad_()
    L, V = eg.power_iteration(A, 2, generator=generator)
    assert abs(L[-1]) < 1e-6
    torch.testing.assert_close(torch.linalg.vector_norm(V, dim=0), torch.ones(2))
    (L.sum() + V.sum()).backward()
    assert A.grad.isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"k": 0}, ValueError, "k must be at least 1; got 0"),
        ({"k": 4}, ValueError, "k must be at most n = 3; got 4"),
        ({"k": 1.0}, TypeError, "k must be an integer; got 1.0"),
        ({"k": 1, "steps": 0}, ValueError, "steps must be at least 1; got 0"),
    ],
)
def test_baseline_names_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=f"power_iteration: {message}"):
        eg.power_iteration(torch.eye(3), **arguments)


def test_baseline_names_what_is_not_finite():
    A = torch.eye(3).repeat(2, 1, 1)
    A[1, 2, 2] = torch.nan
    with pytest.raises(eg.NonFiniteError, match="power_iteration: batch element 1 "):
        eg.power_iteration(A, 1)
