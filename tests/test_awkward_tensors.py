"""Tensors that torch makes and kernels cannot read as they are: as input, incoming gradient and parameter.

Zeros without memory, views that negate or conjugate, wrapper subclasses, meta and inference tensors, and what hooks on
saved tensors hand back. The result is that of the plain tensor, or a clear error.
"""

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.testing._internal.two_tensor import TwoTensor

import eigengrad as eg
import functions_matrix
import layers_matrix
import rules_matrix
from eigengrad import kernels
from eigengrad._execution import can_read
from eigengrad.kernels.memory import readable
from eigengrad.nn import DecorrelatedBatchNorm2d, SecondOrderPool2d, WhitenColor2d, functional

# Kinds of tensors -----------------------------------------------------------------------------------------------------


def zero(x: Tensor) -> Tensor:
    """Zeros as autograd makes them, without memory."""
    return torch._efficientzerotensor(x.shape, dtype=x.dtype)


def negated(x: Tensor) -> Tensor:
    """``x`` as a view of −x."""
    return torch._neg_view(-x.detach())


def conjugated(x: Tensor) -> Tensor:
    """``x`` as a view of its conjugate, or as the imaginary part of one, which has the bit for negation."""
    if x.is_complex():
        return x.detach().conj().resolve_conj().conj()
    return torch.complex(torch.zeros_like(x), -x.detach()).conj().imag


def inference(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return x.detach().clone()


def wrapped(x: Tensor) -> Tensor:
    return TwoTensor(x.detach().clone(), x.detach().clone())


KINDS = {"zero": zero, "negated": negated, "conjugated": conjugated, "inference": inference, "wrapped": wrapped}
GRADIENTS = {name: KINDS[name] for name in ("zero", "negated", "conjugated")}
over_kinds = pytest.mark.parametrize("kind", KINDS)
over_gradients = pytest.mark.parametrize("kind", GRADIENTS)


@contextlib.contextmanager
def same_solver(kind: str) -> Iterator[None]:
    """Context in which a plain tensor is computed with as one of this kind is: torch has other signs of vectors."""
    with kernels.disable() if kind == "wrapped" else contextlib.nullcontext():
        yield


def plain(x: Tensor, kind: str) -> Tensor:
    return torch.zeros_like(x) if kind == "zero" else x.detach().clone()


# Functions ------------------------------------------------------------------------------------------------------------


def positive(batch: int, n: int, dtype: torch.dtype) -> Tensor:
    """Positive definite matrices with eigenvalues from 1 to 2."""
    values = torch.linspace(1, 2, n, dtype=torch.float64).expand(batch, n)
    return functions_matrix.matrix(values, dtype)


def _result(call: Callable[[Tensor], Any], index: int) -> Callable[[Tensor], Tensor]:
    return lambda A: call(A)[index]


DECOMPOSITIONS = {
    f"{name} {case}": functools.partial(lambda call, A: torch.cat([x.flatten() for x in call(A)]), decomposition)
    for name in ("eigh", "svd")
    for case in rules_matrix.RULES
    if name == "eigh" or case in rules_matrix.PAIR_RULES
    for decomposition in [rules_matrix.Decomposition(name, case.rule)]
}
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **{entry.name: entry.call for entry in functions_matrix.FUNCTIONS},
    **{subject.name: subject.call for subject in functions_matrix.SUBJECTS},
    "eigh values": _result(eg.eigh, 0),
    "eigh vectors": _result(eg.eigh, 1),
    "eigh upper": lambda A: eg.eigh(A, "U")[1],
    "eigh of a pencil": lambda A: eg.eigh(A, B=A + torch.eye(A.shape[-1], dtype=A.dtype))[0],
    "eigh k": lambda A: eg.eigh(A, k=2)[0],
    "svd U": _result(eg.svd, 0),
    "svd S": _result(eg.svd, 1),
    "matrix_sqrt eps": lambda A: eg.matrix_sqrt(A, eps=1e-3),
    "matrix_inv_sqrt eps": lambda A: eg.matrix_inv_sqrt(A, eps=1e-3),
    "matrix_sqrt saturate": lambda A: eg.matrix_sqrt(A, eps=1e-3, gradient="saturate"),
    "newton_schulz_sqrt": lambda A: eg.newton_schulz_sqrt(A, 5, eps=1e-3),
    "newton_schulz_inv_sqrt": lambda A: eg.newton_schulz_inv_sqrt(A, 5, eps=1e-3),
    "polar": _result(eg.polar, 0),
    "procrustes": lambda A: eg.procrustes(A, A + 1),
    "whitening_matrix zca": lambda A: functional.whitening_matrix(A, eps=1e-3),
    "whitening_matrix pca": lambda A: functional.whitening_matrix(A, eps=1e-3, whitening="pca"),
    "whitening_matrix cholesky": lambda A: functional.whitening_matrix(A, eps=1e-3, whitening="cholesky"),
    "covariance": lambda A: functional.covariance(A)[1],
}
ALL = {**FUNCTIONS, **DECOMPOSITIONS}
over_functions = pytest.mark.parametrize("name", ALL)
WRONG_IF_WRAPPED = ("low_rank", "pinv", "eigh of a pencil", "whitening_matrix pca")
REAL = [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)]
DTYPES = [*REAL, torch.complex128]
# A batch side by side; one matrix; one whose products are for BLAS.
SHAPES = [(20, 4), (1, 6), (1, 70)]


