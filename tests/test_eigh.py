"""eigh as a drop-in for torch.linalg.eigh: values, shapes, types, layouts, and the exact gradient."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck

import eigengrad as eg
from eigengrad.gradients import RULES as REGISTRY
from eigengrad.testing import SPECTRA, random_hermitian
from rules_matrix import DTYPES, RULES

DOUBLE = [torch.float64, torch.complex128]
HALF = [torch.float16, torch.bfloat16]


def separated(generator, dtype=torch.float64, n=4, batch=()):
    return random_hermitian(SPECTRA["separated"]((*batch, n), generator), generator, dtype)


def energy(A, **arguments):
    """A loss of eigenvalues and eigenvectors that no phase can change."""
    L, V = eg.eigh(A, **arguments)
    weights = torch.linspace(-1, 1, V.numel(), dtype=L.dtype).reshape(V.shape)
    return (L * weights[..., 0, :]).sum() + (weights * (V * V.conj()).real).sum()


# Values -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape", [(0,), (1,), (2,), (5,), (64,), (3, 4), (0, 3), (2, 0), (2, 0, 3), (2, 1, 3, 4)], ids=str
)
def test_values_are_those_of_torch_for_every_shape(shape, dtype, generator):
    A = random_hermitian(torch.randn(shape, generator=generator, dtype=torch.float64), generator, dtype)
    actual, expected = eg.eigh(A), torch.linalg.eigh(A)
    assert isinstance(actual, torch.return_types.linalg_eigh)
    for x, y in zip(actual, expected, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
    rtol = 100 * torch.finfo(dtype).eps
    torch.testing.assert_close(actual.eigenvalues, expected.eigenvalues, rtol=rtol, atol=rtol)
    L, V = actual.eigenvalues, actual.eigenvectors
    torch.testing.assert_close((V * L.unsqueeze(-2)) @ V.mH, A, rtol=rtol, atol=rtol * shape[-1])
    assert (L.diff(dim=-1) >= 0).all()


@pytest.mark.parametrize("case", RULES, ids=str)
@pytest.mark.parametrize("shape", [(0, 0), (1, 1), (0, 3, 3), (2, 0, 0), (3, 1, 1), (2, 0, 3, 3)], ids=str)
def test_degenerate_shapes_have_gradients_in_both_modes(case, shape):
    A = torch.ones(shape, requires_grad=True)
    L, V = eg.eigh(A, gradient=case.rule)
    (L.sum() + V.sum()).backward()
    # The one eigenvalue of a 1×1 matrix is its entry; power iteration keeps it as well.
    torch.testing.assert_close(A.grad, torch.ones(shape) if shape[-1] == 1 else torch.zeros(shape))
    dL, dV = torch.func.jvp(lambda A: tuple(eg.eigh(A, gradient=case.rule)), (A.detach(),), (torch.ones(shape),))[1]
    torch.testing.assert_close(dL, torch.ones(shape[:-1]))
    torch.testing.assert_close(dV, torch.zeros(shape))


@pytest.mark.parametrize("UPLO", ["L", "U", "l", "u"])
def test_only_the_named_triangle_is_read(UPLO, generator):
    lower, upper = separated(generator), separated(generator)
    mixed = lower.tril() + upper.triu(1)
    mixed.diagonal().copy_(lower.diagonal())
    A = lower if UPLO.upper() == "L" else mixed.triu() + mixed.triu(1).mT
    torch.testing.assert_close(eg.eigh(mixed, UPLO).eigenvalues, torch.linalg.eigvalsh(A))
    torch.testing.assert_close(eg.eigh(mixed, UPLO=UPLO)[0], torch.linalg.eigh(mixed, UPLO.upper())[0])
    gradient = torch.func.grad(lambda A: energy(A, UPLO=UPLO))
    torch.testing.assert_close(gradient(mixed), gradient(A))


@pytest.mark.parametrize("case", RULES, ids=str)
def test_rule_does_not_change_the_values(case, generator):
    A = separated(generator)
    for actual, expected in zip(eg.eigh(A, gradient=case.rule), eg.eigh(A), strict=True):
        assert torch.equal(actual, expected)


# The exact gradient -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("dtype", DOUBLE, ids=str)
def test_exact_gradient_agrees_with_finite_differences_to_second_order(dtype, n, generator):
    A = separated(generator, dtype, n, (2,)).requires_grad_()

    def function(A):
        L, V = eg.eigh((A + A.mH) / 2, gradient="exact")
        return L, V.abs() ** 2, V[..., :1] @ V[..., :1].mH

    real = not dtype.is_complex  # torch itself cannot batch forward mode for complex inputs
    assert gradcheck(function, A, check_forward_ad=True, check_batched_grad=real, check_batched_forward_grad=real)
    assert gradgradcheck(function, A, check_fwd_over_rev=True, check_batched_grad=real)


@pytest.mark.parametrize("dtype", DOUBLE, ids=str)
@pytest.mark.parametrize("rule", REGISTRY)
def test_gradients_may_be_batched(rule, dtype, generator):
    """torch.autograd.grad(is_grads_batched=True), as torch.autograd.functional.jacobian(vectorize=True) uses it."""
    A = separated(generator, dtype).requires_grad_()
    V = eg.eigh(A, gradient=rule).eigenvectors
    projector = V[:, 1:3] @ V[:, 1:3].mH
    cotangents = torch.randn(3, 4, 4, generator=generator, dtype=dtype)
    expected = torch.stack([torch.autograd.grad(projector, A, g, retain_graph=True)[0] for g in cotangents])
    (actual,) = torch.autograd.grad(projector, A, cotangents, is_grads_batched=True)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_exact_gradient_is_that_of_torch(dtype, generator):
    A = separated(generator, dtype, 6, (3,))

    def gradient(eigh):
        B = A.clone().requires_grad_()
        L, V = eigh(B)
        (L.cos().sum() + (V[..., 0, :].abs() ** 4).sum()).backward()
        return B.grad

    actual, expected = gradient(lambda B: eg.eigh(B, gradient="exact")), gradient(torch.linalg.eigh)
    rtol = 1e3 * torch.finfo(dtype).eps
    torch.testing.assert_close(actual, (expected + expected.mH) / 2, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("rule", REGISTRY)
def test_loss_of_eigenvalues_alone_needs_no_rule(rule, generator):
    """∂λ_i/∂A = v_i v_iᴴ, ties or not."""
    A = separated(generator, torch.complex128, 5).requires_grad_()
    L, V = eg.eigh(A, gradient=rule)
    weights = torch.randn(5, generator=generator, dtype=torch.float64)
    (gA,) = torch.autograd.grad(L @ weights, A)
    torch.testing.assert_close(gA, (V * weights) @ V.mH)
    ties = torch.eye(3, dtype=torch.float64, requires_grad=True)
    if rule != "power_iteration":
        eg.eigh(ties, gradient=rule).eigenvalues.sum().backward()
        torch.testing.assert_close(ties.grad, torch.eye(3, dtype=torch.float64))


@pytest.mark.parametrize("rule", REGISTRY)
def test_outputs_can_be_used_alone_and_together(rule, generator):
    A = separated(generator).requires_grad_()

    def gradient(loss):
        return torch.autograd.grad(loss(*eg.eigh(A, gradient=rule)), A)[0]

    values, vectors = gradient(lambda L, V: (L**2).sum()), gradient(lambda L, V: (V[0] ** 4).sum())
    torch.testing.assert_close(gradient(lambda L, V: (L**2).sum() + (V[0] ** 4).sum()), values + vectors)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_loss_of_the_phase_is_refused(dtype, generator):
    A = separated(generator, dtype).requires_grad_()
    with pytest.raises(eg.GaugeError, match="phase"):
        eg.eigh(A).eigenvectors[0].imag.sum().backward()


def test_loss_of_the_phase_is_refused_beside_a_neighbour_with_a_large_gradient(generator):
    """What one matrix gets must not depend on the others of its batch."""
    A = separated(generator, torch.complex64, batch=(2,)).requires_grad_()
    V = eg.eigh(A).eigenvectors
    with pytest.raises(eg.GaugeError, match="phase"):
        (V[0, 0].imag.sum() + 1e6 * (V[1, 0].abs() ** 4).sum()).backward()


def test_no_grad_and_detached_inputs_record_nothing(generator):
    A = separated(generator).requires_grad_()
    with torch.no_grad():
        assert not eg.eigh(A).eigenvectors.requires_grad
    with torch.inference_mode():
        eg.eigh(A)
    assert not eg.eigh(A.detach()).eigenvectors.requires_grad
    assert eg.eigh(A).eigenvalues.requires_grad


# Layouts ------------------------------------------------------------------------------------------------------------

LAYOUTS = {
    "transposed": lambda A: A.mT.contiguous().mT,
    "strided": lambda A: torch.stack([A, torch.zeros_like(A)], -1).flatten(-2)[..., ::2],
    "batch last": lambda A: A.movedim(0, -1).contiguous().movedim(-1, 0),
    "sliced": lambda A: torch.nn.functional.pad(A, (1, 2, 2, 1))[..., 2:-1, 1:-2],
}


@pytest.mark.parametrize("rule", REGISTRY)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_in_memory_does_not_matter(layout, rule, generator):
    A = separated(generator, batch=(3,))
    assert not LAYOUTS[layout](A).is_contiguous()
    gradient = torch.func.grad(lambda A: energy(A, gradient=rule))
    torch.testing.assert_close(gradient(LAYOUTS[layout](A)), gradient(A))
    B = A.clone().requires_grad_()
    energy(LAYOUTS[layout](B), gradient=rule).backward()
    torch.testing.assert_close(B.grad, gradient(A))


@pytest.mark.parametrize("rule", REGISTRY)
def test_gradient_of_an_expanded_matrix_is_the_sum(rule, generator):
    A = separated(generator).requires_grad_()
    (expanded,) = torch.autograd.grad(energy(A.expand(3, 4, 4)[:, :, :], gradient=rule), A)
    parts = [A.detach().clone().requires_grad_() for _ in range(3)]
    summed = torch.autograd.grad(energy(torch.stack(parts), gradient=rule), parts)
    torch.testing.assert_close(expanded, sum(summed))


@pytest.mark.parametrize("rule", REGISTRY)
def test_incoming_gradient_may_have_any_layout(rule, generator):
    A = separated(generator, batch=(2,)).requires_grad_()
    L, V = eg.eigh(A, gradient=rule)
    gL, gV = torch.randn(L.shape, generator=generator).double(), torch.randn(V.shape, generator=generator).double()
    (expected,) = torch.autograd.grad((L, V), A, (gL, gV), retain_graph=True)
    strided = gL.unsqueeze(-1).expand(2, 4, 2)[..., 0], gV.mT.contiguous().mT
    torch.testing.assert_close(torch.autograd.grad((L, V), A, strided, retain_graph=True)[0], expected)
    once = torch.ones(()).double().expand(2, 4, 4)
    torch.testing.assert_close(
        torch.autograd.grad(V, A, once, retain_graph=True)[0], torch.autograd.grad(V, A, once.contiguous())[0]
    )


def test_backward_leaves_its_inputs_as_they_are(generator):
    A = separated(generator, batch=(2,)).requires_grad_()
    L, V = eg.eigh(A)
    gL, gV = torch.randn(L.shape, generator=generator).double(), torch.randn(V.shape, generator=generator).double()
    before = [x.clone() for x in (A, L, V, gL, gV)]
    torch.autograd.grad((L, V), A, (gL, gV))
    assert all(torch.equal(x, y) for x, y in zip((A, L, V, gL, gV), before, strict=True))


# Precision ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", REGISTRY)
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_half_precision_is_computed_in_float32_and_cast_back(dtype, rule, generator):
    A = separated(generator, dtype).requires_grad_()
    L, V = eg.eigh(A, gradient=rule)
    assert L.dtype == V.dtype == dtype
    B = A.detach().float().requires_grad_()
    wide = eg.eigh(B, gradient=rule)
    assert torch.equal(L, wide.eigenvalues.to(dtype))
    assert torch.equal(V, wide.eigenvectors.to(dtype))
    gV = torch.randn(4, 4, generator=generator).to(dtype)
    (gA,) = torch.autograd.grad(V, A, gV)
    (gB,) = torch.autograd.grad(wide.eigenvectors, B, gV.float())
    assert gA.dtype == dtype
    assert torch.equal(gA, gB.to(dtype))


def test_complex_half_has_real_eigenvalues(generator):
    L, V = eg.eigh(separated(generator, torch.complex64).to(torch.complex32))
    assert (L.dtype, V.dtype) == (torch.float16, torch.complex32)


@pytest.mark.parametrize("rule", REGISTRY)
@pytest.mark.parametrize("where", ["forward", "backward", "both"])
def test_autocast_changes_nothing(where, rule, generator):
    A = separated(generator, torch.float32, 6)

    def gradient(autocast_forward, autocast_backward):
        B = A.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast_forward):
            L, V = eg.eigh(B, gradient=rule)
        assert L.dtype == V.dtype == torch.float32
        loss = L.square().sum() + V[0].pow(4).sum()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast_backward):
            loss.backward()
        return B.grad

    expected = gradient(False, False)
    assert torch.equal(gradient(where != "backward", where != "forward"), expected)


def test_autocast_changes_nothing_in_forward_mode(generator):
    A, dA = separated(generator, torch.float32), separated(generator, torch.float32)
    expected = torch.func.jvp(lambda A: tuple(eg.eigh(A)), (A,), (dA,))
    with torch.autocast("cpu", torch.bfloat16):
        actual = torch.func.jvp(lambda A: tuple(eg.eigh(A)), (A,), (dA,))
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


# Compilers ----------------------------------------------------------------------------------------------------------


class Spectral(torch.nn.Module):
    def __init__(self, rule):
        super().__init__()
        self.rule = rule

    def forward(self, A):
        L, V = eg.eigh(A, gradient=self.rule)
        return (V * L.clamp(min=0.1).unsqueeze(-2)) @ V.mT


@pytest.mark.parametrize("rule", REGISTRY)
def test_module_in_eval_mode_exports(rule, generator):
    A = separated(generator, torch.float32, batch=(2,))
    module = Spectral(rule).eval()
    program = torch.export.export(module, (A,))
    other = separated(generator, torch.float32, batch=(2,))
    torch.testing.assert_close(program.module()(other), module(other))


@pytest.mark.usefixtures("dynamo")
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.complex64, marks=pytest.mark.slow)], ids=str)
def test_compiled_shapes_may_change(dtype, generator):
    compiled = torch.compile(energy, fullgraph=True, backend="aot_eager")
    for n, batch in ((3, ()), (4, (2,)), (5, (3,)), (5, (2, 2))):
        A, B = (separated(generator, dtype, n, batch).requires_grad_() for _ in range(2))
        B.data.copy_(A.data)
        compiled(A).backward()
        energy(B).backward()
        torch.testing.assert_close(A.grad, B.grad)


@pytest.mark.slow
@pytest.mark.usefixtures("dynamo")
def test_inductor_compiles_forward_and_backward(generator):
    A, B = (separated(torch.Generator().manual_seed(1), torch.float32, batch=(2,)).requires_grad_() for _ in range(2))
    torch.compile(energy, fullgraph=True)(A).backward()
    energy(B).backward()
    torch.testing.assert_close(A.grad, B.grad)


@pytest.mark.parametrize("rule", REGISTRY)
def test_meta_and_fake_tensors_give_shapes(rule):
    L, V = eg.eigh(torch.empty(2, 3, 3, device="meta"), gradient=rule)
    assert (L.shape, V.shape, V.device.type) == ((2, 3), (2, 3, 3), "meta")
    with FakeTensorMode():
        A = torch.empty(2, 3, 3, requires_grad=True)
        L, V = eg.eigh(A, gradient=rule)
        (V.sum() + L.sum()).backward()
        assert A.grad.shape == (2, 3, 3)
