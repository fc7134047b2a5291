"""The warning where a rule removes more than half of a gradient, and the numbers that GradientMonitor has of it."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import warnings

import pytest
import torch
from torch import Tensor

import eigengrad as eg
from eigengrad.testing import random_hermitian, random_matrix

F64 = torch.float64

#: A rule that removes more than half of the gradient inside the close pair of ``CLOSE``, by eigh and by svd.
REMOVING = [
    eg.Saturate(),
    eg.Saturate(rtol=0.5),
    eg.Taylor(),
    eg.Taylor(degree=0),
    eg.Clip(threshold=1.0),
    eg.Lorentzian(broadening=1e-4),
    eg.Mask(rtol=1e-2),
    eg.Truncate(rank=1),
    eg.PowerIteration(),
]
PAIR_RULES = [rule for rule in REMOVING if not isinstance(rule, eg.PowerIteration)]
CLOSE = (1.0, 1.0 + 1e-6, 2.0)
HEALTHY = (1.0, 1.7, 2.0)


def matrix(eigenvalues, dtype: torch.dtype = F64, batch: int | None = None) -> Tensor:
    L = torch.tensor(eigenvalues, dtype=F64)
    L = L if batch is None else L.expand(batch, -1)
    return random_hermitian(L, torch.Generator().manual_seed(0), dtype)


def rectangular(values, dtype: torch.dtype = F64) -> Tensor:
    S = torch.tensor(sorted(values, reverse=True), dtype=F64)
    return random_matrix(S, 4, 3, torch.Generator().manual_seed(0), dtype)


def weights(*shape: int, dtype: torch.dtype = F64) -> Tensor:
    """Numbers of both signs, without a generator, which compilers and vmap would refuse."""
    return torch.sin(torch.arange(1, math.prod(shape) + 1, dtype=dtype)).reshape(shape)


def leading_vector(A: Tensor, rule="saturate") -> Tensor:
    """A loss of the vectors themselves, up to sign."""
    V = eg.eigh(A, gradient=rule).eigenvectors
    return (V**2 * weights(*V.shape[-2:], dtype=V.dtype)).sum()


def leading_singular_vector(A: Tensor, rule="saturate") -> Tensor:
    U, _, _ = eg.svd(A, full_matrices=False, gradient=rule)
    return (U**2 * weights(*U.shape[-2:], dtype=U.dtype)).sum()


@contextlib.contextmanager
def caught(action: str = "default"):
    """The gradient warnings of a block; ``default`` is what Python does: once a line."""
    found: list[warnings.WarningMessage] = []
    with warnings.catch_warnings(record=True) as everything:
        warnings.simplefilter(action)
        yield found
    found += [w for w in everything if issubclass(w.category, eg.GradientWarning)]


def backward(loss, A: Tensor, create_graph: bool = False) -> Tensor:
    A = A.detach().clone().requires_grad_()
    return torch.autograd.grad(loss(A), A, create_graph=create_graph)[0]


def line_of(function, text: str) -> int:
    """The number of the line of a function's source that holds a text."""
    import inspect

    source, start = inspect.getsourcelines(function)
    (offset,) = (i for i, line in enumerate(source) if text in line)
    return start + offset


# Where and how often ------------------------------------------------------------------------------------------------


def one_line(A: Tensor) -> None:
    A = A.detach().clone().requires_grad_()
    (eg.eigh(A).eigenvectors ** 2 * weights(3, 3)).sum().backward()  # the first line


def another_line(A: Tensor) -> None:
    A = A.detach().clone().requires_grad_()
    (eg.eigh(A).eigenvectors ** 2 * weights(3, 3)).sum().backward()  # the second line


def test_a_loop_over_one_line_warns_once():
    with caught() as found:
        for _ in range(5):
            one_line(matrix(CLOSE))
    assert len(found) == 1


def test_two_lines_warn_twice():
    with caught() as found:
        for _ in range(3):
            one_line(matrix(CLOSE))
            another_line(matrix(CLOSE))
    assert len(found) == 2
    assert found[0].lineno != found[1].lineno


def test_the_warning_names_the_file_and_line_of_the_call_and_has_its_own_category():
    with caught() as found:
        one_line(matrix(CLOSE))
    (warning,) = found
    assert warning.category is eg.GradientWarning
    assert issubclass(eg.GradientWarning, UserWarning)
    assert warning.filename == __file__
    assert warning.lineno == line_of(one_line, "# the first line")