def outcome(call: Callable[[], Tensor]) -> Any:
    """The result as a plain tensor, or the type of the error."""
    try:
        y = call()
    except Exception as error:
        return type(error)
    y = y.a if isinstance(y, TwoTensor) else y
    return y.detach().resolve_conj().resolve_neg()


def assert_same(got: Any, expected: Any, *, refusable: bool = False) -> None:
    """The same numbers, or the same error; what is ``refusable`` may be an error as well."""
    if isinstance(expected, type):
        assert isinstance(got, type), "an error was expected"
    elif isinstance(got, type):
        assert refusable, f"unexpected {got.__name__}"
    else:
        assert got.shape == expected.shape
        assert got.dtype == expected.dtype
        assert not got._is_zerotensor() or not expected.any()
        rtol = 1e-4 if expected.dtype in (torch.float32, torch.complex64) else 1e-9
        torch.testing.assert_close(got + 0, expected, rtol=rtol, atol=rtol, equal_nan=True)


@pytest.mark.sample(2)
@over_kinds
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@over_functions
def test_a_function_of_an_awkward_matrix_is_that_of_the_plain_one(name, dtype, kind):
    if kind == "wrapped" and dtype.is_complex and name in WRONG_IF_WRAPPED:
        pytest.skip("torch itself gets x.conj() * x of a complex TwoTensor wrong")
    for batch, n in SHAPES[:2]:
        A = positive(batch, n, dtype)
        with same_solver(kind):
            expected = outcome(lambda: ALL[name](plain(A, kind)))  # noqa: B023
        assert_same(outcome(lambda: ALL[name](KINDS[kind](A))), expected, refusable=kind == "wrapped")  # noqa: B023


@pytest.mark.sample(2)
@over_gradients
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@over_functions
def test_an_awkward_gradient_gives_what_the_plain_one_gives(name, dtype, kind):
    for batch, n in SHAPES if name.startswith(("eigh v", "matrix_sqrt", "svd U")) else SHAPES[:2]:
        A = positive(batch, n, dtype).requires_grad_()
        y = ALL[name](A)
        G = functions_matrix.randn(*y.shape, dtype=y.dtype)
        expected = outcome(lambda: torch.autograd.grad(y, A, plain(G, kind), retain_graph=True)[0])  # noqa: B023
        got = outcome(lambda: torch.autograd.grad(y, A, GRADIENTS[kind](G), retain_graph=True)[0])  # noqa: B023
        assert_same(got, expected)


@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_gradients_of_eigenvalues_and_eigenvectors_may_be_awkward_together(dtype):
    A = positive(20, 4, dtype).requires_grad_()
    L, V = eg.eigh(A)
    gL, gV = functions_matrix.randn(20, 4, dtype=dtype), functions_matrix.randn(20, 4, 4, dtype=dtype)
    for first in GRADIENTS:
        for second in GRADIENTS:
            awkward = GRADIENTS[first](gL), GRADIENTS[second](gV)
            (got,) = torch.autograd.grad((L, V), A, awkward, retain_graph=True)
            ordinary = plain(gL, first), plain(gV, second)
            (expected,) = torch.autograd.grad((L, V), A, ordinary, retain_graph=True)
            assert_same(got, expected)


def test_the_sign_of_eigenvectors_has_gradient_zero():
    A = positive(3, 4, torch.float32).requires_grad_()
    torch.sgn(eg.eigh(A)[1]).sum().backward()  # sends zeros without memory
    assert not A.grad.any()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_meta_matrix_gives_a_meta_result_or_an_error(name):
    got = outcome(lambda: FUNCTIONS[name](torch.empty(3, 4, 4, device="meta")))
    assert isinstance(got, type) or got.is_meta


def test_a_functional_tensor_is_never_given_to_a_kernel():
    A = positive(3, 4, torch.float64)
    assert not can_read(torch._to_functional_tensor(A))
    got = outcome(lambda: torch._from_functional_tensor(eg.eigh(torch._to_functional_tensor(A))[0]))
    assert_same(got, eg.eigh(A)[0], refusable=True)


