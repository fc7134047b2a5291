"""eigengrad.linalg as torch.linalg: signatures, values, gradients, ``out=``, and everything else torch's own."""

import inspect
import re

import pytest
import torch
from torch.autograd import gradcheck

import eigengrad as eg
import eigengrad.linalg as LA  # noqa: N812
from eigengrad.testing import random_hermitian, random_matrix

#: Each with what it takes, how it is called, and a loss that has a gradient for separated values.
CALLS = {
    "eigh": ("hermitian", lambda m, A: m.eigh(A), lambda r: (r.eigenvectors.abs() ** 4).sum() + r.eigenvalues.sum()),
    "eigh of the upper triangle": ("hermitian", lambda m, A: m.eigh(A, "U"), lambda r: (r[1].abs() ** 4).sum()),
    "eigvalsh": ("hermitian", lambda m, A: m.eigvalsh(A), lambda r: (r**3).sum()),
    "eigvalsh of the upper triangle": ("hermitian", lambda m, A: m.eigvalsh(A, UPLO="U"), lambda r: (r**3).sum()),
    "svd": ("matrix", lambda m, A: m.svd(A, False), lambda r: (r.U.abs() ** 4).sum() + (r.Vh.abs() ** 4).sum()),
    "full svd": ("square", lambda m, A: m.svd(A), lambda r: (r.U.abs() ** 4).sum() + r.S.sum()),
    "svdvals": ("matrix", lambda m, A: m.svdvals(A), lambda r: (r**3).sum()),
    "pinv": ("matrix", lambda m, A: m.pinv(A), lambda r: (r.abs() ** 2).sum()),
    "pinv with rcond": ("matrix", lambda m, A: m.pinv(A, 1e-3), lambda r: (r.abs() ** 2).sum()),
    "pinv with tolerances": ("matrix", lambda m, A: m.pinv(A, atol=0.1, rtol=0.1), lambda r: (r.abs() ** 2).sum()),
    "hermitian pinv": ("hermitian", lambda m, A: m.pinv(A, hermitian=True), lambda r: (r.abs() ** 2).sum()),
    "cond": ("matrix", lambda m, A: m.cond(A), lambda r: r.sum()),
    "cond 2": ("matrix", lambda m, A: m.cond(A, 2), lambda r: r.sum()),
    "cond -2": ("matrix", lambda m, A: m.cond(A, p=-2), lambda r: r.sum()),
    "cond nuc": ("square", lambda m, A: m.cond(A, "nuc"), lambda r: r.sum()),
    "cond fro": ("square", lambda m, A: m.cond(A, "fro"), lambda r: r.sum()),
    "matrix_norm": ("matrix", lambda m, A: m.matrix_norm(A), lambda r: r.sum()),
    "matrix_norm nuc": ("matrix", lambda m, A: m.matrix_norm(A, "nuc"), lambda r: r.sum()),
    "matrix_norm 2": ("matrix", lambda m, A: m.matrix_norm(A, 2), lambda r: r.sum()),
    "matrix_norm -2": ("matrix", lambda m, A: m.matrix_norm(A, -2, keepdim=True), lambda r: r.sum()),
    "matrix_norm inf": ("matrix", lambda m, A: m.matrix_norm(A, torch.inf), lambda r: r.sum()),
    "matrix_norm of others": ("matrix", lambda m, A: m.matrix_norm(A, "nuc", (0, -1), True), lambda r: (r**2).sum()),
    "norm": ("matrix", lambda m, A: m.norm(A), lambda r: r.sum()),
    "norm nuc": ("matrix", lambda m, A: m.norm(A, "nuc", dim=(-1, -2)), lambda r: (r**2).sum()),
    "norm 2": ("matrix", lambda m, A: m.norm(A[0], 2), lambda r: r.sum()),
    "norm of vectors": ("matrix", lambda m, A: m.norm(A, 2, dim=-1), lambda r: r.sum()),
    "matrix_rank": ("matrix", lambda m, A: m.matrix_rank(A), None),
    "hermitian matrix_rank": ("hermitian", lambda m, A: m.matrix_rank(A, hermitian=True), None),
}
DOUBLE = [torch.float64, torch.complex128]


