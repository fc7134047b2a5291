"""eigh(A, B=…), the generalised problem A x = λ B x: values, derivatives by both matrices, transforms, and errors."""

from __future__ import annotations

import itertools

import mpmath
import pytest
import scipy.linalg
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, jacfwd, jacrev, jvp, vmap

import eigengrad as eg
from eigengrad.testing import random_hermitian, random_unitary

F32, F64, C64, C128 = torch.float32, torch.float64, torch.complex64, torch.complex128
EVERY = [F32, F64, C64, C128]
DOUBLE = [F64, C128]


def hermitian(X: Tensor) -> Tensor:
    return (X + X.mH) / 2


def definite(n: int, generator: torch.Generator, dtype: torch.dtype = F64, batch: tuple[int, ...] = ()) -> Tensor:
    """Positive definite, of condition 4."""
    return random_hermitian(torch.linspace(0.5, 2, n, dtype=F64).expand(*batch, n), generator, dtype)


def pencil(
    n: int,
    generator: torch.Generator,
    dtype: torch.dtype = F64,
    batch: tuple[int, ...] = (),
    values: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """A = F diag(λ) Fᴴ and B = F Fᴴ with eigenvalues that are apart, or as given."""
    L = torch.arange(n, dtype=F64) - 1 if values is None else values
    double = C128 if dtype.is_complex else F64
    F = random_unitary((*batch, n), generator, double) * torch.linspace(0.7, 1.4, n, dtype=F64)
    F = F @ random_unitary((*batch, n), generator, double)
    return hermitian((F * L.unsqueeze(-2)) @ F.mH).to(dtype), hermitian(F @ F.mH).to(dtype)


def invariant(L: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """What does not change with the phases of the eigenvectors."""
    return L, V.abs() ** 2


def weights(*shape: int, dtype: torch.dtype = F64) -> Tensor:
    return torch.sin(torch.arange(1, torch.Size(shape).numel() + 1, dtype=dtype)).reshape(shape)


def loss(A: Tensor, B: Tensor, **options) -> Tensor:
    L, S = invariant(*eg.eigh(A, B=B, **options))
    return (L * weights(*L.shape[-1:], dtype=L.dtype)).sum() + (S * weights(*S.shape[-2:], dtype=S.dtype)).sum()


# Values -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", EVERY, ids=str)
@pytest.mark.parametrize("n", [1, 2, 3, 5, 16, 40])
def test_values_are_those_of_scipy(n, dtype, generator):
    A, B = pencil(n, generator, dtype)
    L, V = eg.eigh(A, B=B)
    expected, W = scipy.linalg.eigh(A.numpy(), B.numpy())
    tolerance = 100 * n * torch.finfo(dtype).eps
    torch.testing.assert_close(L, torch.from_numpy(expected), rtol=tolerance, atol=tolerance)
    # Vᴴ B W is diagonal, of phases.
    overlap = (V.mH @ B @ torch.from_numpy(W)).abs()
    torch.testing.assert_close(overlap, torch.eye(n, dtype=L.dtype), rtol=0, atol=10 * tolerance)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", EVERY, ids=str)
@pytest.mark.parametrize("batch", [(), (1,), (4,), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize("n", [1, 2, 4, 17])
def test_the_definition_holds(n, batch, dtype, generator):
    A, B = (
        hermitian(torch.randn(*batch, n, n, generator=generator, dtype=dtype)),
        definite(n, generator, dtype, batch),
    )
    L, V = eg.eigh(A, B=B)
    assert L.shape == (*batch, n)
    assert V.shape == (*batch, n, n)
    assert L.dtype == A.real.dtype
    assert V.dtype == dtype
    assert isinstance(eg.eigh(A, B=B), torch.return_types.linalg_eigh)
    tolerance = 200 * n * torch.finfo(dtype).eps
    torch.testing.assert_close(A @ V, B @ V * L.unsqueeze(-2), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(V.mH @ B @ V, torch.eye(n, dtype=dtype).expand_as(B), rtol=tolerance, atol=tolerance)
    assert (L.diff(dim=-1) >= 0).all()


def test_no_rows_at_all():
    L, V = eg.eigh(torch.zeros(3, 0, 0), B=torch.zeros(3, 0, 0))
    assert L.shape == (3, 0)
    assert V.shape == (3, 0, 0)


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_with_the_identity_it_is_the_ordinary_problem(dtype, generator):
    A = hermitian(torch.randn(4, 4, generator=generator, dtype=dtype))
    L, V = eg.eigh(A, B=torch.eye(4, dtype=dtype))
    expected, W = eg.eigh(A)
    torch.testing.assert_close(L, expected)
    torch.testing.assert_close((V.mH @ W).abs(), torch.eye(4, dtype=L.dtype), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", DOUBLE, ids=str)
@pytest.mark.parametrize("UPLO", ["L", "U", "l", "u"])
@pytest.mark.parametrize("size", [1.0, 1e3, 1e20])
def test_only_the_named_triangle_of_both_is_read(size, UPLO, dtype, generator):
    A, B = pencil(4, generator, dtype)
    expected, W = eg.eigh(A, B=B)
    part = torch.tril if UPLO in "Ll" else torch.triu
    rubbish = torch.full_like(A, size)
    for spoiled_A, spoiled_B in ((True, False), (False, True), (True, True)):
        X = part(A) + (rubbish - part(rubbish)) if spoiled_A else A
        Y = part(B) + (rubbish - part(rubbish)) if spoiled_B else B
        L, V = eg.eigh(X, UPLO, B=Y)
        torch.testing.assert_close(L, expected)
        torch.testing.assert_close(V.abs(), W.abs())


@pytest.mark.parametrize("dtype", DOUBLE, ids=str)
@pytest.mark.parametrize("UPLO", ["L", "U"])
def test_the_gradient_does_not_depend_on_the_triangle_and_is_hermitian(UPLO, dtype, generator):
    A, B = pencil(4, generator, dtype)
    expected = torch.autograd.grad(loss(A.requires_grad_(), B.requires_grad_()), (A, B))
    part = torch.tril if UPLO == "L" else torch.triu
    X, Y = (part(M.detach()).requires_grad_() for M in (A, B))
    for found, right in zip(torch.autograd.grad(loss(X, Y, UPLO=UPLO), (X, Y)), expected, strict=True):
        torch.testing.assert_close(found, right)
        torch.testing.assert_close(found, found.mH)


def test_nan_in_the_other_triangle_is_not_seen(generator):
    A, B = pencil(3, generator)
    upper = torch.ones(3, 3).triu(1).bool()
    X, Y = (M.masked_fill(upper, torch.nan) for M in (A, B))
    torch.testing.assert_close(eg.eigh(X, B=Y).eigenvalues, eg.eigh(A, B=B).eigenvalues)


@pytest.mark.parametrize(
    ("first", "second"), [((2, 1), (3,)), ((), (4,)), ((4,), ()), ((1,), (4,)), ((2, 3), (3,)), ((0,), ())], ids=str
)
def test_batches_broadcast(first, second, generator):
    A = hermitian(torch.randn(*first, 3, 3, generator=generator, dtype=F64)).requires_grad_()
    B = definite(3, generator, F64, second).requires_grad_()
    batch = torch.broadcast_shapes(first, second)
    L, V = eg.eigh(A, B=B)
    assert L.shape == (*batch, 3)
    assert V.shape == (*batch, 3, 3)
    X, Y = (M.detach().expand(*batch, 3, 3).contiguous().requires_grad_() for M in (A, B))
    torch.testing.assert_close(L, eg.eigh(X, B=Y).eigenvalues)
    gA, gB = torch.autograd.grad(loss(A, B), (A, B))
    gX, gY = torch.autograd.grad(loss(X, Y), (X, Y))
    torch.testing.assert_close(gA, gX.sum_to_size(A.shape))
    torch.testing.assert_close(gB, gY.sum_to_size(B.shape))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_computed_in_single(dtype, generator):
    A, B = (M.to(dtype) for M in pencil(4, generator, F32))
    A, B = A.requires_grad_(), B.requires_grad_()
    L, V = eg.eigh(A, B=B)
    assert L.dtype == V.dtype == dtype
    expected = eg.eigh(A.detach().float(), B=B.detach().float())
    torch.testing.assert_close(L, expected.eigenvalues.to(dtype))
    torch.testing.assert_close(V.abs(), expected.eigenvectors.to(dtype).abs())
    gA, gB = torch.autograd.grad((V**2 * weights(4, 4, dtype=dtype)).sum(), (A, B))
    assert gA.dtype == gB.dtype == dtype
    X, Y = A.detach().float().requires_grad_(), B.detach().float().requires_grad_()
    W = eg.eigh(X, B=Y).eigenvectors
    gX, gY = torch.autograd.grad((W**2 * weights(4, 4, dtype=F32)).sum(), (X, Y))
    for found, right in ((gA, gX), (gB, gY)):
        assert (found.float() - right).norm() < 10 * torch.finfo(dtype).eps * right.norm()


def test_autocast_is_disabled_inside(generator):
    """The backward pass is outside, as torch recommends: inside, torch's derivative of Cholesky would be in half."""
    A, B = (M.requires_grad_() for M in pencil(4, generator, F32))
    expected = torch.autograd.grad(loss(A, B), (A, B))
    with torch.autocast("cpu", torch.bfloat16):
        L, V = eg.eigh(A, B=B)
        assert L.dtype == V.dtype == F32
        value = loss(A, B)
    found = torch.autograd.grad(value, (A, B))
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1e10, 1e30])
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_the_scales_of_both_go_through(scale, dtype, generator):
    """c A has the eigenvalues c λ, c B the eigenvalues λ/c and the vectors V/√c."""
    A, B = pencil(4, generator, dtype)
    L, V = eg.eigh(A, B=B)
    M, W = eg.eigh(scale * A, B=B)
    torch.testing.assert_close(M / scale, L, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(W.abs(), V.abs(), rtol=1e-4, atol=1e-4)
    M, W = eg.eigh(A, B=scale * B)
    torch.testing.assert_close(M * scale, L, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(W.abs() * scale**0.5, V.abs(), rtol=1e-4, atol=1e-4)


# Derivatives --------------------------------------------------------------------------------------------------------


@pytest.mark.sample(1)
@pytest.mark.parametrize("gradient", ["exact", "saturate"])
@pytest.mark.parametrize("dtype", DOUBLE, ids=str)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_derivatives_by_both_are_those_of_finite_differences(n, dtype, gradient, generator):
    A, B = (M.requires_grad_() for M in pencil(n, generator, dtype))

    def function(A, B):
        return invariant(*eg.eigh(hermitian(A), B=hermitian(B), gradient=gradient))

    assert gradcheck(function, (A, B), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(function, (A, B), check_fwd_over_rev=True)


@pytest.mark.parametrize("dtype", DOUBLE, ids=str)
@pytest.mark.parametrize("of", ["A", "B"])
def test_derivatives_by_one_of_them_are_those_of_finite_differences(of, dtype, generator):
    A, B = pencil(3, generator, dtype)
    if of == "A":
        assert gradcheck(lambda A: invariant(*eg.eigh(hermitian(A), B=B)), A.requires_grad_(), check_forward_ad=True)
    else:
        assert gradcheck(lambda B: invariant(*eg.eigh(A, B=hermitian(B))), B.requires_grad_(), check_forward_ad=True)


@pytest.mark.parametrize("batch", [(3,), (2, 2)], ids=str)
def test_derivatives_of_batches_are_those_of_finite_differences(batch, generator):
    A, B = (M.requires_grad_() for M in pencil(3, generator, F64, batch))
    assert gradcheck(lambda A, B: invariant(*eg.eigh(hermitian(A), B=hermitian(B))), (A, B), check_forward_ad=True)


@pytest.mark.parametrize("k", [1, 2, -1, -2, 4])
def test_k_takes_the_ends_of_the_generalised_spectrum(k, generator):
    A, B = (M.requires_grad_() for M in pencil(4, generator))
    L, V = eg.eigh(A, B=B, k=k)
    whole, W = eg.eigh(A, B=B)
    part = slice(4 - k, 4) if k > 0 else slice(0, -k)
    torch.testing.assert_close(L, whole[part])
    torch.testing.assert_close(V.abs(), W[:, part].abs())

    def function(A, B):
        L, V = eg.eigh(hermitian(A), B=hermitian(B), k=k)
        return L, V @ V.mH

    assert gradcheck(function, (A, B), check_forward_ad=True)
    assert gradgradcheck(function, (A, B))


@pytest.mark.parametrize("gap", [0.0, 1e-13, 1e-9, 1e-5])
@pytest.mark.parametrize("k", [2, None])
def test_the_gradient_of_a_b_projector_is_exact_at_ties_inside_the_kept_and_dropped(k, gap, generator):
    """V_k V_kᴴ in 50 digits by central differences: the two leading ones are tied, and so are the others."""
    A, B = pencil(4, generator, values=torch.tensor([1.0, 1.0 + gap, 3.0, 3.0 + gap], dtype=F64))
    G = hermitian(torch.randn(4, 4, generator=generator, dtype=F64))
    A, B = A.requires_grad_(), B.requires_grad_()
    V = eg.eigh(A, B=B, k=k).eigenvectors[:, -2:]
    found = torch.autograd.grad((V @ V.mT * G).sum(), (A, B))
    for actual, expected in zip(found, projector_gradients(A, B, G), strict=True):
        assert torch.linalg.norm(actual - expected) < 1e-10 * torch.linalg.norm(expected)


def projector_gradients(A: Tensor, B: Tensor, G: Tensor) -> list[Tensor]:
    """The gradients of ⟨G, V_2 V_2ᵀ⟩ by symmetric A and B, V_2 the two leading generalised eigenvectors."""
    with mpmath.workdps(60):
        matrices = [mpmath.matrix(M.detach().tolist()) for M in (A, B)]
        W, h = mpmath.matrix(G.tolist()), mpmath.mpf(10) ** -18

        def value(A, B):
            F = mpmath.inverse(mpmath.cholesky(B))
            C = F * A * F.T
            _, Q = mpmath.eigsy((C + C.T) / 2)
            V = F.T * Q[:, 2:4]
            P = V * V.T
            return sum(w * p for w, p in zip(W, P, strict=True))

        results = []
        for which in (0, 1):
            result = torch.zeros(4, 4, dtype=F64)
            for i, j in itertools.combinations_with_replacement(range(4), 2):
                E = mpmath.zeros(4)
                E[i, j] += h / 2
                E[j, i] += h / 2
                ends = []
                for sign in (1, -1):
                    moved = list(matrices)
                    moved[which] = matrices[which] + sign * E
                    ends.append(value(*moved))
                result[i, j] = result[j, i] = float((ends[0] - ends[1]) / (2 * h))
            results.append(result)
        return results


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_everything_is_finite_where_every_eigenvalue_is_tied(dtype, generator):
    B = definite(4, generator, dtype)
    A, B = (2 * B).requires_grad_(), B.clone().requires_grad_()
    found = torch.autograd.grad(loss(A, B), (A, B), create_graph=True)
    assert all(torch.isfinite(g).all() for g in found)
    second = torch.autograd.grad(sum(g.abs().square().sum() for g in found), (A, B))
    assert all(torch.isfinite(g).all() for g in second)


@pytest.mark.parametrize(
    "rule", ["saturate", "taylor", "clip", "lorentzian", "mask", "truncate", "power_iteration", eg.Saturate(rtol=1e-3)]
)
def test_every_rule_is_accepted_and_finite_at_ties(rule, generator):
    A, B = pencil(3, generator, values=torch.tensor([1.0, 1.0, 2.0], dtype=F64))
    A, B = A.requires_grad_(), B.requires_grad_()
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(loss(A, B, gradient=rule), (A, B)))


# Transforms ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DOUBLE, ids=str)
def test_vmap_and_grad_agree_with_a_loop(dtype, generator):
    A, B = pencil(3, generator, dtype, (4,))
    expected = [grad(loss, (0, 1))(a, b) for a, b in zip(A, B, strict=True)]
    plain = [
        torch.autograd.grad(loss(a, b), (a, b))
        for a, b in zip(A.clone().requires_grad_(), B.clone().requires_grad_(), strict=True)
    ]
    gA, gB = vmap(grad(loss, (0, 1)))(A, B)
    for i in range(4):
        for found, right, other in zip((gA[i], gB[i]), expected[i], plain[i], strict=True):
            torch.testing.assert_close(found, right)
            torch.testing.assert_close(found, other)
    by_vmap, by_batch = vmap(lambda A, B: eg.eigh(A, B=B)[0])(A, B), eg.eigh(A, B=B)[0]
    torch.testing.assert_close(by_vmap, by_batch)
    torch.testing.assert_close(vmap(lambda A: eg.eigh(A, B=B[0])[0])(A), eg.eigh(A, B=B[0])[0])
    torch.testing.assert_close(vmap(lambda B: eg.eigh(A[0], B=B)[0])(B), eg.eigh(A[0], B=B)[0])


@pytest.mark.parametrize("dtype", DOUBLE, ids=str)
def test_forward_mode_is_the_adjoint_of_backward(dtype, generator):
    A, B = pencil(4, generator, dtype)
    dA, dB = (hermitian(torch.randn(4, 4, generator=generator, dtype=dtype)) for _ in range(2))
    _, slope = jvp(loss, (A, B), (dA, dB))
    gA, gB = grad(loss, (0, 1))(A, B)
    inner = (gA.conj() * dA).real.sum() + (gB.conj() * dB).real.sum()
    torch.testing.assert_close(slope, inner)


def test_jacobians_agree_in_both_modes(generator):
    A, B = pencil(3, generator)

    def function(A, B):
        return eg.eigh(A, B=B).eigenvectors ** 2

    for x, y in zip(jacrev(function, (0, 1))(A, B), jacfwd(function, (0, 1))(A, B), strict=True):
        torch.testing.assert_close((x + x.mT) / 2, (y + y.mT) / 2)


@pytest.mark.parametrize("options", [{}, {"k": 2}, {"UPLO": "U"}, {"k": -1}], ids=str)
def test_it_compiles_without_a_break(options, generator, dynamo):
    A, B = (M.requires_grad_() for M in pencil(4, generator))

    def function(A, B):
        return loss(A, B, **options)

    expected = torch.autograd.grad(function(A, B), (A, B))
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for found, right in zip(torch.autograd.grad(compiled(A, B), (A, B)), expected, strict=True):
        torch.testing.assert_close(found, right)


def test_compiled_code_has_nan_where_nobody_can_raise_or_says_what_is_wrong(generator, dynamo):
    A = torch.eye(2, dtype=F64)
    compiled = torch.compile(lambda A, B: eg.eigh(A, B=B), fullgraph=True, backend="aot_eager")
    try:
        L, V = compiled(A, -torch.eye(2, dtype=F64))
    except RuntimeError as error:
        assert "eigh" in str(error)  # noqa: PT017
    else:
        assert torch.isnan(L).all()
        assert torch.isnan(V).all()


# Errors -------------------------------------------------------------------------------------------------------------


def test_a_b_that_is_not_positive_definite_is_named():
    A, B = torch.eye(3, dtype=F64), torch.diag(torch.tensor([1.0, -1.0, 2.0], dtype=F64))
    with pytest.raises(torch.linalg.LinAlgError, match=r"eigh: the matrix of B is not positive definite.*order 2"):
        eg.eigh(A, B=B)
    with pytest.raises(torch.linalg.LinAlgError, match="not positive definite"):
        eg.eigh(A, B=torch.zeros(3, 3, dtype=F64))


@pytest.mark.parametrize(
    ("batch", "bad", "text"), [((4,), (2,), "batch element 2"), ((2, 3), (1, 0), r"batch element \(1, 0\)")]
)
def test_a_b_that_is_not_positive_definite_is_named_with_its_place(batch, bad, text, generator):
    B = definite(3, generator, F64, batch).clone()
    B[bad] = -torch.eye(3, dtype=F64)
    for A in (torch.eye(3, dtype=F64), torch.eye(3, dtype=F64).expand(*batch, 3, 3)):
        for requires in (False, True):
            with pytest.raises(torch.linalg.LinAlgError, match=f"eigh: {text} of B is not positive definite"):
                eg.eigh(A, B=B.clone().requires_grad_(requires))


def test_a_b_that_is_not_positive_definite_is_named_inside_transforms(generator):
    A, B = pencil(3, generator, F64, (3,))
    B = B.clone()
    B[1] = -B[1]
    with pytest.raises(torch.linalg.LinAlgError, match="of B is not positive definite"):
        vmap(lambda A, B: eg.eigh(A, B=B)[0])(A, B)
    with pytest.raises(torch.linalg.LinAlgError, match="of B is not positive definite"):
        grad(loss)(A[1], B[1])


@pytest.mark.parametrize("argument", ["A", "B"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_is_named_with_its_argument(argument, value, generator):
    matrices = dict(zip("AB", (M.clone() for M in pencil(3, generator, F64, (2,))), strict=True))
    matrices[argument][1, 2, 0] = value
    with pytest.raises(eg.NonFiniteError, match=f"eigh: batch element 1 of {argument} has 1 non-finite"):
        eg.eigh(matrices["A"], B=matrices["B"])


@pytest.mark.parametrize(
    ("A", "B", "kind", "text"),
    [
        (torch.eye(3), torch.eye(2), ValueError, r"B must be of the size of A.*\(3, 3\).*\(2, 2\)"),
        (torch.eye(1), torch.eye(3), ValueError, "B must be of the size of A"),
        (torch.eye(3), torch.eye(1), ValueError, "B must be of the size of A"),
        (torch.eye(3).expand(2, 3, 3), torch.eye(3).expand(4, 3, 3), ValueError, "batches must broadcast"),
        (torch.eye(3), torch.ones(3, 2), ValueError, "B"),
        (torch.eye(3), torch.ones(3), ValueError, "B"),
        (torch.eye(3), torch.eye(3, dtype=F64), TypeError, "same type; got torch.float32 and torch.float64"),
        (torch.eye(3, dtype=C64), torch.eye(3), TypeError, "same type"),
        (torch.eye(3), torch.eye(3, dtype=torch.int64), TypeError, "B"),
        (torch.eye(3), [[1.0]], TypeError, "B"),
    ],
)
def test_a_b_that_does_not_go_with_a_is_refused_by_name(A, B, kind, text):
    with pytest.raises(kind, match=text):
        eg.eigh(A, B=B)