def test_a_tensor_whose_storage_was_freed_is_refused():
    G = torch.ones(3, 4, 4)
    G.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="storage was freed"):
        readable(G, torch.float32, 48)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@over_functions
def test_hooks_that_compress_what_is_saved_cost_precision_alone(name, dtype):
    A = positive(6, 4, dtype).requires_grad_()
    exact = ALL[name](A)
    G = functions_matrix.randn(*exact.shape, dtype=exact.dtype)
    narrow = torch.complex64 if dtype.is_complex else torch.float16
    with saved_tensors_hooks(
        lambda x: x.to(narrow if x.is_complex() or not dtype.is_complex else torch.float32) if _floating(x) else x,
        lambda x: x.to(torch.complex64 if x.is_complex() else torch.float32) if _floating(x) else x,
    ):
        compressed = ALL[name](A)
    expected = outcome(lambda: torch.autograd.grad(exact, A, G)[0])
    got = outcome(lambda: torch.autograd.grad(compressed, A, G)[0])
    if isinstance(expected, type) or isinstance(got, type):
        # Operations of torch that a function is composed of refuse a type that is not theirs.
        assert isinstance(got, type)
        return
    assert got.dtype == expected.dtype
    if not name.startswith(("eigh", "svd")):  # which multiply an error by the inverse of a gap
        assert functions_matrix.relative_error(got, expected) < 0.2
    assert got.isfinite().all()


def _floating(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def test_hooks_that_return_another_shape_are_refused():
    A = positive(6, 4, torch.float64).requires_grad_()
    for call in (eg.matrix_sqrt, lambda A: eg.eigh(A)[1]):
        with saved_tensors_hooks(lambda x: x, lambda x: x[:1]):
            y = call(A)
        with pytest.raises(RuntimeError, match="shape"):
            torch.autograd.grad(y, A, torch.randn_like(y))


# Layers ---------------------------------------------------------------------------------------------------------------

MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "whiten_color content": lambda x: functional.whiten_color(x, _style(x), groups=2, eps=1e-2),
    "whiten_color style": lambda x: functional.whiten_color(_style(x), x, groups=2, eps=1e-2),
    "whiten_color batch": lambda x: functional.whiten_color(x, _style(x), per_sample=False, eps=1e-2),
    "whiten_color saturate": lambda x: functional.whiten_color(x, _style(x), eps=1e-2, gradient="saturate"),
    "WhitenColor2d": lambda x: WhitenColor2d(8, eps=1e-2)(x, _style(x)),
    "second_order_pool": lambda x: functional.second_order_pool(x),
    "SecondOrderPool2d": lambda x: SecondOrderPool2d(8)(x),
}


def _style(x: Tensor) -> Tensor:
    return layers_matrix.features(*x.shape, dtype=x.dtype, seed=5)


def _layer(entry: Any, training: bool, x: Tensor) -> Tensor:
    layer = layers_matrix.randomize(entry.make(8, 4, x.dtype, group_size=4)).train(training)
    return layer(x)


for _entry in layers_matrix.DETERMINISTIC:
    MAPS[str(_entry)] = functools.partial(_layer, _entry, True)
    MAPS[f"{_entry} in evaluation"] = functools.partial(_layer, _entry, False)

over_maps = pytest.mark.parametrize("name", MAPS)
over_formats = pytest.mark.parametrize("layout", ["contiguous", "channels_last"])


def feature_map(dtype: torch.dtype, layout: str) -> Tensor:
    return layers_matrix.FORMATS[layout](layers_matrix.features(4, 8, 5, 6, dtype=dtype))


@pytest.mark.sample(2)
@over_kinds
@over_formats
@pytest.mark.parametrize("dtype", REAL, ids=str)
@over_maps
def test_a_layer_maps_awkward_features_as_plain_ones(name, dtype, layout, kind):
    x = feature_map(dtype, layout)
    with same_solver("" if name.endswith("in evaluation") else kind):  # where S is not of x
        expected = outcome(lambda: MAPS[name](plain(x, kind)))
    with torch.set_grad_enabled(kind != "inference"):  # which torch does not save for a backward pass
        got = outcome(lambda: MAPS[name](KINDS[kind](x)))
    assert_same(got, expected, refusable=kind == "wrapped")


