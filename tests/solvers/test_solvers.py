"""What is refused and how it is said; what happens when LAPACK fails."""

import copy
import pickle
import re

import pytest
import torch
from torch.linalg import LinAlgError

import eigengrad as eg
from eigengrad.solvers import lapack
from eigengrad.testing import SPECTRA, random_hermitian

BAD = [torch.nan, torch.inf, -torch.inf]
DECOMPOSITIONS = {"eigh": eg.eigh, "svd": eg.svd}

decompositions = pytest.mark.parametrize("name", DECOMPOSITIONS)


# Non-finite input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", BAD, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.complex64], ids=str)
@pytest.mark.parametrize(
    ("batch", "index", "element"),
    [((), (), "the matrix"), ((3,), (1,), "batch element 1 "), ((2, 3), (1, 2), r"batch element \(1, 2\)")],
)
@decompositions
def test_non_finite_entry_is_named_with_its_matrix(name, batch, index, element, dtype, value):
    A = torch.eye(3, dtype=dtype).repeat(*batch, 1, 1)
    A[(*index, 2, 0)] = value
    with pytest.raises(eg.NonFiniteError, match=f"{name}: {element}.*1 non-finite entry") as error:
        DECOMPOSITIONS[name](A)
    assert error.value.index == index
    assert isinstance(error.value, LinAlgError)


def test_first_bad_matrix_and_the_number_of_its_entries_are_named():
    A = torch.eye(3).repeat(4, 1, 1)
    A[2, :, 0] = torch.nan
    A[3] = torch.inf
    with pytest.raises(eg.NonFiniteError, match="batch element 2 of A has 3 non-finite entries"):
        eg.eigh(A)


@pytest.mark.parametrize("value", BAD, ids=str)
@pytest.mark.parametrize(("UPLO", "unread"), [("L", (0, 2)), ("U", (2, 0)), ("l", (0, 2)), ("u", (2, 0))])
def test_entry_in_the_unread_triangle_does_not_matter(UPLO, unread, value, generator):
    clean = random_hermitian(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64), generator)
    A = clean.clone()
    A[unread] = value
    A.requires_grad_()
    L, V = eg.eigh(A, UPLO)
    torch.testing.assert_close(L.detach(), torch.linalg.eigvalsh(clean))
    (L.sum() + (V[0] ** 4).sum()).backward()
    assert A.grad.isfinite().all()
    with pytest.raises(eg.NonFiniteError):
        eg.eigh(A.detach(), "U" if UPLO.upper() == "L" else "L")


@decompositions
def test_numbers_whose_sum_overflows_are_finite(name):
    A = torch.full((3, 3), torch.finfo(torch.float32).max / 8)
    values = DECOMPOSITIONS[name](A)[0 if name == "eigh" else 1]
    assert values.isfinite().all()


@decompositions
def test_failure_for_want_of_the_check_is_not_blamed_on_convergence(name):
    """Without the check NaN reaches LAPACK, which refuses it: the message must not say that A is finite."""
    A = torch.eye(3).repeat(2, 1, 1)
    A[1] = torch.nan
    with pytest.raises(LinAlgError, match="batch element 1 ") as error:
        DECOMPOSITIONS[name](A, check_finite=False)
    assert "it is finite" not in str(error.value)


@decompositions
def test_check_works_under_vmap(name):
    A = torch.eye(3).repeat(4, 1, 1)
    A[2, 1, 1] = torch.nan
    with pytest.raises(eg.NonFiniteError, match="batch element 2 "):
        torch.func.vmap(lambda A: tuple(DECOMPOSITIONS[name](A)))(A)


# LAPACK fails -------------------------------------------------------------------------------------------------------


@pytest.fixture
def failing(monkeypatch):
    """Let a decomposition of torch.linalg fail for certain matrices, as LAPACK does when it does not converge."""

    def install(name, fails):
        original = getattr(torch.linalg, name)
        calls = []

        def fake(A, *arguments, **keywords):
            calls.append(A.dtype)
            if fails(A):
                raise LinAlgError(f"linalg.{name}: The algorithm failed to converge")
            return original(A, *arguments, **keywords)

        monkeypatch.setattr(lapack, f"_torch_{name}", fake)
        return calls

    return install


@pytest.mark.parametrize(
    ("dtype", "wide"), [(torch.float32, torch.float64), (torch.complex64, torch.complex128)], ids=str
)
@decompositions
def test_failure_is_tried_again_in_double_precision(name, dtype, wide, failing, generator):
    A = random_hermitian(SPECTRA["separated"]((2, 5), generator), generator, dtype)
    expected = DECOMPOSITIONS[name](A, driver="lapack")
    calls = failing(name, lambda A: A.dtype != wide)
    A.requires_grad_()
    actual = DECOMPOSITIONS[name](A, driver="lapack")
    assert calls == [dtype, wide]
    assert [x.dtype for x in actual] == [x.dtype for x in expected]
    values = 0 if name == "eigh" else 1
    torch.testing.assert_close(actual[values].detach(), expected[values])
    actual[values].sum().backward()
    assert A.grad.isfinite().all()