def an_input(kind, dtype, values=(3.0, 2.0, 1.0), batch=(2,)):
    """Matrices with the given eigenvalues or singular values."""
    generator = torch.Generator().manual_seed(3)
    values = torch.tensor(values, dtype=torch.float64).expand(*batch, -1)
    if kind == "hermitian":
        return random_hermitian(values.flip(-1), generator, dtype)
    n = values.shape[-1]
    return random_matrix(values, n + (kind == "matrix"), n, generator, dtype)


def results(r):
    return tuple(r) if isinstance(r, tuple) else (r,)


# Names and signatures -----------------------------------------------------------------------------------------------


def documented(name):
    """The arguments that torch's documents name, with their defaults as written."""
    line = getattr(torch.linalg, name).__doc__.strip().splitlines()[0]
    arguments = re.search(r"\((.*?)\) ->", line).group(1)
    for found in re.finditer(r"(\*|\w+)(?:=(\([^)]*\)|[^,]+))?(?:, |$)", arguments):
        yield found.group(1), found.group(2)


@pytest.mark.parametrize("name", ["cond", "eigh", "eigvalsh", "matrix_norm", "norm", "svd", "svdvals"])
def test_signatures_are_those_in_torchs_documents(name):
    ours = inspect.signature(getattr(LA, name)).parameters
    keyword_only = False
    for (argument, default), (mine, parameter) in zip(
        [a for a in documented(name) if a[0] != "*"], [p for p in ours.items() if p[0] != "gradient"], strict=True
    ):
        keyword_only = keyword_only or argument in ("out", "dtype", "driver")
        if (name, argument) == ("norm", "A"):  # in the documents of torch 2.6, whose function takes `input`
            argument = "input"
        assert mine == argument
        assert (parameter.kind is parameter.KEYWORD_ONLY) == keyword_only
        written = inspect.Parameter.empty if default is None else eval(default)
        assert parameter.default == written
    if "gradient" in ours:
        assert ours["gradient"].default == inspect.signature(eg.eigh).parameters["gradient"].default


@pytest.mark.parametrize("keyword", ["input", "x", "a"])
def test_the_first_argument_has_the_names_that_torch_accepts(keyword):
    A = an_input("hermitian", torch.float64).requires_grad_()
    for name in ("eigh", "eigvalsh", "pinv", "cond", "matrix_norm", "norm", "matrix_rank"):
        for x, y in zip(
            results(getattr(LA, name)(**{keyword: A})), results(getattr(torch.linalg, name)(A)), strict=True
        ):
            torch.testing.assert_close(x.abs(), y.abs())


def test_everything_else_is_torchs_own():
    for name in dir(torch.linalg):
        if not name.startswith("_"):
            assert name in dir(LA)
            if name not in ("cond", "eigh", "eigvalsh", "matrix_norm", "norm", "svd", "svdvals"):
                assert getattr(LA, name) is getattr(torch.linalg, name)
    general = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    assert torch.equal(LA.matrix_exp(general), torch.tensor([[1.0, 1.0], [0.0, 1.0]]))
    assert torch.equal(LA.matrix_power(general, 2), torch.zeros(2, 2))
    with pytest.raises(AttributeError, match=r"nor has torch\.linalg"):
        LA.nothing_of_the_kind  # noqa: B018
    with pytest.raises(ImportError):
        from eigengrad.linalg import nothing_of_the_kind  # noqa: F401