def test_the_line_is_that_of_the_call_even_if_backward_is_called_elsewhere():
    def call(A):
        return eg.eigh(A).eigenvectors  # here is the call

    A = matrix(CLOSE).requires_grad_()
    loss = (call(A) ** 2 * weights(3, 3)).sum()
    with caught() as found:
        loss.backward()
    assert [w.lineno for w in found] == [line_of(call, "# here is the call")]


@pytest.mark.parametrize("loss", [leading_vector, leading_singular_vector])
def test_the_text_names_the_function_the_rule_and_what_to_use_instead(loss):
    with caught() as found:
        backward(loss, matrix(CLOSE))
    text = str(found[0].message)
    assert repr(eg.Saturate()) in text
    assert "GradientMonitor" in text
    if loss is leading_vector:
        assert text.startswith("eigh: ")
        assert "matrix_sqrt" in text
        assert "spectral_projector" in text
    else:
        assert text.startswith("svd: ")
        assert "polar" in text
        assert "low_rank" in text


def test_every_function_that_the_text_recommends_exists():
    with caught() as found:
        backward(leading_vector, matrix(CLOSE))
        backward(leading_singular_vector, matrix(CLOSE))
    text = " ".join(str(w.message) for w in found)
    names = ["matrix_sqrt", "matrix_log", "matrix_function", "spectral_projector", "polar", "procrustes"]
    names += ["low_rank", "pinv", "nuclear_norm", "GradientMonitor"]
    for name in names:
        assert name in text
        assert hasattr(eg, name), f"eigengrad.{name}"


def test_it_is_silenced_as_its_text_says():
    with caught() as found:
        one_line(matrix(CLOSE))
    statement = "warnings.simplefilter('ignore', eigengrad.GradientWarning)"
    assert statement in str(found[0].message)
    with warnings.catch_warnings(record=True) as everything:
        warnings.simplefilter("always")
        exec(statement, {"warnings": warnings, "eigengrad": eg})
        one_line(matrix(CLOSE))
    assert not everything


def test_as_an_error_it_is_raised_in_the_backward_pass_and_the_next_pass_is_as_usual():
    with warnings.catch_warnings():
        warnings.simplefilter("error", eg.GradientWarning)
        with pytest.raises(eg.GradientWarning, match="removed more than half"):
            one_line(matrix(CLOSE))
    with caught() as found:
        another_line(matrix(HEALTHY))
        assert torch.isfinite(backward(leading_vector, matrix(HEALTHY))).all()
    assert not found


def test_a_filter_by_the_module_of_the_caller_applies():
    with warnings.catch_warnings(record=True) as everything:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", module=__name__.replace(".", r"\."))
        one_line(matrix(CLOSE))
    assert not everything


def test_code_that_has_no_file_is_warned_too():
    with caught() as found:
        exec(
            "A = A.clone().requires_grad_()\nV = eg.eigh(A).eigenvectors\n(V**2 * W).sum().backward()",
            {"A": matrix(CLOSE), "eg": eg, "W": weights(3, 3)},
        )
    assert [(w.filename, w.lineno) for w in found] == [("<string>", 2)]


def test_a_call_from_a_function_of_the_library_is_attributed_to_the_line_of_the_user():
    def call(A):
        return eg.matrix_sqrt(A, gradient=eg.Saturate(0.5))  # the user's line

    A = matrix(CLOSE)
    V = torch.linalg.eigh(A).eigenvectors[:, :2]
    G = V @ torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=F64) @ V.mT  # only what is inside the close pair
    with caught() as found:
        backward(lambda A: (call(A) * G).sum(), A)
    assert [(w.filename, w.lineno) for w in found] == [(__file__, line_of(call, "# the user's line"))]


# When ---------------------------------------------------------------------------------------------------------------

both_paths = pytest.mark.parametrize("recorded", [False, True], ids=["kernels", "recorded"])


