"""Device checks that are no comparison of numbers: statistics, modules, errors, and the device itself."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

import eigengrad as eg
import eigengrad.nn as nn
from device_cases import randn
from device_under_test import DEVICE, IS_GPU, no_waiting

__all__ = ["CHECKS"]

R = randn(4, 6, 6)
S = R @ R.mT + 0.1 * torch.eye(6)


def stale(how: str) -> Callable[[], None]:
    """Evaluation uses the statistics that are there, however they were written."""

    def check() -> None:
        x = (randn(50, 8, 4, 4) * 5).to(DEVICE)
        with torch.inference_mode() if how == "inference_mode" else torch.no_grad():
            norm = nn.DecorrelatedBatchNorm2d(8, group_size=4, device=DEVICE)
            norm.eval()
            norm(x)
            norm.train()
            for _ in range(30):
                norm(x)
            if how == "data":
                norm.running_covariance.data.mul_(100)
            norm.eval()
            S = norm._running_whitening()
            expected = norm.whitening_matrices(norm.running_covariance.clone())
            assert torch.allclose(S.cpu(), expected.cpu(), rtol=1e-5, atol=1e-6)

    return check


def handled_as_a_module() -> None:
    norm = nn.DecorrelatedBatchNorm2d(8, group_size=4, device=DEVICE)
    assert copy.deepcopy(norm).running_covariance.device == DEVICE
    norm.load_state_dict(nn.DecorrelatedBatchNorm2d(8, group_size=4).state_dict())
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)).to(DEVICE)
    converted = nn.DecorrelatedBatchNorm2d.convert_batchnorm(model, group_size=4)
    assert converted(randn(2, 3, 8, 8).to(DEVICE)).device == DEVICE
    assert norm(torch.empty(0, 8, 3, 3).to(DEVICE)).shape == (0, 8, 3, 3)


def training_loop() -> None:
    norm = nn.DecorrelatedBatchNorm2d(8, group_size=4, momentum=None).to(DEVICE)
    optimiser, x = torch.optim.SGD(norm.parameters(), lr=0.1), randn(4, 8, 3, 3).to(DEVICE)
    norm(x).square().mean().backward()  # a kernel is measured in its first call
    with no_waiting():
        for _ in range(3):
            optimiser.zero_grad()
            norm(x).square().mean().backward()
            optimiser.step()


def synchronised_statistics() -> None:
    """Statistics shared by two processes, of which the other has the same points: those of one, without waiting."""
    x, G = (randn(6, 8, 5, 5) + 2).to(DEVICE), randn(6, 8, 5, 5).to(DEVICE)
    collectives = []

    def all_reduce(t: torch.Tensor, group: object) -> None:
        collectives.append(t.numel())
        t.mul_(2)

    results = []
    for shared in (False, True):
        group = object() if shared else None
        norm = nn.DecorrelatedBatchNorm2d(8, group_size=4, momentum=None, process_group=group).to(DEVICE)
        y = x.clone().requires_grad_()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(norm), "_synchronised", lambda self, shared=shared: shared)
            patch.setattr(torch.distributed, "all_reduce", all_reduce)
            norm(y).backward(G)  # a kernel is measured in its first call
            y.grad, norm.weight.grad, collectives[:] = None, None, []
            with no_waiting():
                norm(y).backward(G)
        results.append([t.cpu() for t in (y.grad, norm.weight.grad, norm.running_mean, norm.running_covariance)])
        assert norm.num_batches_tracked.item() == 2
    assert collectives == [8 + 1, 2 * 16, 2 * 16 + 8]  # sums with the count, covariances, their gradients
    for alone, together in zip(*results, strict=True):
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def centred_once() -> None:
    """In torch operations a map is centred once in each direction: a centred copy is two passes over it."""
    from eigengrad.nn.passes import BlasPasses

    x, centre, count = (randn(6, 8, 5, 5) + 50).to(DEVICE).requires_grad_(), BlasPasses._centred, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eigengrad.kernels.gpu.suits_map", lambda x, groups: False)
        patch.setattr(BlasPasses, "_centred", lambda self, *maps: [count.append(1), centre(self, *maps)][1])
        for options in ({}, {"whitening": "cholesky"}):
            norm = nn.DecorrelatedBatchNorm2d(8, group_size=4, **options).to(DEVICE)
            y = norm(x)
            assert len(count) == 1
            y.sum().backward()
            assert len(count) == 2
            count.clear()
        colour = nn.WhitenColor2d(8, groups=2)
        y = colour(x, x.detach() * 2)
        assert len(count) == 2  # content and style
        y.sum().backward()
        assert len(count) == 3


def monitor() -> None:
    """A monitor counts without waiting, and what it has counted is that of the CPU."""
    counts = []
    for device in (torch.device("cpu"), DEVICE):
        A = torch.eye(4).repeat(2, 1, 1).to(device, copy=True).requires_grad_()
        G = torch.arange(16.0).view(4, 4).expand(2, 4, 4).to(device)
        with eg.GradientMonitor() as watching:
            V = eg.eigh(A).eigenvectors
            with no_waiting():
                V.backward(G)
        counts.append((watching.calls, watching.matrices, watching.pairs, watching.acted, watching.lost))
    assert counts[0] == pytest.approx(counts[1])


def report() -> None:
    """A report is made of tensors on the device."""
    for gradient in (eg.Saturate(), eg.Taylor()):
        here, there = (eg.spectrum_report(S.to(device), gradient=gradient) for device in ("cpu", DEVICE))
        assert there.condition.device == DEVICE
        torch.testing.assert_close(there.condition.cpu(), here.condition, rtol=1e-3, atol=0)
        for name, value in here.amplification.items():
            torch.testing.assert_close(there.amplification[name].cpu(), value, rtol=1e-3, atol=0)


def diagnosis() -> None:
    """A diagnosis copies its matrices to the CPU, and says the same."""
    here, there = (eg.diagnose(S.to(device)) for device in ("cpu", DEVICE))
    assert (there.verdict, there.kind, there.values) == (here.verdict, here.kind, here.values)
    assert there.amplification == here.amplification


def own_rule() -> None:
    """A rule that a user has written needs nothing of the CPU either."""

    class Halved(eg.PairRule):
        def reciprocal(self, eigenvalues):
            gaps = eigenvalues.unsqueeze(-2) - eigenvalues.unsqueeze(-1)
            return torch.where(gaps == 0, torch.zeros_like(gaps), 0.5 / gaps)

    gradients = []
    for device in (torch.device("cpu"), DEVICE):
        A = S.to(device, copy=True).requires_grad_()
        V = eg.eigh(A, gradient=Halved()).eigenvectors
        G = torch.ones_like(V).cumsum(-1)
        with no_waiting():
            (V**2).backward(G)
        gradients.append(A.grad.cpu())
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4)


def nan_is_loud() -> None:
    A = S.clone()
    A[1, 0, 0] = torch.nan
    if IS_GPU:  # a kernel gives NaN for that matrix alone, torch an error
        with pytest.raises(eg.NonFiniteError, match="batch element 1"):
            eg.eigh(A.to(DEVICE), check_finite=True)
    else:
        with pytest.raises(eg.NonFiniteError, match="batch element 1"):  # torch's own, which has waited anyway
            eg.eigh(A.to(DEVICE))
    assert eg.matrix_sqrt((-S).to(DEVICE)).cpu().isnan().all()


def phase_dependence_is_nan() -> None:
    """On the CPU it is a GaugeError, which would wait for the device here."""
    H = torch.complex(S, (R - R.mT)).to(DEVICE).requires_grad_()
    V = eg.eigh(H).eigenvectors
    with no_waiting():
        V[1].imag.sum().backward()
    assert H.grad.cpu().isnan().any(-1).any(-1).tolist() == [False, True, False, False]


def mixing_is_refused() -> None:
    for mixed in (lambda: S.to(DEVICE) @ S, lambda: torch.where(S > 0, S.to(DEVICE), 0.0)):
        with pytest.raises(RuntimeError, match="same device"):
            mixed()


def waiting_is_noticed() -> None:
    A = S.to(DEVICE)
    for waits in (lambda: A.sum().item(), lambda: bool((A > 0).any()), lambda: A[A > 0], lambda: A.cpu()):
        with pytest.raises(AssertionError, match="the host waits"), no_waiting():
            waits()


CHECKS = {
    "dependence on the phase is NaN": phase_dependence_is_nan,
    **{f"stale matrices, {how}": stale(how) for how in ("no_grad", "inference_mode", "data")},
    "handled as a module": handled_as_a_module,
    "training loop": training_loop,
    "synchronised statistics": synchronised_statistics,
    "a map is centred once": centred_once,
    "GradientMonitor": monitor,
    "spectrum_report": report,
    "diagnose": diagnosis,
    "PairRule of a user": own_rule,
    "mixing is refused": mixing_is_refused,
    "waiting is noticed": waiting_is_noticed,
    "NaN is loud": nan_is_loud,
}