# Values and gradients -----------------------------------------------------------------------------------------------


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("batch", [(2,), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_values_are_those_of_torch(name, batch, dtype):
    kind, call, _ = CALLS[name]
    A = an_input(kind, dtype, batch=batch)
    if name == "norm 2":
        A = A.reshape(-1, *A.shape[-2:])
        if not len(A):
            return
    for requires_grad in (False, True):
        actual, expected = (call(m, A.clone().requires_grad_(requires_grad)) for m in (LA, torch.linalg))
        assert type(actual) is type(expected)
        for x, y in zip(results(actual), results(expected), strict=True):
            assert (x.shape, x.dtype, x.requires_grad) == (y.shape, y.dtype, y.requires_grad)
            x, y = (x.detach().abs(), y.detach().abs()) if isinstance(actual, tuple) else (x.detach(), y.detach())
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5) if dtype == torch.float32 else (
                torch.testing.assert_close(x, y)
            )


@pytest.mark.parametrize("dtype", DOUBLE, ids=str)
@pytest.mark.parametrize("name", [name for name, (_, _, loss) in CALLS.items() if loss])
def test_gradients_are_those_of_torch_away_from_ties(name, dtype):
    kind, call, loss = CALLS[name]
    A = an_input(kind, dtype)
    if name == "cond fro":
        pytest.skip("torch fails to differentiate it")
    actual, expected = (
        torch.autograd.grad(loss(call(m, X)), X)[0] for m in (LA, torch.linalg) for X in [A.clone().requires_grad_()]
    )
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-8)


TIES = {"identity": (1.0, 1.0, 1.0), "repeated": (2.0, 1.0, 1.0), "deficient": (2.0, 0.0, 0.0), "zero": (0.0, 0.0, 0.0)}


@pytest.mark.sample(2)
@pytest.mark.filterwarnings("ignore::eigengrad.errors.GradientWarning")
@pytest.mark.parametrize("dtype", DOUBLE, ids=str)
@pytest.mark.parametrize("tie", TIES)
@pytest.mark.parametrize("name", [name for name, (_, _, loss) in CALLS.items() if loss])
def test_gradients_are_finite_at_ties(name, tie, dtype):
    kind, call, loss = CALLS[name]
    if name.startswith("cond") and tie in ("deficient", "zero"):
        pytest.skip("the condition number is infinite, and so is its gradient")
    for A in (an_input(kind, dtype, TIES[tie]), torch.diag(torch.tensor(TIES[tie], dtype=dtype)).expand(2, 3, 3)):
        X = A.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(call(LA, X)), X)
        assert torch.isfinite(gradient).all()


@pytest.mark.filterwarnings("ignore::eigengrad.errors.GradientWarning")
@pytest.mark.parametrize("tie", ["identity", "repeated"])
@pytest.mark.parametrize(
    "name", ["eigvalsh", "svdvals", "cond", "cond nuc", "matrix_norm nuc", "matrix_norm 2", "norm 2"]
)
def test_second_derivatives_are_finite_at_ties_where_torchs_are_not(name, tie):
    _, call, loss = CALLS[name]
    finite = {}
    for m in (LA, torch.linalg):
        X = torch.diag(torch.tensor(TIES[tie], dtype=torch.float64)).expand(2, 3, 3).clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(call(m, X)), X, create_graph=True)
        (second,) = torch.autograd.grad(gradient.pow(3).sum(), X)
        finite[m] = bool(torch.isfinite(second).all())
    assert finite == {LA: True, torch.linalg: False}


@pytest.mark.parametrize("name", ["eigvalsh", "svdvals", "cond", "cond nuc", "matrix_norm nuc", "norm nuc", "pinv"])
def test_gradients_and_tangents_are_those_of_differences(name):
    kind, call, _ = CALLS[name]
    A = an_input(kind, torch.float64, batch=(1,)).requires_grad_()

    def function(A):
        return call(LA, (A + A.mT) / 2 if kind == "hermitian" else A)

    assert gradcheck(function, A, check_forward_ad=True)


def test_the_nuclear_norm_of_a_deficient_matrix_has_the_subgradient_of_least_norm():
    A = torch.diag(torch.tensor([2.0, 2.0, 0.0])).requires_grad_()
    for norm in (LA.matrix_norm, LA.norm):
        (gradient,) = torch.autograd.grad(norm(A, "nuc"), A)
        torch.testing.assert_close(gradient, torch.diag(torch.tensor([1.0, 1.0, 0.0])))