@both_paths
@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
@pytest.mark.parametrize("rule", REMOVING, ids=str)
def test_every_rule_that_removes_more_than_half_warns_in_eigh(rule, dtype, recorded):
    # Float32 knows gaps of 1e-6 to a tenth only: a gap that all of the rules still find close.
    A = matrix(CLOSE if dtype == F64 else (1.0, 1.0 + 3e-6, 2.0), dtype)
    with caught() as found:
        backward(lambda A: leading_vector(A, rule), A, recorded)
    assert len(found) == 1
    assert repr(rule) in str(found[0].message)


@both_paths
@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
@pytest.mark.parametrize("rule", PAIR_RULES, ids=str)
def test_every_rule_that_removes_more_than_half_warns_in_svd(rule, dtype, recorded):
    A = rectangular(CLOSE if dtype == F64 else (1.0, 1.0 + 3e-6, 2.0), dtype)
    with caught() as found:
        backward(lambda A: leading_singular_vector(A, rule), A, recorded)
    assert len(found) == 1
    assert repr(rule) in str(found[0].message)


@both_paths
def test_a_rule_among_the_kept_is_named_as_it_was_written(recorded):
    A = matrix(CLOSE, F64)
    with caught() as found:
        backward(lambda A: eg.eigh(A, k=-2, gradient=eg.Mask(rtol=1e-4)).eigenvectors[0, 0], A, recorded)
    assert len(found) == 1
    assert "eigh: Mask(rtol=0.0001) with k=-2 removed" in str(found[0].message)