@pytest.mark.parametrize(
    ("batch", "index", "element"),
    [((), (), "the matrix"), ((4,), (2,), "batch element 2 "), ((2, 2), (1, 0), r"batch element \(1, 0\)")],
)
@decompositions
def test_failure_in_double_precision_too_names_the_matrix(name, batch, index, element, failing):
    A = torch.eye(3).repeat(*batch, 1, 1)
    A[(*index, 0, 0)] = 7.0
    failing(name, lambda A: bool((A == 7).any()))
    with pytest.raises(eg.ConvergenceError, match=f"{name}: {element}.*did not converge.*float64") as error:
        DECOMPOSITIONS[name](A, driver="lapack")
    assert error.value.index == index
    assert isinstance(error.value, LinAlgError)
    assert isinstance(error.value.__cause__, LinAlgError)


def test_other_errors_are_passed_on(monkeypatch):
    def broken(A, UPLO):
        raise MemoryError("no memory")

    monkeypatch.setattr(lapack, "_torch_eigh", broken)
    with pytest.raises(MemoryError, match="no memory"):
        eg.eigh(torch.eye(2), driver="lapack")


# Misuse -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("A", "error", "message"),
    [
        (torch.ones(3), ValueError, "A must have shape (..., m, n); got (3,)"),
        (torch.tensor(1.0), ValueError, "A must have shape (..., m, n); got ()"),
        (torch.ones(2, 2, dtype=torch.int64), TypeError, "got torch.int64"),
        (torch.ones(2, 2, dtype=torch.bool), TypeError, "got torch.bool"),
        ([[1.0]], TypeError, "A must be a torch.Tensor; got list"),
    ],
    ids=str,
)
@decompositions
def test_what_is_no_matrix_is_refused_with_what_came(name, A, error, message):
    with pytest.raises(error, match=re.escape(message)) as raised:
        DECOMPOSITIONS[name](A)
    assert str(raised.value).startswith(name)


@pytest.mark.parametrize("shape", [(2, 3), (5, 3, 2)], ids=str)
def test_eigh_of_a_matrix_that_is_not_square_is_refused(shape):
    with pytest.raises(ValueError, match=re.escape(f"eigh: A must be square, of shape (..., n, n); got {shape}")):
        eg.eigh(torch.ones(shape))


@pytest.mark.parametrize("UPLO", ["X", "", "LU", None, 1])
def test_bad_triangle_is_refused_with_the_choices(UPLO):
    with pytest.raises(ValueError, match=re.escape(f"UPLO: got {UPLO!r}; expected one of 'L', 'U'")):
        eg.eigh(torch.eye(2), UPLO)


@decompositions
def test_bad_driver_is_refused_with_the_choices(name):
    with pytest.raises(ValueError, match=r"driver: got 'magic'; expected one of .*'lapack'"):
        DECOMPOSITIONS[name](torch.eye(2), driver="magic")


@pytest.mark.parametrize("driver", [None, "lapack", "batched"])  # the others are for CUDA
@decompositions
def test_every_driver_decomposes(name, driver, generator):
    A = random_hermitian(SPECTRA["ties"]((3, 6), generator), generator)
    outputs = DECOMPOSITIONS[name](A, driver=driver)
    product = (
        (lambda L, V: (V * L.unsqueeze(-2)) @ V.mH) if name == "eigh" else (lambda U, S, Vh: (U * S.unsqueeze(-2)) @ Vh)
    )
    torch.testing.assert_close(product(*outputs), A)


@decompositions
def test_options_are_keywords_only(name):
    with pytest.raises(TypeError, match="positional"):
        DECOMPOSITIONS[name](torch.eye(2), "L" if name == "eigh" else True, "taylor")


@pytest.mark.parametrize(
    "error",
    [
        eg.NonFiniteError("eigh", (1,), 2),
        eg.ConvergenceError("svd", (0, 3)),
        eg.DomainError("matrix_log", (), -1.0, "a positive spectrum"),
        eg.GaugeError("eigh"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_come_back_from_other_processes_as_they_were(error):
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: eg.eigh(torch.eye(2), ["L"]), ValueError, r"UPLO: got \['L'\]"),
        (lambda: eg.eigh(torch.eye(2), driver=["L"]), ValueError, r"driver: got \['L'\]"),
        (lambda: eg.eigh(torch.eye(2).to_sparse()), TypeError, "eigh: A must be dense; got torch.sparse_coo"),
        (lambda: eg.procrustes(torch.eye(2), torch.full((2, 2), torch.nan)), LinAlgError, "procrustes: .* of B has 4"),
        (lambda: eg.procrustes(torch.full((2, 2), torch.nan), torch.eye(2)), LinAlgError, "procrustes: .* of A has 4"),
        (lambda: eg.procrustes(torch.ones(2, 3, 3), torch.ones(5, 3, 3)), ValueError, "must broadcast; got"),
        (lambda: eg.Taylor(10**19), ValueError, r"Taylor: degree must be at most 2\*\*53"),
    ],
)
def test_mistakes_are_named(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize(
    "function", [eg.newton_schulz_sqrt, lambda A: eg.power_iteration(A, 1).eigenvalues], ids=["newton_schulz", "power"]
)
def test_what_is_not_finite_is_named_inside_a_transform(function):
    A = torch.eye(3).repeat(4, 1, 1)
    A[2, 0, 0] = torch.nan
    with pytest.raises(eg.NonFiniteError, match="batch element 2"):
        torch.func.vmap(function)(A)


def test_a_compiled_power_iteration_takes_other_batches():
    compiled = torch.compile(lambda A: eg.power_iteration(A, 1).eigenvalues, fullgraph=True, backend="eager")
    for batch in (3, 5):
        torch.testing.assert_close(compiled(2 * torch.eye(4).repeat(batch, 1, 1)), torch.full((batch, 1), 2.0))
