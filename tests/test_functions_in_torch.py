"""Every function that is no scalar function of a matrix, in every transform, type, shape and scale of torch."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import eigengrad as eg
from functions_matrix import SUBJECTS, Subject, gradient, hermitian, matrix, randn, relative_error, rotation

F32, F64, C128 = torch.float32, torch.float64, torch.complex128
every_subject = pytest.mark.parametrize("subject", SUBJECTS, ids=lambda s: s.name)
SMOOTH = [s for s in SUBJECTS if s.smooth]

#: With ties, but none at the cut of the first one.
SPECTRA = {"generic": (0.6, 1.3, 2.1), "tied": (1.0, 1.0, 2.0), "gap 1e-9": (1.0, 1.0 + 1e-9, 2.0)}


def argument(subject: Subject, name: str, dtype: torch.dtype = F64, shape=(4, 3), seed: int = 0) -> torch.Tensor:
    """A matrix that the subject takes, with these eigenvalues or singular values."""
    values = SPECTRA[name]
    if subject.square:
        return matrix(values, dtype, seed=seed)
    wide = C128 if dtype.is_complex else F64
    A = torch.zeros(shape, dtype=wide)
    A[:3, :3] = torch.diag(torch.tensor(values, dtype=F64)).to(wide)
    return (rotation(shape[0], wide, seed + 1) @ A @ rotation(shape[1], wide, seed + 2)).to(dtype)


def free(subject: Subject):
    """The function of what gradcheck may perturb entry by entry."""
    return (lambda X: subject.call(hermitian(X))) if subject.square else subject.call


def batch(subject: Subject, dtype: torch.dtype = F64) -> torch.Tensor:
    return torch.stack([argument(subject, name, dtype, seed=7 * i) for i, name in enumerate(SPECTRA)])


def incoming(subject: Subject, A: torch.Tensor, seed: int = 0) -> torch.Tensor:
    S = subject.call(A)
    return randn(*S.shape, dtype=S.dtype, seed=seed)


@pytest.mark.sample(2)
@pytest.mark.parametrize("shape", [(3, 3), (4, 3), (3, 4)], ids=str)
@pytest.mark.parametrize("dtype", [F64, C128], ids=str)
@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("subject", SMOOTH, ids=lambda s: s.name)
def test_derivatives_are_exact_at_ties(subject, name, dtype, shape):
    A = argument(subject, name, dtype, shape).requires_grad_()
    assert gradcheck(free(subject), A, check_forward_ad=True, check_batched_grad=True, atol=1e-6, rtol=1e-6)
    assert gradgradcheck(free(subject), A, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [F64, C128], ids=str)
@every_subject
def test_derivatives_are_exact_at_separated_values(subject, dtype):
    A = argument(subject, "generic", dtype).requires_grad_()
    assert gradcheck(free(subject), A, check_forward_ad=True)
    assert gradgradcheck(free(subject), A, atol=1e-5, rtol=1e-4)


@every_subject
def test_second_derivatives_at_ties_are_finite(subject):
    A = argument(subject, "tied").requires_grad_()
    (g,) = torch.autograd.grad(subject.call(A), A, incoming(subject, A), create_graph=True)
    (h,) = torch.autograd.grad(g.square().sum(), A)
    assert torch.isfinite(h).all()


@every_subject
def test_vmap_is_the_batched_function(subject):
    A = batch(subject)
    torch.testing.assert_close(torch.func.vmap(subject.call)(A), subject.call(A), rtol=1e-12, atol=1e-12)


@every_subject
def test_per_sample_gradients_by_vmap_over_grad(subject):
    A = batch(subject)
    G = incoming(subject, A[0])
    got = torch.func.vmap(torch.func.grad(lambda X: (subject.call(X) * G).sum()))(A)
    expected = gradient(subject.call, A, G.expand(3, *G.shape))
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-11)


@every_subject
def test_forward_mode_is_the_adjoint_of_backward(subject):
    A = argument(subject, "tied", C128)
    E = randn(*A.shape, dtype=C128, seed=3)
    E = hermitian(E) if subject.square else E
    G = incoming(subject, A)
    _, dS = torch.func.jvp(subject.call, (A,), (E,))
    g = gradient(subject.call, A, G)
    assert (G.conj() * dS).sum().real.item() == pytest.approx((g.conj() * E).sum().real.item(), rel=1e-11)


@pytest.mark.parametrize("subject", SMOOTH, ids=lambda s: s.name)
def test_the_hessian_by_torch_func_is_that_of_autograd(subject):
    A = argument(subject, "tied")
    G, call = incoming(subject, A), free(subject)

    def loss(X):
        return (call(X) * G).sum()

    expected = torch.autograd.functional.hessian(loss, A)
    torch.testing.assert_close(torch.func.hessian(loss)(A), expected, rtol=1e-9, atol=1e-9)
    assert expected.abs().max() > 1e-2


@every_subject
def test_compiled_without_graph_breaks_it_is_the_same(subject):
    torch._dynamo.reset()
    A = batch(subject)
    G = incoming(subject, A)
    compiled = torch.compile(subject.call, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(A), subject.call(A), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient(compiled, A, G), gradient(subject.call, A, G), rtol=1e-11, atol=1e-11)


@every_subject
def test_autocast_changes_neither_value_nor_gradient(subject):
    A = batch(subject, F32)
    G = incoming(subject, A)
    S, g = subject.call(A), gradient(subject.call, A, G)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = subject.call(A)
    assert got.dtype == F32
    assert relative_error(got, S) < 1e-6
    A = A.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        S = subject.call(A)
    assert relative_error(torch.autograd.grad(S, A, G)[0], g) < 1e-6
    if not subject.name.startswith("pinv"):  # whose backward pass is torch's own
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert relative_error(gradient(subject.call, A, G), g) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@every_subject
def test_half_precision_is_computed_in_float32_and_cast_back(subject, dtype):
    A = batch(subject, dtype)
    G = incoming(subject, A)
    S, g = subject.call(A), gradient(subject.call, A, G)
    assert S.dtype == g.dtype == dtype
    same = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 1e-3, "check_dtype": False}
    torch.testing.assert_close(S, subject.call(A.float()), **same)
    torch.testing.assert_close(g, gradient(subject.call, A.float(), G.float()), **same)


@pytest.mark.parametrize("dtype", [F32, F64, torch.complex64, C128], ids=str)
@every_subject
def test_the_type_is_kept(subject, dtype):
    A = batch(subject, dtype)
    S = subject.call(A)
    assert S.dtype in (dtype, dtype.to_real())
    assert gradient(subject.call, A, randn(*S.shape, dtype=S.dtype)).dtype == dtype


@pytest.mark.parametrize(
    "shape",
    [(0, 0), (2, 0, 0), (0, 3, 3), (1, 1), (4, 1, 1), (2, 2), (2, 1, 3, 2, 2), (3, 0), (2, 0, 3), (5, 1)],
    ids=str,
)
@every_subject
def test_every_batch_shape_and_size_works_to_second_order(subject, shape):
    m, n = shape[-2:]
    if (subject.square and m != n) or min(m, n) < subject.smallest:
        pytest.skip("not for this function")
    values = torch.arange(1.0, min(m, n) + 1, dtype=F64)
    A = torch.zeros(shape, dtype=F64)
    A[..., : min(m, n), : min(m, n)] = torch.diag(values)
    A.requires_grad_()
    S = subject.call(A)
    assert S.shape == (*shape[:-2], *subject.shape(m, n))
    (g,) = torch.autograd.grad(S.sum(), A, create_graph=True)
    assert g.shape == shape
    (h,) = torch.autograd.grad(g.sum(), A, allow_unused=True)
    assert h is None or (h.shape == shape and torch.isfinite(h).all())


@pytest.mark.parametrize("scale", [1e-30, 1e30])
@every_subject
def test_scales_do_not_matter(subject, scale):
    A = batch(subject, F32)
    A = A if subject.smooth else A[:1]  # of one of two tied values there is no gradient
    # In which power of the scale the gradient goes.
    degree = {"spectral_projector": -1, "logdet": -1, "pinv": -2, "pinv hermitian": -2}.get(subject.name, 0)
    G = incoming(subject, A)
    expected = gradient(subject.call, A.double(), G.double())
    if degree == -2:
        G = G * scale
    got = gradient(subject.call, A * scale, G).double()
    assert relative_error(got * (scale if degree else 1.0), expected) < 1e-5


@every_subject
def test_a_non_finite_matrix_is_named_as_such(subject):
    A = torch.eye(2).expand(3, 2, 2).clone()
    A[2, 1, 0] = torch.nan
    name = subject.name.split()[0]
    names = {"eigvalsh": "eigh", "svdvals": "svd"}
    with pytest.raises(eg.NonFiniteError, match=rf"^{names.get(name, name)}: batch element 2"):
        subject.call(A)


@pytest.mark.parametrize(
    ("bad", "kind", "message"),
    [
        ([[1.0]], TypeError, r"A must be a torch\.Tensor; got list"),
        (torch.ones(3), ValueError, r"shape.*got \(3,\)"),
        (torch.eye(2, dtype=torch.int64), TypeError, r"floating-point.*torch\.int64"),
    ],
    ids=["list", "vector", "integer"],
)
@every_subject
def test_what_is_no_matrix_of_numbers_is_refused(subject, bad, kind, message):
    with pytest.raises(kind, match=message):
        subject.call(bad)


@pytest.mark.parametrize("subject", [s for s in SUBJECTS if s.square], ids=lambda s: s.name)
def test_what_must_be_square_is_refused_otherwise(subject):
    with pytest.raises(ValueError, match=r"square.*got \(2, 3\)"):
        subject.call(torch.ones(2, 3))


@every_subject
def test_strides_do_not_matter(subject):
    A = batch(subject)
    G = incoming(subject, A)
    strided = torch.stack([A, A], -1)[..., 0]
    assert not strided.is_contiguous()
    torch.testing.assert_close(subject.call(strided), subject.call(A), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(gradient(subject.call, strided, G), gradient(subject.call, A, G), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("neighbour", ["tied", "huge", "tiny"])
@every_subject
def test_a_matrix_does_not_notice_its_neighbours(subject, neighbour):
    A = argument(subject, "generic")
    other = argument(subject, "tied") * {"tied": 1.0, "huge": 1e20, "tiny": 1e-20}[neighbour]
    G = incoming(subject, A)
    together = gradient(subject.call, torch.stack([other, A]), torch.stack([G, G]))
    assert relative_error(together[1], gradient(subject.call, A, G)) < 1e-13