@pytest.mark.parametrize("n", [2, 3, 5, 8, 16, 31, 33, 64, 65, 80, 100])
@pytest.mark.parametrize("batch", [1, 3, 8, 40])
def test_one_matrix_of_a_batch_is_enough_whatever_its_place(n, batch):
    L = torch.linspace(1, 2, n, dtype=F64).expand(batch, n).clone()
    healthy = random_hermitian(L, torch.Generator().manual_seed(0))
    with caught() as found:
        backward(leading_vector, healthy)
    assert not found
    for place in {0, batch // 2, batch - 1}:
        # In a small place of a large matrix the share of one pair is the more, the closer it is.
        close = L.clone()
        close[place, n // 2] = close[place, n // 2 - 1] * (1 + 1e-10)
        if n == 2:
            close[place] = torch.tensor([1.0, 1.0 + 1e-10])
        A = random_hermitian(close.sort(-1).values, torch.Generator().manual_seed(0))
        with caught("always") as found:
            backward(leading_vector, A)
        # For two eigenvalues the gap is the spread: there is nothing for the rule to compare it with.
        assert len(found) == (0 if n == 2 else 1), f"in place {place}"


@both_paths
@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
@pytest.mark.parametrize("loss", [leading_vector, leading_singular_vector])
@pytest.mark.parametrize("values", [HEALTHY, (1.0, 1.01, 2.0), (1.0, 1.001, 2.0), (10.0, 11.0, 12.0)], ids=str)
def test_healthy_gaps_do_not_warn(values, loss, dtype, recorded):
    with caught() as found:
        backward(loss, matrix(values, dtype), recorded)
    assert not found


@both_paths
@pytest.mark.parametrize(("distance", "expected"), [(0.6, 1), (0.8, 0)])
def test_half_is_where_the_gap_is_ln_2_times_tau(distance, expected, recorded):
    """1 − RΔ = e^(−Δ/τ) exceeds ½ for Δ < 0.693 τ. The loss is one of the close pair alone."""
    A = torch.diag(torch.tensor([0.0, distance * eg.Saturate().rtol, 1.0], dtype=F64))

    def loss(A):
        return eg.eigh(A).eigenvectors[0, 1]

    with caught() as found:
        backward(loss, A, recorded)
    assert len(found) == expected


def projector(A):
    V = eg.eigh(A).eigenvectors[..., -2:]
    return ((V @ V.mT) * weights(*A.shape[-2:], dtype=A.dtype)).sum()


def rotation(A):
    U, _, Vh = eg.svd(A, full_matrices=False)
    return ((U @ Vh) * weights(*A.shape[-2:], dtype=A.dtype)).sum()


def values_only(A):
    return (eg.eigh(A).eigenvalues ** 2).sum() + eg.svd(A).S.sum()


def constant_vectors(A):
    return (eg.eigh(A).eigenvectors ** 2).sum()


@pytest.mark.sample(2)
@both_paths
@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
@pytest.mark.parametrize("gap", [0.0, 1e-15, 1e-12, 1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3])
@pytest.mark.parametrize("loss", [projector, rotation, values_only, constant_vectors])
def test_losses_that_do_not_depend_on_the_basis_do_not_warn(loss, gap, dtype, recorded):
    A = matrix((1.0 - gap, 1.0, 3.0, 3.0 + gap), dtype, batch=50)
    with caught() as found:
        backward(loss, A, recorded)
    assert not found


@both_paths
@pytest.mark.parametrize("loss", [projector, rotation, values_only, constant_vectors])
@pytest.mark.parametrize("A", [torch.eye(4), torch.eye(4, dtype=F64), torch.diag(torch.tensor([1.0, 1, 2, 2]))])
def test_losses_that_do_not_depend_on_the_basis_do_not_warn_at_exact_ties(A, loss, recorded):
    if loss is projector and torch.equal(A, torch.eye(4, dtype=A.dtype)):
        pytest.skip("the cut goes through the tie")
    with caught() as found:
        backward(loss, A, recorded)
    assert not found


@both_paths
@pytest.mark.parametrize("name", ["eigh", "svd"])
def test_partial_decompositions_do_not_warn_for_subspaces_and_do_for_vectors(name, recorded):
    A = matrix((1.0, 1.0 + 1e-9, 3.0, 3.0 + 1e-9))

    def vectors(A):
        return eg.eigh(A, k=2).eigenvectors if name == "eigh" else eg.svd(A, k=2).U

    def subspace(A):
        V = vectors(A)
        return ((V @ V.mT) * weights(4, 4)).sum()

    with caught() as found:
        backward(subspace, A, recorded)
    assert not found
    with caught() as found:
        backward(lambda A: (vectors(A) ** 2 * weights(4, 2)).sum(), A, recorded)
    assert len(found) == 1


@both_paths
@pytest.mark.parametrize("loss", [leading_vector, leading_singular_vector])
@pytest.mark.parametrize("values", [CLOSE, (1.0, 1.0, 1.0)], ids=["close", "tied"])
def test_exact_removes_nothing_and_does_not_warn(loss, values, recorded):
    A = matrix(values) if values == CLOSE else torch.eye(3, dtype=F64)
    with caught() as found:
        backward(lambda A: loss(A, "exact"), A, recorded)
    assert not found


def test_nothing_is_said_without_a_backward_pass():
    with caught() as found, torch.no_grad():
        leading_vector(matrix(CLOSE).requires_grad_())
        leading_singular_vector(matrix(CLOSE).requires_grad_())
    assert not found
    with caught() as found:
        leading_vector(matrix(CLOSE))
        leading_vector(matrix(CLOSE).requires_grad_())
    assert not found


def test_while_somebody_monitors_there_is_no_warning():
    with caught() as found, eg.GradientMonitor() as monitor:
        one_line(matrix(CLOSE))
    assert not found
    assert monitor.lost > 0.5


def test_the_generalised_problem_warns_too():
    A, B = matrix(CLOSE), torch.eye(3, dtype=F64)
    with caught() as found:
        backward(lambda A: (eg.eigh(A, B=B).eigenvectors ** 2 * weights(3, 3)).sum(), A)
    assert len(found) == 1
    assert found[0].filename == __file__


# Transforms, the compiler and threads -------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [leading_vector, leading_singular_vector])
def test_compiled_code_does_not_warn_and_has_the_gradient(loss, dynamo):
    A = matrix(CLOSE)
    expected = backward(loss, A)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    with caught() as found:
        actual = backward(compiled, A)
    assert not found
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("loss", [leading_vector, leading_singular_vector])
def test_warnings_as_errors_do_not_break_the_compiler(loss, dynamo):
    with warnings.catch_warnings():
        warnings.simplefilter("error", eg.GradientWarning)
        compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
        assert torch.isfinite(backward(compiled, matrix(CLOSE))).all()


@pytest.mark.parametrize("loss", [leading_vector, leading_singular_vector])
def test_transforms_are_as_they_were(loss):
    """torch.func may or may not say something; it must not fail, and what it says must be of the user's line."""
    A = torch.stack([matrix(CLOSE), matrix(HEALTHY)])
    expected = torch.stack([backward(loss, a) for a in A])
    for function in (torch.func.vmap(torch.func.grad(loss)), torch.func.grad(lambda A: torch.func.vmap(loss)(A).sum())):
        with caught() as found:
            actual = function(A)
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)
        for warning in found:
            assert warning.filename == __file__
    with caught():
        torch.func.hessian(loss)(A[0])
        torch.func.jacfwd(loss)(A[0])


def test_backward_passes_in_threads_warn_of_their_own_lines():
    """Each thread has its own line, half of them a healthy matrix: those say nothing."""
    calls = []
    for i in range(8):
        namespace = {"eg": eg, "W": weights(3, 3)}
        name = f"<line of thread {i}>"
        exec(compile("def loss(A):\n    return (eg.eigh(A).eigenvectors**2 * W).sum()", name, "exec"), namespace)
        calls.append((name, namespace["loss"], matrix(CLOSE if i % 2 else HEALTHY)))
    start = threading.Barrier(len(calls))

    def work(loss, A):
        start.wait()
        for _ in range(30):
            backward(loss, A)

    with caught() as found:
        threads = [threading.Thread(target=work, args=(loss, A)) for _, loss, A in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    expected = {name for i, (name, _, _) in enumerate(calls) if i % 2}
    assert {w.filename for w in found} == expected
    assert all(w.lineno == 2 for w in found)


def test_a_loss_built_in_one_thread_may_be_differentiated_in_another():
    A = matrix(CLOSE).requires_grad_()
    loss = leading_vector(A)
    with caught() as found:
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
    assert len(found) == 1
    assert torch.isfinite(A.grad).all()


def test_no_line_is_remembered_after_the_pass():
    """A pullback that nobody called a decomposition for has nobody to warn."""
    one_line(matrix(HEALTHY))
    L, V = torch.linalg.eigh(matrix(CLOSE))
    with caught() as found:
        for enabled in (False, True):
            with torch.set_grad_enabled(enabled):
                eg.Saturate().pullback(L, V, None, weights(3, 3))
    assert not found


def test_checkpointing_keeps_the_warning_and_the_gradient():
    from torch.utils.checkpoint import checkpoint

    A = matrix(CLOSE)
    expected = backward(leading_vector, A)
    with caught() as found:
        actual = backward(lambda A: checkpoint(leading_vector, A, use_reentrant=False), A)
    assert len(found) == 1
    torch.testing.assert_close(actual, expected)


def test_frames_that_outlive_the_call_are_not_kept():
    """The place of a call is a name and a number, not a frame that would keep its variables alive."""
    import gc
    import weakref

    def call():
        local = torch.ones(3)
        alive = weakref.ref(local)
        A = matrix(CLOSE).requires_grad_()
        return leading_vector(A), alive

    loss, alive = call()
    gc.collect()
    assert alive() is None
    assert sys.getrefcount(loss) > 0


# The numbers of GradientMonitor -------------------------------------------------------------------------------------


def taylor_share(low: float, high: float, degree: int) -> float:
    return (low / high) ** (degree + 1)


#: Rule, and the share it removes of 1/(b − a) for the eigenvalues a < b of a spectrum with this spread.
SHARES = [
    (eg.Saturate(rtol=0.5), lambda a, b, spread: math.exp(-(b - a) / (0.5 * spread))),
    (eg.Saturate(rtol=0.1), lambda a, b, spread: math.exp(-(b - a) / (0.1 * spread))),
    (eg.Saturate(), lambda a, b, spread: math.exp(-(b - a) / (eg.Saturate().rtol * spread))),
    (eg.Exact(), lambda a, b, spread: 0.0),
    (eg.Taylor(), lambda a, b, spread: taylor_share(a, b, 9)),
    (eg.Taylor(degree=0), lambda a, b, spread: taylor_share(a, b, 0)),
    (eg.Taylor(degree=1), lambda a, b, spread: taylor_share(a, b, 1)),
    (eg.Clip(threshold=0.75), lambda a, b, spread: max(0.0, 1 - 0.75 * (b - a))),
    (eg.Clip(threshold=0.4), lambda a, b, spread: max(0.0, 1 - 0.4 * (b - a))),
    (eg.Lorentzian(broadening=0.25), lambda a, b, spread: 0.25 / (((b - a) / spread) ** 2 + 0.25)),
    (eg.Mask(), lambda a, b, spread: 0.0),
    (eg.Mask(rtol=0.5), lambda a, b, spread: float(b - a <= 0.5 * spread)),
]


def lost(rule, A: Tensor, gV: Tensor, name: str = "eigh") -> float:
    A = A.detach().clone().requires_grad_()
    with eg.GradientMonitor() as monitor:
        if name == "eigh":
            eg.eigh(A, gradient=rule).eigenvectors.backward(gV)
        else:
            eg.svd(A, gradient=rule).U.flip(-1).backward(gV)
    return monitor.lost


def by_hand(eigenvalues, gV: Tensor, share) -> float:
    """At a diagonal matrix, with gV above the diagonal: ½ gV_ij/(λ_j − λ_i) and the share of it."""
    spread, exact, removed = eigenvalues[-1] - eigenvalues[0], 0.0, 0.0
    for i in range(len(eigenvalues)):
        for j in range(i + 1, len(eigenvalues)):
            term = gV[i, j].item() / (eigenvalues[j] - eigenvalues[i])
            exact += term**2
            removed += (term * share(eigenvalues[i], eigenvalues[j], spread)) ** 2
    return math.sqrt(removed / exact)


@pytest.mark.parametrize("name", ["eigh", "svd"])
@pytest.mark.parametrize(("rule", "share"), SHARES, ids=[repr(rule) for rule, _ in SHARES])
def test_what_is_lost_of_two_eigenvalues_is_the_share_of_their_pair(rule, share, name):
    A, gV = torch.diag(torch.tensor([1.0, 2.0], dtype=F64)), torch.tensor([[0.0, 3.0], [0.0, 0.0]], dtype=F64)
    expected = share(1.0, 2.0, 1.0)
    assert lost(rule, A, gV, name) == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("name", ["eigh", "svd"])
@pytest.mark.parametrize(("rule", "share"), SHARES, ids=[repr(rule) for rule, _ in SHARES])
def test_what_is_lost_of_three_eigenvalues_is_weighed_with_the_gradient(rule, share, name):
    eigenvalues = (1.0, 2.0, 4.0)
    gV = torch.tensor([[0.0, 1.0, 2.0], [0.0, 0.0, 5.0], [0.0, 0.0, 0.0]], dtype=F64)
    A = torch.diag(torch.tensor(eigenvalues, dtype=F64))
    assert lost(rule, A, gV, name) == pytest.approx(by_hand(eigenvalues, gV, share), abs=1e-13)


def test_what_saturate_loses_of_one_two_four_is_what_one_works_out_by_hand():
    """τ = 1.5; gaps 1, 3, 2 and weights 1, 2, 5 over them: 1, 2/3, 5/2, of which e^(−2/3), e^(−2), e^(−4/3) is lost."""
    gV = torch.tensor([[0.0, 1.0, 2.0], [0.0, 0.0, 5.0], [0.0, 0.0, 0.0]], dtype=F64)
    A = torch.diag(torch.tensor([1.0, 2.0, 4.0], dtype=F64))
    assert lost(eg.Saturate(rtol=0.5), A, gV) == pytest.approx(0.302912, abs=1e-6)


@pytest.mark.parametrize("name", ["eigh", "svd"])
@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (eg.Truncate(rank=3), 0.0),
        (eg.Truncate(rank=1), 1.0),
        # Kept are 2 and 4: of 1², (2/3)² and (5/2)², the last is left.
        (eg.Truncate(rank=2), math.sqrt((1 + 4 / 9) / (1 + 4 / 9 + 25 / 4))),
        # 4/7 of the sum is not enough, 6/7 is.
        (eg.Truncate(energy=0.8), math.sqrt((1 + 4 / 9) / (1 + 4 / 9 + 25 / 4))),
    ],
    ids=str,
)
def test_truncation_loses_the_pairs_that_it_drops(rule, expected, name):
    gV = torch.tensor([[0.0, 1.0, 2.0], [0.0, 0.0, 5.0], [0.0, 0.0, 0.0]], dtype=F64)
    A = torch.diag(torch.tensor([1.0, 2.0, 4.0], dtype=F64))
    assert lost(rule, A, gV, name) == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("steps", [1, 2, 3, 19])