def test_rules_are_chosen_by_name():
    A = torch.diag(torch.tensor([1.0, 1.0, 2.0])).requires_grad_()
    G = torch.arange(9.0).reshape(3, 3)
    for function in (LA.eigh, LA.svd):
        mine = getattr(eg, function.__name__)
        for rule in ("mask", eg.Clip(threshold=3.0)):
            vectors = 1 if function is LA.eigh else 0
            actual, expected = (
                torch.autograd.grad((f(A, gradient=rule)[vectors] * G).sum(), A)[0] for f in (function, mine)
            )
            assert torch.equal(actual, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("order", ["nuc", 2, -2])
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [(-2, -1), (0, 2), [2, 0], (1, -3)], ids=str)
def test_matrix_norms_in_any_dimensions_and_type(dim, keepdim, order, dtype, generator):
    A = torch.randn(3, 4, 5, generator=generator).requires_grad_()
    arguments = (order, dim, keepdim)
    actual, expected = (m.matrix_norm(A, *arguments, dtype=dtype) for m in (LA, torch.linalg))
    torch.testing.assert_close(actual, expected)
    weights = torch.randn(actual.shape, generator=generator, dtype=dtype)
    gradients = (torch.autograd.grad((r * weights).sum(), A)[0] for r in (actual, expected))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(LA.norm(A, *arguments, dtype=dtype), expected)


# out=, driver= and errors -------------------------------------------------------------------------------------------

WITH_OUT = [
    "eigh",
    "eigvalsh",
    "svd",
    "svdvals",
    "pinv",
    "cond",
    "cond nuc",
    "matrix_norm nuc",
    "norm nuc",
    "matrix_rank",
]


#: What torch does not differentiate with ``out=``; the others it copies there, with a gradient.
DECOMPOSITIONS = ("eigh", "eigvalsh", "svd", "svdvals", "pinv")


def out_call(name, m, A, out):
    function, *order = name.split()
    return getattr(m, function)(A, *order, out=out)


@pytest.mark.parametrize("name", WITH_OUT)
def test_out_is_filled_as_by_torch(name):
    A = an_input("hermitian" if name.startswith("eig") else "square", torch.float64, batch=())
    expected = out_call(name, torch.linalg, A, None)
    several = isinstance(expected, tuple)
    out = tuple(torch.empty(0, dtype=x.dtype) for x in results(expected))
    returned = out_call(name, LA, A, out if several else out[0])
    for x, y, z in zip(out, results(returned), results(expected), strict=True):
        assert x is y
        torch.testing.assert_close(x, z)


@pytest.mark.parametrize("name", WITH_OUT[:-1])
def test_out_is_refused_as_by_torch(name):
    A = an_input("hermitian" if name.startswith("eig") else "square", torch.float64, batch=())
    expected = out_call(name, torch.linalg, A, None)
    several = isinstance(expected, tuple)
    out = tuple(torch.empty(x.shape, dtype=torch.int8) for x in results(expected))
    messages = []
    for m in (LA, torch.linalg):
        with pytest.raises(RuntimeError) as caught:
            out_call(name, m, A, out if several else out[0])
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    if name in DECOMPOSITIONS:
        out = tuple(torch.empty_like(x) for x in results(expected))
        with pytest.raises(RuntimeError, match="support automatic differentiation"):
            out_call(name, LA, A.clone().requires_grad_(), out if several else out[0])


