"""patch_torch: our gradients in code that calls torch's own functions, and nothing left behind."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import svd as early_torch_svd
from torch.linalg import eigh as early_eigh
from torch.linalg import svd as early_svd
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import eigengrad as eg
from eigengrad.patch import TorchPatch, patch_torch
from eigengrad.testing import random_hermitian

pytestmark = pytest.mark.filterwarnings("ignore::eigengrad.errors.GradientWarning")


def vectors(A):
    """A loss of the eigenvectors, by torch."""
    return torch.linalg.eigh(A).eigenvectors[..., 0, :].sum()


def is_finite(loss, A=None):
    """Whether the gradient of the loss is, at the identity: with torch's own gradients it is not."""
    A = (torch.eye(3, dtype=torch.float64) if A is None else A).clone().requires_grad_()
    return bool(torch.isfinite(torch.autograd.grad(loss(A), A)[0]).all())


#: Losses that torch differentiates to NaN at the identity.
BROKEN = {
    "linalg.eigh": vectors,
    "linalg.eigh, named": lambda A: torch.linalg.eigh(input=A, UPLO="U").eigenvectors[..., 0, :].sum(),
    "linalg.eigh, bound earlier": lambda A: early_eigh(A)[1][..., 0, :].sum(),
    "linalg.svd": lambda A: torch.linalg.svd(A, full_matrices=False).U[..., 0, :].sum(),
    "linalg.svd, named": lambda A: torch.linalg.svd(A=A).Vh[..., 0, :].sum(),
    "linalg.svd, bound earlier": lambda A: early_svd(A)[0][..., 0, :].sum(),
    "svd": lambda A: torch.svd(A).V[..., 0, :].sum(),
    "svd, named": lambda A: torch.svd(input=A, some=False).U[..., 0, :].sum(),
    "svd, bound earlier": lambda A: early_torch_svd(A)[0][..., 0, :].sum(),
    "Tensor.svd": lambda A: A.svd().U[..., 0, :].sum(),
    "Tensor.svd, full": lambda A: A.svd(some=False)[2][..., 0, :].sum(),
}


def nuclear(norm):
    """A loss of the second derivative: the first is finite in torch."""

    def loss(A):
        (gradient,) = torch.autograd.grad(norm(A), A, create_graph=True)
        return gradient.pow(3).sum()

    return loss


BROKEN |= {
    "second, linalg.eigvalsh": nuclear(lambda A: torch.linalg.eigvalsh(A).pow(3).sum()),
    "second, linalg.svdvals": nuclear(lambda A: torch.linalg.svdvals(A).pow(3).sum()),
    "second, linalg.cond": nuclear(lambda A: torch.linalg.cond(A)),
    "second, linalg.matrix_norm": nuclear(lambda A: torch.linalg.matrix_norm(A, "nuc")),
    "second, linalg.norm": nuclear(lambda A: torch.linalg.norm(A, 2)),
    "second, linalg.norm, named": nuclear(lambda A: torch.linalg.norm(x=A, ord="nuc", dim=(0, 1))),
    "second, norm": nuclear(lambda A: torch.norm(A, p="nuc")),
    "second, norm with dimensions": nuclear(lambda A: torch.norm(A, "nuc", dim=[1, 0], keepdim=True).sum()),
    "second, nuclear_norm": nuclear(lambda A: torch.nuclear_norm(A)),
    "second, Tensor.norm": nuclear(lambda A: A.norm("nuc")),
    "second, svd without vectors": nuclear(lambda A: A.svd(compute_uv=False).S.pow(3).sum()),
}


@pytest.mark.filterwarnings("ignore:at..nuclear_norm is deprecated")
@pytest.mark.parametrize("name", BROKEN)
def test_what_torch_differentiates_to_nan_is_finite_inside_and_only_there(name):
    loss = BROKEN[name]
    assert not is_finite(loss)
    with patch_torch():
        assert is_finite(loss)
    assert not is_finite(loss)


