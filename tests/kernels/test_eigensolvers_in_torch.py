"""The batched eigensolvers inside torch: tensors of every kind and layout, compiled, vectorised, without gradients."""

import pytest
import torch

import eigengrad as eg
import kernel_eigh
from eigengrad import kernels
from eigengrad.testing import SPECTRA, random_hermitian

pytest.importorskip("numba")

REAL = [torch.float32, torch.float64]
INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}
SHAPES = [
    (40, 3),
    (21, 4),
    (40, 5),
    (3, 7),
    (19, 16),
    (2, 33),
    (2, 70),
]  # (batch, n): each kernel, whole vectors and tails

dtypes = pytest.mark.parametrize("dtype", REAL, ids=str)
shapes = pytest.mark.parametrize(("batch", "n"), SHAPES, ids=str)


def same_bits(*pairs):
    return all(
        torch.equal(x.contiguous().view(INTEGERS[x.dtype]), y.contiguous().view(INTEGERS[y.dtype])) for x, y in pairs
    )


# Tensors of every kind ----------------------------------------------------------------------------------------------


@pytest.mark.sample(2)
@dtypes
@pytest.mark.parametrize("n", [1, 2, 4, 7, 20])
@pytest.mark.parametrize("batch", [(), (1,), (5,), (2, 3), (1, 1, 2), (2, 1, 3), (4, 1), (1, 1)], ids=str)
def test_shapes_and_strides_are_those_of_torch(batch, n, dtype):
    A = torch.eye(n, dtype=dtype).expand(*batch, n, n)
    assert kernel_eigh.suits(A)
    ours, torchs = eg.eigh(A), torch.linalg.eigh(A)
    for x, y in zip(ours, torchs, strict=True):
        assert (x.shape, x.dtype, x.device, x.stride()) == (y.shape, y.dtype, y.device, y.stride())


@dtypes
@pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 5, 5), (0, 0), (3, 0, 0), (0, 20, 20)], ids=str)
def test_empty_batches_and_empty_matrices(shape, dtype):
    A = torch.empty(shape, dtype=dtype, requires_grad=True)
    ours, torchs = eg.eigh(A, driver="batched"), torch.linalg.eigh(A)
    for x, y in zip(ours, torchs, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
    (ours.eigenvalues.sum() + ours.eigenvectors.sum()).backward()
    assert A.grad.shape == shape


@pytest.mark.parametrize("UPLO", ["L", "U"])
@dtypes
@shapes
def test_layout_of_the_input_does_not_matter(batch, n, dtype, UPLO, generator):
    A = torch.randn(batch, n, n, generator=generator, dtype=dtype)  # not symmetric: the right triangle must be read
    expected = kernel_eigh.eigh(A, UPLO)
    wide = torch.zeros(batch, n, 2 * n + 1, dtype=dtype)
    wide[..., 1::2] = A
    padded = torch.zeros(batch + 2, n + 3, n + 5, dtype=dtype)
    padded[1:-1, 2:-1, 1:-4] = A
    layouts = {
        "columns": A.mT.contiguous().mT,
        "batch last": A.permute(1, 2, 0).contiguous().permute(2, 0, 1),
        "every second column": wide[..., 1::2],
        "inside a larger one": padded[1:-1, 2:-1, 1:-4],
        "reversed": A.flip(0).contiguous().flip(0),
        "negated view": torch._neg_view(-A),
        "imaginary part of a conjugate": torch.complex(A, -A).conj().imag,
    }
    for name, B in layouts.items():
        assert torch.equal(A, B), name
        before = B.clone()
        assert same_bits(*zip(expected, kernel_eigh.eigh(B, UPLO), strict=True)), name
        assert torch.equal(before, B), name
    one = A[:1].expand(batch, n, n)
    assert same_bits(*zip(kernel_eigh.eigh(one.contiguous(), UPLO), kernel_eigh.eigh(one, UPLO), strict=True))


def test_other_triangle_of_a_matrix_is_that_of_its_transpose(generator):
    A = torch.randn(9, 6, 6, generator=generator)
    assert same_bits(*zip(kernel_eigh.eigh(A, "U"), kernel_eigh.eigh(A.mT.contiguous(), "L"), strict=True))
    assert not torch.allclose(kernel_eigh.eigh(A, "U")[0], kernel_eigh.eigh(A, "L")[0])


def test_zeros_without_memory():
    """Forward mode makes such tensors for derivatives that vanish."""
    L, V = eg.eigh(torch._efficientzerotensor((3, 5, 5)))
    assert torch.equal(L, torch.zeros(3, 5))
    assert torch.equal(V.mT @ V, torch.eye(5).expand(3, 5, 5))


def test_results_are_in_main_memory_whatever_the_default_device(generator):
    A = torch.randn(4, 3, 3, generator=generator)
    expected = eg.eigh(A)
    with torch.device("meta"):
        actual = eg.eigh(A)
    assert same_bits(*zip(expected, actual, strict=True))


def test_tensors_without_plain_memory_are_refused():
    for A in (torch.eye(3).to_sparse(), torch.eye(3).to_mkldnn()):
        with pytest.raises(TypeError, match=r"eigh: A must be dense; got torch\._?(sparse_coo|mkldnn)"):
            eg.eigh(A)


@dtypes
def test_in_inference_mode_and_without_gradients(dtype, generator):
    A = random_hermitian(SPECTRA["separated"]((5, 6), generator), generator, dtype)
    expected = kernel_eigh.eigh(A, "L")
    for mode in (torch.inference_mode, torch.no_grad, torch.enable_grad):
        with mode():
            assert same_bits(*zip(expected, eg.eigh(A), strict=True))


def test_larger_and_complex_matrices_are_left_to_lapack(generator):
    for A in (torch.eye(513).expand(2, 513, 513), torch.eye(3, dtype=torch.complex64)):
        assert not kernel_eigh.suits(A)
        ours, torchs = eg.eigh(A, driver="batched"), torch.linalg.eigh(A)
        assert all(torch.equal(x, y) for x, y in zip(ours, torchs, strict=True))


def test_without_kernels_lapack_is_the_default():
    A = torch.eye(3) + torch.ones(3, 3)
    with kernels.disable():
        for driver in (None, "batched"):
            assert all(torch.equal(x, y) for x, y in zip(eg.eigh(A, driver=driver), torch.linalg.eigh(A), strict=True))
        _, V = torch.ops.eigengrad.eigh(A, "L")  # of a program that was saved where numba is
    assert torch.equal(V, torch.linalg.eigh(A).eigenvectors)


# Inside torch's transforms ------------------------------------------------------------------------------------------


def energy(A):
    L, V = eg.eigh(A)
    return (V[..., 0, :] ** 4 * L.exp()).sum()


@pytest.mark.usefixtures("dynamo")
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    ("batch", "n", "dtype"), [(40, 3, torch.float32), (19, 16, torch.float64), (2, 70, torch.float32)], ids=str
)
def test_compiled_graph_holds_the_operator_and_gives_the_same(batch, n, dtype, requires_grad, generator):
    A = random_hermitian(SPECTRA["separated"]((batch, n), generator), generator, dtype)
    B = A.clone().requires_grad_(requires_grad)
    A.requires_grad_(requires_grad)
    graphs = []

    def backend(module, inputs):
        graphs.append(str(module.graph))
        return module.forward

    compiled = torch.compile(energy, fullgraph=True, backend=backend if not requires_grad else "aot_eager")
    x, y = compiled(A), energy(B)
    assert same_bits((x.detach(), y.detach()))
    if requires_grad:
        x.backward()
        y.backward()
        torch.testing.assert_close(A.grad, B.grad)
    else:
        assert len(graphs) == 1
        assert "eigengrad.eigh" in graphs[0]