@pytest.mark.parametrize("q", [0.1, 0.5, 0.9])
def test_power_iteration_loses_q_to_the_number_of_steps(q, steps):
    """Of the leading vector; of the other one, which feels it through the deflation, one power less."""
    A = torch.diag(torch.tensor([q, 1.0], dtype=F64))
    rule = eg.PowerIteration(steps=steps)
    leading = torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=F64)
    assert lost(rule, A, leading) == pytest.approx(q**steps, rel=1e-10)
    assert lost(rule, A, leading.mT) == pytest.approx(q ** (steps - 1), rel=1e-10)


@pytest.mark.parametrize("steps", [2, 5])
def test_power_iteration_loses_of_three_eigenvalues_what_one_works_out_by_hand(steps):
    gV = torch.tensor([[0.0, 1.0, 2.0], [0.0, 0.0, 5.0], [0.0, 0.0, 0.0]], dtype=F64)
    A = torch.diag(torch.tensor([1.0, 2.0, 4.0], dtype=F64))
    expected = by_hand((1.0, 2.0, 4.0), gV, lambda a, b, spread: (a / b) ** steps)
    assert lost(eg.PowerIteration(steps=steps), A, gV) == pytest.approx(expected, rel=1e-10)


def test_power_iteration_that_stops_early_has_lost_the_vectors_it_drops():
    """Half of the energy is in the first vector: the second gets no gradient, and the first all of its own."""
    A, rule = torch.diag(torch.tensor([1e-3, 1.0], dtype=F64)), eg.PowerIteration(energy=0.5)
    leading = torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=F64)
    assert lost(rule, A, leading) == pytest.approx(0, abs=1e-15)
    assert lost(rule, A, leading.mT) == pytest.approx(1.0)