UNCHANGED = {
    "linalg.eigh": lambda A: torch.linalg.eigh(A),
    "linalg.eigvalsh": lambda A: torch.linalg.eigvalsh(A),
    "linalg.svd": lambda A: torch.linalg.svd(A),
    "linalg.svd, thin": lambda A: torch.linalg.svd(A[..., :2], False),
    "linalg.svdvals": lambda A: torch.linalg.svdvals(A),
    "linalg.pinv": lambda A: torch.linalg.pinv(A, hermitian=True),
    "linalg.cond": lambda A: torch.linalg.cond(A),
    "linalg.cond, nuc": lambda A: torch.linalg.cond(A, "nuc"),
    "linalg.matrix_norm": lambda A: torch.linalg.matrix_norm(A, "nuc"),
    "linalg.matrix_norm, fro": lambda A: torch.linalg.matrix_norm(A),
    "linalg.norm": lambda A: torch.linalg.norm(A, -2, dim=(1, 2), keepdim=True),
    "linalg.norm, of vectors": lambda A: torch.linalg.norm(A, 1, dim=-1),
    "linalg.norm, of all": lambda A: torch.linalg.norm(A),
    "linalg.matrix_rank": lambda A: torch.linalg.matrix_rank(A),
    "svd": lambda A: torch.svd(A),
    "svd, full": lambda A: torch.svd(A[..., :2], some=False),
    "svd, values": lambda A: torch.svd(A[..., :2], compute_uv=False),
    "pinverse": lambda A: torch.pinverse(A),
    "norm": lambda A: torch.norm(A),
    "norm, 2": lambda A: torch.norm(A, 2, (1, 2)),
    "norm, nuc": lambda A: torch.norm(A, "nuc", (1, 2)),
    "Tensor.norm": lambda A: A.norm(),
    "Tensor.norm, nuc": lambda A: A.norm(p="nuc", dim=(0, 1), keepdim=True, dtype=torch.float64),
    "Tensor.norm, of vectors": lambda A: A.norm(dim=-1),
    "Tensor.pinverse": lambda A: A.pinverse(),
    "Tensor.svd": lambda A: A.svd(),
}