@pytest.mark.parametrize(
    "call",
    [
        lambda m, A: m.svd(A, driver="gesvd"),
        lambda m, A: m.svdvals(A, driver="gesvdj"),
        lambda m, A: m.svd(A, driver="no such thing"),
        lambda m, A: m.cond(A, 3),
        lambda m, A: m.cond(A[..., :2], "nuc"),
        lambda m, A: m.matrix_norm(A, "nuc", dim=(0, 0)),
        lambda m, A: m.matrix_norm(A, "nuc", dim=(0, 7)),
        lambda m, A: m.matrix_norm(A, "nuc", dim=0),
        lambda m, A: m.matrix_norm(A, "nuc", dtype=torch.complex128),
        lambda m, A: m.matrix_norm(A, 2, dtype=torch.float16),
        lambda m, A: m.matrix_norm(A, "no such norm"),
        lambda m, A: m.matrix_norm(A[0, 0], "nuc"),
        lambda m, A: m.norm(A, "nuc"),
        lambda m, A: m.norm(A, 2),
        lambda m, A: m.norm(A, "nuc", dim=0),
        lambda m, A: m.norm(A.detach().int(), "nuc", dim=(0, 1)),
        lambda m, A: m.svdvals(A[0, 0]),
        lambda m, A: m.svdvals([[1.0]]),
        lambda m, A: m.norm([1.0], 2),
        lambda m, A: m.cond([[1.0]]),
    ],
)
def test_what_torch_refuses_is_refused_in_its_words(call):
    A = torch.eye(3).expand(2, 3, 3).clone().requires_grad_()
    caught = []
    for m in (LA, torch.linalg):
        with pytest.raises((RuntimeError, TypeError, IndexError, ValueError)) as error:
            call(m, A)
        # A TypeError lists what came, in which a positional argument differs from a named one.
        caught.append((error.type, "" if error.type is TypeError else str(error.value)))
    assert caught[0] == caught[1]


# In place of torch's by hand ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::eigengrad.errors.GradientWarning")
@pytest.mark.parametrize("module", [eg, LA], ids=["eigengrad", "eigengrad.linalg"])
def test_functions_put_in_torchs_place_do_not_call_themselves(module, monkeypatch):
    for name in ("eigh", "svd", *(LA.__all__ if module is LA else ())):
        monkeypatch.setattr(torch.linalg, name, getattr(module, name))
    A = torch.eye(3, requires_grad=True)
    for driver in ("lapack", "batched"):
        eg.eigh(A, driver=driver)
        eg.svd(A, driver=driver)
    U, S, _ = torch.linalg.svd(A)
    L, V = torch.linalg.eigh(A)
    loss = U[0].sum() + V[0].sum() + S.sum() + L.sum() + eg.polar(A).U.sum() + eg.matrix_sqrt(A).sum()
    if module is LA:
        loss = loss + torch.linalg.norm(A, "nuc") + torch.linalg.cond(A) + torch.linalg.pinv(A).sum()
        loss = loss + torch.linalg.matrix_norm(A, 2) + torch.linalg.svdvals(A)[0] + torch.linalg.eigvalsh(A)[0]
        assert torch.linalg.matrix_rank(A) == 3
    loss.backward()
    assert torch.isfinite(A.grad).all()


def test_the_module_put_in_torchs_place_does_not_call_itself(monkeypatch):
    A = torch.eye(3, requires_grad=True)
    monkeypatch.setattr(torch, "linalg", LA)
    torch.linalg.svd(A).S.sum().backward()
    assert torch.linalg.qr(A).R.shape == (3, 3)
    assert torch.isfinite(A.grad).all()


# Transforms and compilation -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [name for name, (_, _, loss) in CALLS.items() if loss and name != "matrix_norm of others"]
)
def test_vmap_of_gradients(name):
    kind, call, loss = CALLS[name]
    A = an_input(kind, torch.float64, batch=(4, 1))
    gradient = torch.func.grad(lambda A: loss(call(LA, A)))
    torch.testing.assert_close(torch.func.vmap(gradient)(A), torch.stack([gradient(X) for X in A]))


@pytest.mark.parametrize("name", ["eigh", "svd", "svdvals", "cond", "matrix_norm nuc", "norm nuc", "norm of vectors"])
def test_compiled_whole(name, dynamo):
    kind, call, loss = CALLS[name]
    A = an_input(kind, torch.float64)

    def function(A):
        return loss(call(LA, A))

    expected, actual = (
        torch.autograd.grad(f(X), X)[0]
        for f in (function, torch.compile(function, fullgraph=True, backend="aot_eager"))
        for X in [A.clone().requires_grad_()]
    )
    torch.testing.assert_close(actual, expected)