@pytest.mark.sample(2)
@over_gradients
@over_formats
@pytest.mark.parametrize("dtype", REAL, ids=str)
@over_maps
def test_an_awkward_gradient_of_a_layer_gives_what_the_plain_one_gives(name, dtype, layout, kind):
    x = feature_map(dtype, layout).requires_grad_()
    y = MAPS[name](x)
    G = functions_matrix.randn(*y.shape, dtype=y.dtype)
    (expected,) = torch.autograd.grad(y, x, plain(G, kind), retain_graph=True)
    (got,) = torch.autograd.grad(y, x, GRADIENTS[kind](G), retain_graph=True)
    assert_same(got, expected)


@pytest.mark.sample(2)
@over_formats
@pytest.mark.parametrize("dtype", REAL, ids=str)
@over_maps
def test_hooks_that_compress_what_a_layer_saves_cost_precision_alone(name, dtype, layout):
    x = feature_map(dtype, layout).requires_grad_()
    exact = MAPS[name](x)
    with saved_tensors_hooks(lambda t: t.half() if _floating(t) else t, lambda t: t.float() if _floating(t) else t):
        compressed = MAPS[name](x)
    G = functions_matrix.randn(*exact.shape, dtype=dtype)
    expected = torch.autograd.grad(exact, x, G)[0]
    got = outcome(lambda: torch.autograd.grad(compressed, x, G)[0])
    if isinstance(got, type):  # of an operation of torch that a layer is composed of
        assert dtype == torch.float64
        assert got is RuntimeError
        return
    assert functions_matrix.relative_error(got, expected) < 0.05


# Parameters -----------------------------------------------------------------------------------------------------------

over_parameters = pytest.mark.parametrize("parameter", ["weight", "bias"])
over_layers = pytest.mark.parametrize("entry", layers_matrix.DEFAULTS, ids=str)
over_modes = pytest.mark.parametrize("training", [True, False])


def _with(entry: Any, parameter: str, value: Tensor, training: bool, grad: bool = True) -> Any:
    layer = layers_matrix.randomize(entry.make(8, 4, torch.float64, group_size=4)).train(training)
    setattr(layer, parameter, nn.Parameter(value, requires_grad=grad))
    return layer


@pytest.mark.sample(2)
@over_kinds
@over_parameters
@over_modes
@over_layers
def test_an_awkward_parameter_counts_as_the_plain_one(entry, training, parameter, kind):
    x, value = feature_map(torch.float64, "contiguous"), torch.linspace(-1, 2, 8, dtype=torch.float64)
    grad = kind != "inference"

    def run(value: Tensor) -> Tensor:
        layer, z = _with(entry, parameter, value, training, grad), x.clone().requires_grad_(grad)
        y = layer(z)
        if not grad:
            return y
        layers_matrix.wavy(y).backward()
        gradients = [z.grad, layer.weight.grad, layer.bias.grad, y.detach()]
        return torch.cat([(g.a if isinstance(g, TwoTensor) else g).flatten() for g in gradients])

    with torch.set_grad_enabled(grad):  # torch does not save inference tensors for a backward pass
        assert_same(run(KINDS[kind](value)), run(plain(value, kind)))


@pytest.mark.parametrize("count", [1, 4, 16])
@over_parameters
@over_modes
@over_layers
def test_a_parameter_of_another_shape_is_refused_by_name(entry, training, parameter, count):
    layer = layers_matrix.randomize(entry.make(8, 4, torch.float64)).train(training)
    getattr(layer, parameter).data = torch.ones(count, dtype=torch.float64)
    with pytest.raises(ValueError, match=rf"{parameter} must have shape \(8,\); got \({count},\)"):
        layer(feature_map(torch.float64, "contiguous"))


@over_parameters
@over_modes
@over_layers
def test_a_parameter_without_numbers_is_refused_by_name(entry, training, parameter):
    layer = _with(entry, parameter, torch.empty(8, device="meta"), training)
    with pytest.raises(RuntimeError, match=f"{parameter} must be on cpu, as the input is; got meta"):
        layer(feature_map(torch.float64, "contiguous"))


@over_parameters
def test_a_parameter_that_is_not_real_is_refused_by_name(parameter):
    layer = DecorrelatedBatchNorm2d(8)
    setattr(layer, parameter, nn.Parameter(torch.ones(8, dtype=torch.complex64)))
    with pytest.raises(TypeError, match=f"{parameter} must be dense and of a floating-point type"):
        layer(torch.randn(4, 8, 3, 3))


# The door to memory ---------------------------------------------------------------------------------------------------


def test_addresses_are_asked_for_in_one_file():
    source = Path(kernels.__file__).parent.parent
    found = {str(p.relative_to(source)) for p in source.rglob("*.py") if re.search(r"\.data_ptr\b", p.read_text())}
    # The second asks only whether there is one, the third tells storages apart.
    assert found == {"kernels/memory.py", "_execution.py", "lab/tensors.py"}