def test_what_is_lost_of_several_matrices_is_the_mean_of_what_is_lost_of_each():
    """The shares are 1/2 and 1/3; whether the matrices come one by one or in a batch, and whatever their gradients."""
    A = torch.diag_embed(torch.tensor([[1.0, 2.0], [1.0, 3.0]], dtype=F64))
    gV = torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=F64) * torch.tensor([1.0, 1e6], dtype=F64).reshape(2, 1, 1)
    with eg.GradientMonitor() as one_by_one:
        for a, g in zip(A, gV, strict=True):
            eg.eigh(a.clone().requires_grad_(), gradient=eg.Taylor(degree=0)).eigenvectors.backward(g)
    assert one_by_one.lost == pytest.approx(5 / 12)
    assert one_by_one.calls == 2
    assert lost(eg.Taylor(degree=0), A, gV) == pytest.approx(5 / 12)


@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1e10, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
@pytest.mark.parametrize("name", ["eigh", "svd"])
def test_what_is_lost_does_not_depend_on_the_scale(scale, dtype, name):
    gV = torch.tensor([[0.0, 1.0, 2.0], [0.0, 0.0, 5.0], [0.0, 0.0, 0.0]], dtype=dtype)
    A = torch.diag(torch.tensor([1.0, 2.0, 4.0], dtype=dtype))
    expected = lost(eg.Saturate(rtol=0.5), A, gV, name)
    assert lost(eg.Saturate(rtol=0.5), A * scale, gV, name) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["eigh", "svd"])
def test_a_loss_that_does_not_feel_the_tie_loses_nothing(name):
    A = torch.diag(torch.tensor([1.0, 1.0, 2.0], dtype=F64)).requires_grad_()
    with eg.GradientMonitor() as monitor:
        V = eg.eigh(A).eigenvectors[:, :2] if name == "eigh" else eg.svd(A).U[:, 1:]
        ((V @ V.mT) * weights(3, 3)).sum().backward()
    assert monitor.lost < 1e-9
    assert monitor.acted == pytest.approx(1 / 3)


@pytest.mark.parametrize("name", ["eigh", "svd"])
@pytest.mark.parametrize("rule", [eg.Saturate(), eg.Mask(), eg.Lorentzian(), eg.Taylor()], ids=str)
def test_a_loss_of_the_vectors_of_an_exact_tie_loses_all_of_it(rule, name):
    A = torch.eye(2, dtype=F64)
    V = eg.eigh(A).eigenvectors if name == "eigh" else eg.svd(A).U.flip(-1)
    gV = V @ torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=F64)
    assert lost(rule, A, gV, name) == pytest.approx(1.0, abs=1e-10)
