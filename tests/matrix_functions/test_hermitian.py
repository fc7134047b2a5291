"""Functions of Hermitian matrices refuse others: by name, per matrix, relative to its size, and within transforms."""

from __future__ import annotations

import pickle

import pytest
import torch

import eigengrad as eg
from eigengrad.errors import NotHermitianError
from eigengrad.matrix_functions import logdet, pinv, spectral_projector
from eigengrad.matrix_functions.hermitian import require_hermitian
from functions_matrix import hermitian, matrix, randn

F32, F64, C128 = torch.float32, torch.float64, torch.complex128
FUNCTIONS = {
    "matrix_sqrt": eg.matrix_sqrt,
    "matrix_inv_sqrt": eg.matrix_inv_sqrt,
    "matrix_power": lambda A, **k: eg.matrix_power(A, 2, **k),
    "matrix_log": eg.matrix_log,
    "matrix_exp": eg.matrix_exp,
    "matrix_function": lambda A, **k: eg.matrix_function(A, torch.sin, torch.cos, **k),
    "spectral_projector": lambda A, **k: spectral_projector(A, 1, **k),
    "logdet": logdet,
    "pinv": lambda A, **k: pinv(A, hermitian=True, **k),
}
#: Few matrices, many small ones, larger ones: each is looked at in another way.
SHAPES = [(2, 2), (3, 4, 4), (700, 3, 3), (40, 16, 16), (2, 64, 64), (150, 150), (2, 3, 40, 40)]


def positive(*shape: int, dtype: torch.dtype = F64, seed: int = 0) -> torch.Tensor:
    X = randn(*shape[:-1], 2 * shape[-1], dtype=dtype, seed=seed)
    return hermitian(X @ X.mH) / shape[-1] + torch.eye(shape[-1], dtype=dtype)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_matrix_that_is_not_hermitian_is_refused_with_a_remedy(name):
    A = positive(3, 4, 4)
    A[1, 0, 2] += 1e-3
    with pytest.raises(NotHermitianError) as caught:
        FUNCTIONS[name](A)
    message = str(caught.value)
    assert message.startswith(f"{name}: batch element 1 of A is not Hermitian")
    assert "(A + A.mH) / 2" in message
    assert "torch.linalg.matrix_exp" in message
    assert caught.value.index == (1,)
    assert isinstance(caught.value, ValueError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == message
    FUNCTIONS[name](A, check_finite=False)


@pytest.mark.parametrize("dtype", [F32, F64, torch.complex64, C128], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_entry_is_seen_from_root_eps_on_and_not_below(shape, dtype):
    A = positive(*shape, dtype=dtype)
    root = max(torch.finfo(dtype).eps ** 0.5, 8 * torch.finfo(torch.float32).eps)
    size = float(A[(-1,) * (len(shape) - 2)].abs().max())
    for relative, wrong in ((0.2, False), (3.0, True), (1e3, True)):
        B = A.clone()
        B[(-1,) * (len(shape) - 2)][0, -1] += relative * root * size
        if wrong:
            with pytest.raises(NotHermitianError) as caught:
                require_hermitian("f", B, None)
            assert caught.value.index == tuple(s - 1 for s in shape[:-2])
        else:
            require_hermitian("f", B, None)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_a_triangle_alone_is_refused_at_every_scale_and_its_symmetric_completion_is_not(shape, scale):
    A = (positive(*shape, dtype=F32) - 1.5 * torch.eye(shape[-1])) * scale  # of both signs
    require_hermitian("f", A, None)
    with pytest.raises(NotHermitianError):
        require_hermitian("f", A.tril(), None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, F32, F64], ids=str)
@pytest.mark.parametrize("points", [3, 40, 5000])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_the_round_off_of_a_covariance_passes(dtype, points, scale):
    if dtype == torch.float16 and scale != 1.0:
        pytest.skip("outside the range of the type")
    wide = torch.float32 if dtype.itemsize == 2 else dtype
    for shape in ((16, 4), (700, 3), (40, 16), (2, 64)):
        X = randn(*shape, points, dtype=wide) * 10 ** randn(shape[-1], 1, dtype=wide).clamp(max=1.0)
        weights = randn(1, points, dtype=wide).abs()
        A = (((X * weights) @ X.mT) / points * scale).to(dtype)
        A = A * (1 + 0.5 * torch.finfo(dtype).eps * torch.sign(randn(*A.shape, dtype=wide))).to(dtype)
        require_hermitian("f", A, None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_checked_by_its_own_round_off(dtype):
    A = torch.tensor([[1.0, 0.5], [0.51, 1.0]], dtype=dtype)
    eg.matrix_sqrt(A)
    with pytest.raises(NotHermitianError):
        eg.matrix_sqrt(A.float())
    with pytest.raises(NotHermitianError):
        eg.matrix_sqrt(torch.tensor([[1.0, 0.5], [0.0, 1.0]], dtype=dtype))


def test_each_matrix_is_measured_by_itself():
    A = positive(2000, 3, 3, dtype=F32)
    A[7] *= 1e-20
    A[7, 0, 1] = 0.0
    with pytest.raises(NotHermitianError, match="batch element 7 "):
        require_hermitian("f", A, None)


def test_what_is_not_finite_is_named_as_such_in_either_triangle():
    for i, j in ((0, 1), (1, 0), (1, 1)):
        for bad in (torch.nan, torch.inf):
            A = torch.eye(3).expand(2, 3, 3).clone()
            A[1, i, j] = bad
            with pytest.raises(eg.NonFiniteError, match="batch element 1"):
                eg.matrix_exp(A)


TRANSFORMED = {
    "grad": torch.func.grad(lambda X: eg.matrix_exp(X).sum()),
    "jvp": lambda X: torch.func.jvp(eg.matrix_exp, (X,), (X,)),
    "vmap": torch.func.vmap(eg.matrix_exp),
    "vmap of grad": torch.func.vmap(torch.func.grad(lambda X: logdet(X))),
}


@pytest.mark.parametrize("transform", TRANSFORMED)
def test_it_is_refused_inside_transforms_too(transform):
    A = torch.stack([matrix([1.0, 2.0]), matrix([1.0, 2.0]).tril()])
    with pytest.raises(NotHermitianError):
        TRANSFORMED[transform](A)


def test_eigh_reads_one_triangle_as_that_of_torch_does():
    A = positive(4, 4).tril()
    torch.testing.assert_close(eg.eigh(A).eigenvalues, torch.linalg.eigh(A).eigenvalues)


@pytest.mark.parametrize("shape", [(0, 0), (0, 3, 3), (2, 0, 0), (1, 1)], ids=str)
def test_nothing_is_hermitian(shape):
    require_hermitian("f", torch.zeros(shape), None)
    require_hermitian("f", torch.zeros(shape, dtype=C128), None)


def test_an_imaginary_diagonal_is_not_hermitian():
    with pytest.raises(NotHermitianError):
        require_hermitian("f", torch.eye(2, dtype=C128) * (1 + 1j), None)


def test_the_weights_of_the_quick_look_do_not_touch_the_random_state():
    state = torch.get_rng_state()
    require_hermitian("f", positive(100, 13, 13), None)
    assert torch.equal(state, torch.get_rng_state())