GRADIENT_TOLERANCE = {False: {"rtol": 1e-8, "atol": 1e-8}, True: {"rtol": 1e-3, "atol": 1e-3}}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.complex128], ids=str)
@pytest.mark.parametrize("name", UNCHANGED)
def test_away_from_ties_nothing_changes(name, dtype):
    if dtype.is_complex and name == "Tensor.norm, nuc":
        pytest.skip("torch refuses the type")
    call = UNCHANGED[name]
    A = random_hermitian(torch.tensor([1.0, 2.0, 4.0]).expand(2, 3), torch.Generator().manual_seed(0), dtype)

    def outcome():
        X = A.clone().requires_grad_()
        result = call(X)
        tensors = result if isinstance(result, tuple) else (result,)
        loss = sum(t.abs().pow(3)[..., :2].sum() if t.ndim else t for t in tensors if t.requires_grad)
        gradient = torch.autograd.grad(loss, X)[0] if loss != 0 else None
        return type(result), [t.detach() for t in tensors], [t.requires_grad for t in tensors], gradient

    expected = outcome()
    with patch_torch():
        actual = outcome()
    assert actual[0] is expected[0]
    assert actual[2] == expected[2]
    exact = name.endswith(("eigh", "svd", "thin", "full"))  # vectors are those of the same LAPACK, to the bit
    tolerance = 0.0 if exact else 1e-4 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(actual[1], expected[1], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(actual[3], expected[3], **GRADIENT_TOLERANCE[dtype == torch.float32])


@pytest.mark.parametrize("function", [torch.svd_lowrank, torch.pca_lowrank])
def test_functions_of_torch_that_decompose_inside_are_reached(function, monkeypatch):
    calls = []
    monkeypatch.setattr("eigengrad.patch.svd", lambda *args, **kwargs: calls.append(1) or eg.svd(*args, **kwargs))
    A = torch.eye(6, requires_grad=True)
    with patch_torch():
        function(A, q=3)
    assert calls


def test_without_a_gradient_torchs_own_function_runs(monkeypatch):
    monkeypatch.setattr("eigengrad.patch.eigh", None)
    A = torch.eye(3)
    with patch_torch():
        torch.linalg.eigh(A)
        with torch.no_grad():
            torch.linalg.eigh(A.requires_grad_())
        with pytest.raises(TypeError):
            torch.linalg.eigh(A)


def test_what_is_no_matrix_is_left_to_torch():
    with patch_torch():
        for wrong in (torch.ones(3, requires_grad=True), torch.ones(2, 2, dtype=torch.int64)):
            with pytest.raises(RuntimeError):
                torch.linalg.svd(wrong)
        with pytest.raises(TypeError):
            torch.linalg.svd([[1.0]])
        A = torch.eye(3, requires_grad=True)
        with pytest.raises(RuntimeError, match="only supported on CUDA"):
            torch.linalg.svd(A, driver="gesvd")
        out = (torch.empty(0), torch.empty(0))
        with pytest.raises(RuntimeError, match="support automatic differentiation"):
            torch.linalg.eigh(A, out=out)
        with torch.no_grad():
            torch.linalg.eigh(A, out=out)
        assert out[1].shape == (3, 3)
        assert torch.ones(3, requires_grad=True).norm().item() == pytest.approx(3**0.5)


def test_subclasses_of_tensors_are_taken_as_tensors():
    class Marked(torch.Tensor):
        pass

    A = torch.eye(3).as_subclass(Marked).requires_grad_()
    with patch_torch():
        (gradient,) = torch.autograd.grad(torch.linalg.eigh(A).eigenvectors[0].sum(), A)
    assert torch.isfinite(torch.Tensor(gradient)).all()


# Rules --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["mask", eg.Clip(threshold=3.0)], ids=str)
def test_the_rule_is_chosen(rule):
    A = torch.diag(torch.tensor([1.0, 1.0, 2.0])).requires_grad_()
    G = torch.arange(9.0).reshape(3, 3)
    expected = [torch.autograd.grad((f(A, gradient=rule)[i] * G).sum(), A)[0] for f, i in ((eg.eigh, 1), (eg.svd, 0))]
    with patch_torch(gradient=rule):
        actual = [torch.autograd.grad((f(A)[i] * G).sum(), A)[0] for f, i in ((torch.linalg.eigh, 1), (torch.svd, 0))]
    torch.testing.assert_close(actual, expected)


def test_a_rule_that_does_not_fit_is_refused_at_once():
    with pytest.raises(ValueError, match="expected one of"):
        patch_torch("no such rule")
    with pytest.raises(ValueError, match="expected a rule that svd can use"):
        patch_torch("power_iteration")
    assert repr(patch_torch("mask")) == f"patch_torch(gradient={eg.Mask()!r})"


def by_rule(rule):
    A = torch.diag(torch.tensor([1.0, 1.0, 2.0])).requires_grad_()
    G = torch.arange(9.0).reshape(3, 3)
    function = torch.linalg.eigh if rule is None else lambda A: eg.eigh(A, gradient=rule, driver="lapack")
    return torch.autograd.grad((function(A)[1] * G).sum(), A)[0]


def test_the_innermost_patch_counts_and_explicit_rules_are_untouched():
    clip, taylor = eg.Clip(threshold=3.0), eg.Taylor()
    expected = {rule: by_rule(rule) for rule in (clip, taylor)}
    assert not torch.equal(expected[clip], expected[taylor])
    with patch_torch(clip):
        with patch_torch(taylor):
            assert torch.equal(by_rule(None), expected[taylor])
            assert torch.equal(by_rule(clip), expected[clip])
        assert torch.equal(by_rule(None), expected[clip])
        assert torch.equal(by_rule(taylor), expected[taylor])


# Blocks, decorators, switches ---------------------------------------------------------------------------------------


def test_a_patch_is_undone_after_an_exception():
    with pytest.raises(KeyError), patch_torch():
        raise KeyError
    assert not is_finite(vectors)


def test_a_patch_may_be_entered_again_inside_itself():
    patch = patch_torch()
    with patch, patch:
        with patch:
            assert is_finite(vectors)
        assert is_finite(vectors)
    assert not is_finite(vectors)


def test_a_decorated_function_runs_under_the_patch():
    @patch_torch("mask")
    def loss(A, factor=1.0):
        """Documented."""
        return factor * vectors(A)

    assert loss.__doc__ == "Documented."
    assert is_finite(loss)
    assert not is_finite(vectors)

    @patch_torch()
    def recursive(A, depth):
        return vectors(A) if depth == 0 else recursive(A, depth - 1)

    assert is_finite(lambda A: recursive(A, 5))

    class Model(torch.nn.Module):
        @patch_torch()
        def forward(self, A):
            return vectors(A)

    assert is_finite(Model())


def test_functions_that_are_suspended_are_not_decorated():
    def generator():
        yield

    async def coroutine(): ...

    async def asynchronous_generator():
        yield

    for function in (generator, coroutine, asynchronous_generator):
        with pytest.raises(TypeError, match="suspended halfway"):
            patch_torch()(function)

    async def with_a_block():
        with patch_torch():
            finite = is_finite(vectors)
        await asyncio.sleep(0)
        return finite

    assert asyncio.run(with_a_block())


def test_a_switch_holds_until_it_is_switched_off():
    patch = patch_torch()
    assert not patch.enabled
    patch.enable()
    try:
        assert patch.enabled
        patch.enable()  # no more than once
        assert is_finite(vectors)
        with patch_torch(), patch:
            assert is_finite(vectors)
            with pytest.raises(RuntimeError, match="inside the block of another"):
                patch.disable()
        assert is_finite(vectors)
    finally:
        patch.disable()
    patch.disable()
    assert not patch.enabled
    assert not is_finite(vectors)
    patch.enable()
    assert is_finite(vectors)
    patch.disable()
    assert not is_finite(vectors)


class PassThrough(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_other_modes_are_not_disturbed():
    patch = patch_torch()
    for block in (torch.device("meta"), PassThrough(), patch_torch(), patch):
        with block, pytest.raises(RuntimeError, match=r"enable\(\) was called inside the block"):
            patch.enable()
    assert not patch.enabled
    patch.enable()
    with torch.device("meta"):
        assert torch.empty(1).is_meta
    with PassThrough():
        assert is_finite(vectors)
        with pytest.raises(RuntimeError, match=r"disable\(\) was called inside the block"):
            patch.disable()
    assert is_finite(vectors)
    patch.disable()
    assert not is_finite(vectors)
    with PassThrough(), patch_torch(), PassThrough():
        assert is_finite(vectors)
    assert not is_finite(vectors)


def test_a_default_device_and_a_switch_come_and_go_in_any_order():
    patch = patch_torch()
    try:
        for _ in range(2):
            torch.set_default_device("cpu")
            patch.enable()
            assert is_finite(vectors)
            torch.set_default_device("meta")
            assert torch.empty(1).is_meta
            torch.set_default_device(None)
            assert torch.empty(1).is_cpu
            assert is_finite(vectors)
            torch.set_default_device("cpu")
            patch.disable()
            assert not is_finite(vectors)
    finally:
        torch.set_default_device(None)
        patch.disable()


# Threads ------------------------------------------------------------------------------------------------------------


def in_a_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_a_block_holds_in_its_own_thread():
    with patch_torch():
        assert not in_a_thread(lambda: is_finite(vectors))
        assert is_finite(vectors)
    start = threading.Thread.start
    assert "_start" not in start.__qualname__


def test_threads_enter_and_leave_the_same_patch_independently():
    patch, steps = patch_torch(), [threading.Event() for _ in range(4)]
    found = {}

    def first():
        with patch:
            steps[0].set()
            steps[1].wait(30)
            found["first, inside"] = is_finite(vectors)
        steps[2].set()
        steps[3].wait(30)
        found["first, after"] = is_finite(vectors)

    def second():
        steps[0].wait(30)
        found["second, before"] = is_finite(vectors)
        with patch:
            steps[1].set()
            steps[2].wait(30)
            found["second, inside"] = is_finite(vectors)
            steps[3].set()
        found["second, after"] = is_finite(vectors)

    threads = [threading.Thread(target=f) for f in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {
        "first, inside": True,
        "first, after": False,
        "second, before": False,
        "second, inside": True,
        "second, after": False,
    }


def test_a_switch_holds_in_threads_that_start_later():
    start = threading.Thread.start
    patch, go, stop = patch_torch(), threading.Event(), threading.Event()
    found = {}

    class Subclass(threading.Thread):
        def run(self):
            found["subclass"] = is_finite(vectors)

    def long_lived():
        found["while it is on"] = is_finite(vectors)
        go.set()
        stop.wait(30)
        found["after it is off"] = is_finite(vectors)

    patch.enable()
    try:
        assert in_a_thread(lambda: is_finite(vectors))
        assert in_a_thread(lambda: in_a_thread(lambda: is_finite(vectors)))
        with ThreadPoolExecutor(2) as pool:
            assert all(pool.map(lambda _: is_finite(vectors), range(4)))
        thread = Subclass()
        thread.start()
        thread.join()
        assert "run" not in vars(thread)
        other = threading.Thread(target=long_lived)
        other.start()
        go.wait(30)

        def disable():
            with pytest.raises(RuntimeError, match="another thread"):
                patch.disable()

        in_a_thread(disable)
    finally:
        patch.disable()
    stop.set()
    other.join(30)
    assert found == {"subclass": True, "while it is on": True, "after it is off": False}
    assert threading.Thread.start is start
    assert not in_a_thread(lambda: is_finite(vectors))


def test_two_switches_are_independent():
    start, clip, taylor = threading.Thread.start, eg.Clip(threshold=3.0), eg.Taylor()
    expected = {rule: by_rule(rule) for rule in (clip, taylor)}
    outer, inner = patch_torch(clip), patch_torch(taylor)
    outer.enable()
    inner.enable()
    assert torch.equal(by_rule(None), expected[taylor])
    assert torch.equal(in_a_thread(lambda: by_rule(None)), expected[taylor])
    with pytest.raises(RuntimeError, match="inside the block of another"):
        outer.disable()
    inner.disable()
    assert torch.equal(by_rule(None), expected[clip])
    assert torch.equal(in_a_thread(lambda: by_rule(None)), expected[clip])
    outer.disable()
    assert threading.Thread.start is start


def test_a_backward_pass_may_run_outside():
    A = torch.eye(3, requires_grad=True)
    with patch_torch():
        loss = vectors(A)
    loss.backward()
    assert torch.isfinite(A.grad).all()


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("name", ["linalg.eigh", "linalg.svd", "svd"])
def test_what_a_backward_pass_recomputes_is_decorated(name, reentrant):
    """In a backward pass there are no modes, inside a block of theirs either."""
    A = torch.eye(3, requires_grad=True)
    checkpoint(patch_torch()(BROKEN[name]), A, use_reentrant=reentrant).backward()
    assert torch.isfinite(A.grad).all()


# Recursion ----------------------------------------------------------------------------------------------------------


def test_our_functions_inside_do_not_call_themselves():
    patch = patch_torch()
    with patch, patch_torch("mask"):
        A = torch.eye(3, requires_grad=True)
        loss = eg.eigh(A, driver="lapack").eigenvectors[0].sum() + eg.svd(A).U[0].sum() + eg.polar(A).U.sum()
        loss = loss + eg.matrix_sqrt(A).sum() + eg.linalg.matrix_norm(A, "nuc") + eg.linalg.cond(A)
        loss.backward()
    assert torch.isfinite(A.grad).all()


@pytest.mark.parametrize("name", ["eigh", "svd"])
def test_a_patch_over_functions_that_were_put_in_torchs_place_by_hand(name, monkeypatch):
    monkeypatch.setattr(torch.linalg, name, getattr(eg, name))
    with patch_torch():
        assert is_finite(lambda A: getattr(torch.linalg, name)(A)[0].sum() + vectors(A))


# Transforms and compilation -----------------------------------------------------------------------------------------

TRANSFORMED = {
    "linalg.eigh": vectors,
    "svd": BROKEN["svd"],
    "Tensor.svd": BROKEN["Tensor.svd"],
    "norm": lambda A: torch.norm(A, p="nuc", dim=(-2, -1)).sum() + vectors(A),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transforms(name):
    loss, A = TRANSFORMED[name], torch.eye(3, dtype=torch.float64).expand(2, 3, 3)
    with patch_torch():
        gradients = torch.func.vmap(torch.func.grad(loss))(A)
        assert torch.isfinite(gradients).all()
        torch.testing.assert_close(gradients[0], torch.func.grad(loss)(A[0]))
        assert torch.isfinite(torch.func.jvp(loss, (A[0],), (torch.ones(3, 3, dtype=torch.float64),))[1])
        assert torch.isfinite(torch.func.jacrev(loss)(A[0])).all()
    assert not torch.isfinite(torch.func.grad(loss)(A[0])).all()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", TRANSFORMED)
def test_a_compiled_function_is_compiled_again_for_the_patch(name, backend, dynamo):
    compiled, patch = torch.compile(TRANSFORMED[name], fullgraph=True, backend=backend), patch_torch()
    for _ in range(2):
        assert not is_finite(compiled)
        with patch:
            assert is_finite(compiled)
    patch.enable()
    assert is_finite(compiled)
    patch.disable()
    assert not is_finite(compiled)


@pytest.mark.sample(1)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", TRANSFORMED)
def test_a_patch_inside_a_compiled_function(name, backend, dynamo):
    loss, patch = TRANSFORMED[name], patch_torch()

    def by_a_block(A):
        with patch:
            return loss(A)

    def by_a_new_block(A):
        with patch_torch("mask"):
            return loss(A)

    for function in (by_a_block, by_a_new_block, patch(loss)):
        compiled = torch.compile(function, fullgraph=True, backend=backend)
        assert is_finite(compiled)
        assert is_finite(compiled)
    assert not is_finite(loss)


@pytest.mark.slow
def test_a_patch_under_inductor(dynamo):
    A = random_hermitian(torch.tensor([1.0, 2.0, 4.0]).double(), torch.Generator().manual_seed(0), torch.float64)
    (expected,) = torch.autograd.grad(vectors(A.requires_grad_()), A)
    compiled = torch.compile(vectors, fullgraph=True)
    with patch_torch():
        assert is_finite(compiled)
        torch.testing.assert_close(torch.autograd.grad(compiled(A), A)[0], expected)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_torchscript_is_out_of_reach():
    """A fact about torch that the documents state: no mode sees what a scripted function calls."""

    def scripted(A: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigh(A)[1][0].sum()

    function = torch.jit.script(scripted)
    with patch_torch():
        assert not is_finite(function)


def test_the_class_is_what_the_function_returns():
    assert isinstance(patch_torch(), TorchPatch)
