"""Which implementation is used, and what happens when one is wrong or fails. No GPU and no triton are needed."""

import contextlib
import json
import logging
import os
import subprocess
import sys

import pytest
import torch

import eigengrad as eg
from eigengrad.kernels import gpu
from eigengrad.kernels.gpu import selection
from eigengrad.kernels.gpu.selection import Choice, Selector


class Candidate:
    """Returns what it is told to, takes as long as it is told to, and counts its calls."""

    def __init__(self, result, seconds=1.0):
        self.result, self.seconds, self.calls = result, seconds, 0

    def __call__(self):
        self.calls += 1
        return self.result


def clock(candidate):
    return candidate.seconds


def equal(found, reference):
    return found == reference


@pytest.fixture
def fresh(monkeypatch):
    """A process in which nothing has been decided or failed."""
    monkeypatch.setattr(gpu, "_failure", None)
    monkeypatch.setattr(selection, "_selectors", {})
    gpu.mode.cache_clear()
    yield monkeypatch
    gpu.mode.cache_clear()


def test_faster_right_candidate_is_chosen_and_the_other_not_run_again():
    ours, theirs = Candidate(1, seconds=0.5), Candidate(1)
    selector = Selector(clock, None)
    assert selector.run("key", {"triton": ours, "torch": theirs}, equal, True) == 1
    assert selector.choices["key"] == Choice("triton", {"triton": 0.5, "torch": 1.0})
    calls = theirs.calls
    selector.run("key", {"triton": ours, "torch": theirs}, equal, True)
    assert theirs.calls == calls


def test_slower_candidate_is_not_chosen():
    selector = Selector(clock, None)
    selector.run("key", {"triton": Candidate(1, seconds=2.0), "torch": Candidate(1)}, equal, True)
    assert selector.choices["key"].name == "torch"


def test_wrong_candidate_is_never_used_again_and_warned_about_once(caplog):
    ours, theirs = Candidate(2, seconds=0.1), Candidate(1)
    selector = Selector(clock, None)
    with caplog.at_level(logging.WARNING, "eigengrad"):
        results = [selector.run("key", {"triton": ours, "torch": theirs}, equal, True) for _ in range(3)]
    assert results == [1, 1, 1]
    assert ours.calls == 1
    assert selector.choices["key"].refused == {"triton": "wrong"}
    assert len(caplog.records) == 1


def test_candidate_that_fails_later_is_never_used_again():
    ours, theirs = Candidate(1, seconds=0.1), Candidate(1)
    selector = Selector(clock, None)
    selector.run("key", {"triton": ours, "torch": theirs}, equal, True)
    ours.result = None
    assert selector.run("key", {"triton": ours, "torch": theirs}, equal, True) == 1
    calls = ours.calls
    assert selector.run("key", {"triton": ours, "torch": theirs}, equal, True) == 1
    assert ours.calls == calls
    assert selector.choices["key"] == Choice("torch", refused={"triton": "failed"})


def test_nothing_is_measured_where_that_is_not_allowed():
    """As during the capture of a CUDA graph."""
    ours, theirs = Candidate(1, seconds=0.1), Candidate(1)
    selector = Selector(clock, None)
    assert selector.run("key", {"triton": ours, "torch": theirs}, equal, False) == 1
    assert (ours.calls, theirs.calls, selector.choices) == (0, 1, {})


def test_matrices_that_tell_nothing_leave_the_choice_open():
    selector = Selector(clock, None)
    assert selector.run("key", {"triton": Candidate(1), "torch": Candidate(2)}, lambda *_: None, True) == 2
    assert selector.choices == {}


def test_choices_are_kept_in_a_file_with_those_of_other_processes(tmp_path):
    path = tmp_path / "folder" / "gpu.json"
    first, second = Selector(clock, path), Selector(clock, path)
    first.run("a n=1 batch<2", {"triton": Candidate(1, seconds=0.5), "torch": Candidate(1)}, equal, True)
    second.run("b n=1 batch<2", {"triton": Candidate(2, seconds=0.5), "torch": Candidate(1)}, equal, True)
    later = Selector(clock, path)
    assert {key: choice.name for key, choice in later.choices.items()} == {
        "a n=1 batch<2": "triton",
        "b n=1 batch<2": "torch",
    }
    assert later.choices["b n=1 batch<2"].refused == {"triton": "wrong"}
    assert [p.name for p in path.parent.iterdir()] == ["gpu.json"]