@pytest.mark.usefixtures("dynamo")
def test_compiled_code_names_the_bad_matrix():
    A = torch.eye(6).repeat(4, 1, 1)
    compiled = torch.compile(lambda A: eg.eigh(A).eigenvalues, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(A), torch.ones(4, 6))
    A[2, 3, 1] = torch.nan
    with pytest.raises(eg.NonFiniteError, match="batch element 2 "):
        compiled(A)


@pytest.mark.usefixtures("dynamo")
def test_one_compiled_graph_serves_all_batch_sizes(generator):
    graphs = []

    def backend(module, inputs):
        graphs.append(module)
        return module.forward

    compiled = torch.compile(lambda A: tuple(eg.eigh(A)), fullgraph=True, backend=backend, dynamic=True)
    for batch in (3, 5, 40, 1000):
        A = torch.randn(batch, 6, 6, generator=generator)
        assert same_bits(*zip(compiled(A), kernel_eigh.eigh(A, "L"), strict=True))
    assert len(graphs) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("dynamo")
def test_inductor_folds_a_constant_decomposition(generator):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("A", random_hermitian(SPECTRA["separated"]((5,), generator), generator, torch.float32))

        def forward(self, x):
            return x @ eg.eigh(self.A).eigenvectors

    model, x = Model().eval(), torch.randn(2, 5, generator=generator)
    with torch.no_grad(), torch._inductor.config.patch(freezing=True):
        torch.testing.assert_close(torch.compile(model)(x), model(x))


@pytest.mark.slow
@pytest.mark.usefixtures("dynamo")
@pytest.mark.parametrize("requires_grad", [False, True])
def test_inductor_compiles_it(requires_grad, generator):
    A = random_hermitian(SPECTRA["separated"]((40, 8), generator), generator, torch.float32).requires_grad_(
        requires_grad
    )
    compiled = torch.compile(energy, fullgraph=True)(A)
    torch.testing.assert_close(compiled, energy(A))
    if requires_grad:
        (ours,), (expected,) = torch.autograd.grad(compiled, A), torch.autograd.grad(energy(A), A)
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("UPLO", ["L", "U"])
@pytest.mark.parametrize("shape", [(5, 4, 4), (2, 3, 8, 8), (0, 3, 3), (1, 1, 1)], ids=str)
def test_operator_keeps_torchs_rules(shape, UPLO, generator):
    A = torch.randn(shape, generator=generator)
    torch.library.opcheck(torch.ops.eigengrad.eigh.default, (A, UPLO))
    torch.library.opcheck(torch.ops.eigengrad.eigh.default, (A.mT, UPLO))


def test_operator_keeps_torchs_rules_where_lapack_computes(generator):
    for A in (torch.randn(3, 3, dtype=torch.complex64, generator=generator), torch.eye(0), torch.eye(513)):
        torch.library.opcheck(torch.ops.eigengrad.eigh.default, (A, "L"))


@dtypes
@shapes
def test_vmap_reaches_the_same_kernels(batch, n, dtype, generator):
    A = torch.randn(batch, n, n, generator=generator, dtype=dtype)
    expected = kernel_eigh.eigh(A, "L")
    assert same_bits(*zip(expected, torch.vmap(lambda A: tuple(eg.eigh(A)))(A), strict=True))
    last = A.permute(1, 2, 0).contiguous()
    mapped = torch.vmap(lambda A: tuple(eg.eigh(A)), in_dims=2)(last)
    assert same_bits(*zip(expected, mapped, strict=True))
    nested = torch.vmap(torch.vmap(lambda A: tuple(eg.eigh(A))))(A.unsqueeze(0))
    assert same_bits(*zip(expected, (x[0] for x in nested), strict=True))