KEY = "eigh float32 n=16 batch<4096"
RIGHT = {"name": "triton", "seconds": {"triton": 0.5, "torch": 1.0}, "refused": {"cpu": "wrong"}}


def kept(path, content):
    """A file of choices with this content, as :class:`Selector` leaves it."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    path.chmod(0o600)
    return path


def test_well_formed_file_is_read(tmp_path):
    found = Selector(clock, kept(tmp_path / "folder" / "gpu.json", {KEY: RIGHT})).choices
    assert found == {KEY: Choice("triton", {"triton": 0.5, "torch": 1.0}, {"cpu": "wrong"})}
    assert str(found[KEY]) == "triton (triton 500 ms, torch 1e+03 ms, cpu wrong)"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{",
        "[" * 100_000,
        {KEY: 3},
        {KEY: {"name": "triton"}},
        {KEY: RIGHT | {"name": "magic"}},
        {KEY: RIGHT | {"name": "cpu"}},  # which was refused
        {KEY: RIGHT | {"name": ["triton"]}},
        {KEY: RIGHT | {"seconds": {"triton": "0.5"}}},
        {KEY: RIGHT | {"seconds": {"triton": -1.0}}},
        {KEY: RIGHT | {"seconds": {"triton": float("inf")}}},
        {KEY: RIGHT | {"seconds": {"__class__": 1.0}}},
        {KEY: RIGHT | {"refused": {"cpu": "\x1b[2J"}}},
        {KEY: RIGHT | {"more": 1}},
        {"\x1b[2J n=1 batch<2": RIGHT},
        {KEY + "\n": RIGHT},
    ],
    ids=str,
)
def test_file_that_is_not_well_formed_counts_as_none(tmp_path, content):
    path = kept(tmp_path / "folder" / "gpu.json", content)
    selector = Selector(clock, path)
    assert selector.choices == {}
    selector.run(KEY, {"triton": Candidate(1, seconds=0.5), "torch": Candidate(1)}, equal, True)
    assert json.loads(path.read_text())[KEY]["name"] == "triton"


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no modes of files")
@pytest.mark.parametrize("fault", ["file", "folder", "above", "link", "fifo", "large"])
def test_file_that_others_can_write_is_neither_read_nor_written(tmp_path, fault, caplog):
    path = (
        kept(tmp_path / "above" / "gpu.json", {KEY: RIGHT}) if fault != "above" else tmp_path / "above/folder/gpu.json"
    )
    if fault == "file":
        path.chmod(0o666)
    elif fault == "folder":
        path.parent.chmod(0o777)
    elif fault == "above":
        (tmp_path / "above").mkdir(mode=0o700)
        kept(path, {KEY: RIGHT})
        (tmp_path / "above").chmod(0o777)
    elif fault == "link":
        path.rename(tmp_path / "elsewhere.json")
        path.symlink_to(tmp_path / "elsewhere.json")
    elif fault == "fifo":
        path.unlink()
        os.mkfifo(path, 0o600)
    else:
        path.write_text(json.dumps({KEY: RIGHT}) + " " * (1 << 20))
    with caplog.at_level(logging.WARNING, "eigengrad"):
        selector = Selector(clock, path)
    assert selector.choices == {}
    assert "not used" in caplog.text
    if fault in ("folder", "above"):
        before = path.read_text()
        selector.run("b n=1 batch<2", {"triton": Candidate(1, seconds=0.5), "torch": Candidate(1)}, equal, True)
        assert path.read_text() == before
        assert "for this process only" in caplog.text


def test_kernels_of_the_cpu_are_a_candidate_for_large_matrices(fresh, generator):
    """Where they are faster, copies included, they are used from then on, and agree with torch."""
    from eigengrad.solvers import triton

    if not eg.kernels.available():
        pytest.skip("needs the kernels")
    fresh.setattr(gpu, "_is_gpu", lambda A: True)
    seconds = iter([1.0, 0.25, 0.25, 1.0])
    fresh.setattr(selection, "_clock", lambda device: lambda call: next(seconds))
    A = torch.randn(2, 65, 65, generator=generator)
    for n in (65, 70):  # faster for the first, slower for the second
        A = torch.randn(2, n, n, generator=generator)
        for M, UPLO in ((A, "L"), (A, "L"), (A.mT, "U")):
            L, V = triton.eigh_measured(M, UPLO)
            assert selection.is_decomposition(A, (L, V), torch.linalg.eigh(A))
    chosen = {key: choice.name for key, choice in selection.choices()["cpu"].items()}
    assert chosen == {"eigh float32 n=65 batch<4": "cpu", "eigh float32 n=70 batch<4": "torch"}
    with pytest.raises(eg.NonFiniteError, match="batch element 1"):
        eg.eigh(torch.stack([A[0], A[1] * torch.nan]))


def test_times_are_those_of_the_devices_events(monkeypatch):
    """A device in which each call takes a millisecond less than the one before: the least counts."""
    recorded = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            recorded.append(self)

        def synchronize(self):
            assert recorded[-1] is self

        def elapsed_time(self, end):
            assert (recorded[-2], recorded[-1]) == (self, end)
            return 10.0 - len(recorded) / 2

    entered = []

    @contextlib.contextmanager
    def current(device):
        entered.append(device)
        yield

    module = {"Event": Event, "device": staticmethod(current)}
    monkeypatch.setattr(torch, "get_device_module", lambda device: type("Module", (), module))
    calls = []
    assert selection._clock(torch.device("cuda", 1))(lambda: calls.append(1)) == pytest.approx(5e-3)
    assert len(calls) == 5
    assert entered == [torch.device("cuda", 1)] * 5


def test_configuration_shows_what_was_chosen_and_why(fresh, tmp_path):
    class Module:
        get_device_name = staticmethod(lambda device: "Acme 9000")

    device = torch.device("cuda", 0)
    path = kept(tmp_path / "folder" / "gpu.json", {KEY: RIGHT})
    selection._selectors[device] = Selector(clock, path)
    fresh.setattr(gpu, "_missing", lambda: None)
    fresh.setattr(gpu, "devices", lambda: [device])
    fresh.setattr(torch, "get_device_module", lambda device: Module)
    shown = eg.show_config()
    assert f"cuda:0        Acme 9000; choices in {path}\n" in shown
    assert f"              {KEY}: triton (triton 500 ms, torch 1e+03 ms, cpu wrong)" in shown
    assert "GPU kernels   measured on the first call of each kind (triton " in shown
    fresh.setattr(gpu, "_failure", "decompose fails")
    assert "GPU kernels   off: decompose fails" in eg.show_config()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_decompositions_are_told_from_what_is_none(dtype, generator):
    A = torch.randn(5, 6, 6, generator=generator, dtype=dtype)
    A = (A + A.mT) * 1e-20
    L, V = torch.linalg.eigh(A)
    assert selection.is_decomposition(A, (L, -V), (L, V))
    assert not selection.is_decomposition(A, (L, V * (1 + 1e-3)), (L, V))
    assert not selection.is_decomposition(A, (L * 1.001, V), (L, V))
    assert not selection.is_decomposition(A, (L.flip(-1), V.flip(-1)), (L, V))
    assert not selection.is_decomposition(A, (L * torch.nan, V), (L, V))
    one_wrong = V.clone()
    one_wrong[3, :, 0] = V[3, :, 1]
    assert not selection.is_decomposition(A, (L, one_wrong), (L, V))
    assert selection.is_decomposition(A, (L, V), (L * torch.nan, V)) is None


def test_gradients_agree_to_round_off_and_in_what_is_not_finite(generator):
    G = torch.randn(3, 4, 4, generator=generator)
    G[1, 0, 0], G[1, 0, 1] = torch.nan, torch.inf
    assert selection.agree(G * (1 + 1e-7), G)
    assert not selection.agree(G * (1 + 1e-2), G)
    assert not selection.agree(G.nan_to_num(0), G)
    assert not selection.agree(G, G.nan_to_num(0))


def interpreted():
    """Skip a test whose tensors are on the CPU where kernels are not interpreted."""
    pytest.importorskip("triton")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("kernels run on a GPU")


def test_kernel_that_fails_leaves_the_work_to_torch_with_one_warning(fresh, caplog, generator):
    fresh.setattr(gpu, "_missing", lambda: None)
    fresh.setattr(gpu, "_interpreted", lambda: True)
    fresh.delattr(gpu, "launch", raising=False)
    fresh.setitem(sys.modules, "eigengrad.kernels.gpu.launch", None)  # importing it fails
    A = torch.randn(2, 3, 3, generator=generator)
    with caplog.at_level(logging.WARNING, "eigengrad"):
        for _ in range(2):
            L, V = eg.eigh(A, driver="triton")
    expected = torch.linalg.eigh(A)
    assert torch.equal(L, expected.eigenvalues)
    assert torch.equal(V, expected.eigenvectors)
    assert len(caplog.records) == 1
    assert "without its GPU kernels" in caplog.text
    assert "decompose fails" in gpu.why_not()


@pytest.mark.parametrize(("value", "reason"), [("off", "EIGENGRAD_GPU=off"), ("measure", None), ("triton", None)])
def test_environment_switches_kernels_off(fresh, value, reason):
    fresh.setenv("EIGENGRAD_GPU", value)
    fresh.setattr(gpu, "_missing", lambda: None)
    assert gpu.mode() == value
    assert gpu.why_not() == reason


def test_unknown_setting_is_named(fresh, caplog):
    fresh.setenv("EIGENGRAD_GPU", "on")
    with caplog.at_level(logging.WARNING, "eigengrad"):
        assert gpu.mode() == "measure"
    assert "EIGENGRAD_GPU=on" in caplog.text


def test_importing_the_library_and_using_it_on_the_cpu_does_not_import_triton():
    script = "import sys, torch, eigengrad as eg; eg.eigh(torch.eye(3)); eg.nn; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=300).returncode == 0


def test_without_triton_the_driver_is_torch(fresh, generator):
    fresh.setattr(gpu, "_missing", lambda: "triton is not installed")
    A = torch.randn(2, 3, 3, generator=generator)
    assert torch.equal(eg.eigh(A, driver="triton").eigenvalues, torch.linalg.eigh(A).eigenvalues)


@pytest.mark.parametrize("mode", ["measure", "triton"])
def test_every_operation_runs_through_the_interpreter(fresh, mode, generator):
    """Selection, launch and kernel together; ``measure`` chooses torch here, and the results agree either way."""
    interpreted()
    fresh.setenv("EIGENGRAD_GPU", mode)
    A = torch.randn(2, 3, 3, generator=generator, dtype=torch.float64)
    A = A @ A.mT
    L, V = torch.linalg.eigh(A)
    G = torch.randn(2, 3, 3, generator=generator, dtype=torch.float64)
    for _ in range(2):
        found = gpu.eigh_measured(A, lambda: (L, V))
        torch.testing.assert_close(found[0], L)
        with torch.no_grad(), eg.kernels.disable():
            rule, slow = eg.Saturate(), eg.Saturate().pullback(L, V, None, G)
        gA = gpu.eigh_vjp(*rule.kernel(), True, L, V, None, G, lambda slow=slow: slow)
        torch.testing.assert_close(gA, slow)
    assert bool(selection.choices()) == (mode == "measure")
    if mode == "measure":
        assert all(set(c.seconds) == {"triton", "torch"} for c in selection.choices()["cpu"].values())


def test_driver_triton_in_the_interpreter_is_trained_through(fresh, generator):
    interpreted()
    A = torch.randn(2, 3, 3, generator=generator, dtype=torch.float64)
    A = A @ A.mT
    results = []
    for driver in ("triton", "lapack"):
        B = A.clone().requires_grad_()
        L, V = eg.eigh(B, driver=driver)
        ((V**4)[..., 0].sum(-1) * L[..., 2]).sum().backward()
        results.append((L.detach(), (V**2).detach(), B.grad))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)
