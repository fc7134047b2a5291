"""The cases of ``test_devices.py``: run as a script with the name of a group, it checks all cases of the group.

A case runs on the CPU, with kernels off so that the same operations are compared, and on the second device. Results and
gradients must be equal to round-off, on the device, and in the same layout; neither the forward nor the backward pass
may wait for the device.
"""

from __future__ import annotations

import copy
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import eigengrad as eg
import eigengrad.nn as nn
from eigengrad.nn.whiten_color import whiten_color
from second_device import DEVICE, WAITS, no_waiting

Case = Callable[[], None]
GROUPS: dict[str, dict[str, Case]] = {"functions": {}, "rules": {}, "modes": {}, "layers": {}, "state": {}}

generator = torch.Generator().manual_seed(0)


def randn(*shape: int, **options: Any) -> Tensor:
    return torch.randn(*shape, generator=generator, **options)


def compare(function: Callable[..., Any], *inputs: Tensor, backward: bool = True, rtol: float = 1e-4) -> Case:
    """A case: a function of tensors, the same on both devices."""

    def check() -> None:
        here, there = (_results(function, inputs, device, backward) for device in (torch.device("cpu"), DEVICE))
        assert len(here) == len(there)
        for expected, found in zip(here, there, strict=True):
            assert found.device == DEVICE, found.device
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            assert found.ndim != 4 or found.stride() == expected.stride(), (found.stride(), expected.stride())
            torch.testing.assert_close(found.cpu(), expected, rtol=rtol, atol=rtol * float(expected.abs().amax()))

    return check


def _results(
    function: Callable[..., Any], inputs: tuple[Tensor, ...], device: torch.device, backward: bool
) -> list[Tensor]:
    xs = [x.detach().clone().to(device).requires_grad_(backward) for x in inputs]
    with no_waiting():
        out = function(*xs)
    outputs = list(out) if isinstance(out, tuple) else [out]
    if not backward:
        return [y.detach() for y in outputs]
    seeds = [torch.linspace(1, 2, y.numel(), dtype=y.dtype).view(y.shape).to(device) for y in outputs]
    with no_waiting():
        torch.autograd.backward(outputs, seeds)
    return [y.detach() for y in outputs] + [x.grad for x in xs if x.grad is not None]


R = randn(4, 6, 6)
S = R @ R.mT + 0.1 * torch.eye(6)
TALL = randn(3, 7, 4)


def squares(result: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Without signs and phases, which are arbitrary."""
    return tuple(x.abs() ** 2 if x.ndim == 3 else x for x in result)


functions = GROUPS["functions"]
functions["eigh"] = compare(lambda A: squares(eg.eigh(A)), S)
functions["eigh U"] = compare(lambda A: squares(eg.eigh(A, "U")), S)
functions["eigh k"] = compare(lambda A: squares(eg.eigh(A, k=2)), S)
functions["eigh complex"] = compare(lambda A: squares(eg.eigh(torch.complex(A + A.mT, A - A.mT))), R.double())
functions["eigvalsh"] = compare(lambda A: eg.eigvalsh(A), S)
functions["svd"] = compare(lambda A: squares(eg.svd(A, full_matrices=False)), TALL)
functions["svd complex"] = compare(
    lambda A: squares(eg.svd(torch.complex(A, A.flip(-1)), full_matrices=False)), TALL.double()
)
functions["polar"] = compare(lambda A: tuple(eg.polar(A)), TALL)
functions["procrustes"] = compare(lambda A, B: eg.procrustes(A, B), TALL, randn(3, 7, 4))
for f in (eg.matrix_sqrt, eg.matrix_inv_sqrt, eg.matrix_log, eg.matrix_exp):
    functions[f.__name__] = compare(lambda A, f=f: f(A), S)
for f in (eg.matrix_sqrt, eg.matrix_inv_sqrt, eg.matrix_log):
    functions[f"{f.__name__} eps"] = compare(lambda A, f=f: f(A, eps=1e-2), S)
functions["matrix_power"] = compare(lambda A: eg.matrix_power(A, 0.3), S)
functions["newton_schulz_sqrt"] = compare(lambda A: eg.newton_schulz_sqrt(A), S)
functions["newton_schulz_inv_sqrt"] = compare(lambda A: eg.newton_schulz_inv_sqrt(A), S)
functions["bfloat16"] = compare(lambda A: eg.eigh(A).eigenvalues, S.bfloat16(), rtol=0.02)

for rule in ("saturate", "taylor", "exact", "clip", "lorentzian", "mask", "truncate", "power_iteration"):
    GROUPS["rules"][f"eigh {rule}"] = compare(lambda A, rule=rule: squares(eg.eigh(A, gradient=rule)), S)
    GROUPS["rules"][f"matrix_inv_sqrt {rule}"] = compare(
        lambda A, rule=rule: eg.matrix_inv_sqrt(A, eps=1e-2, gradient=eg.gradients.resolve(rule)), S
    )
for rule in ("saturate", "exact", "mask"):
    GROUPS["rules"][f"svd {rule}"] = compare(
        lambda A, rule=rule: squares(eg.svd(A, full_matrices=False, gradient=rule)), TALL
    )


def _second_derivative(A: Tensor) -> Tensor:
    (g,) = torch.autograd.grad(eg.matrix_inv_sqrt(A, eps=1e-2).sum(), A, create_graph=True)
    return g


def _autocast(A: Tensor) -> Tensor:
    with torch.autocast(A.device.type, dtype=torch.bfloat16):
        return eg.matrix_inv_sqrt(A, eps=1e-2)


modes = GROUPS["modes"]
modes["second derivative"] = compare(_second_derivative, S.double())
modes["forward mode of eigh"] = compare(
    lambda A: tuple(torch.func.jvp(lambda M: squares(eg.eigh(M)), (A,), (torch.ones_like(A),))[1]), S, backward=False
)
modes["forward mode of matrix_inv_sqrt"] = compare(
    lambda A: torch.func.jvp(lambda M: eg.matrix_inv_sqrt(M, eps=1e-2), (A,), (torch.ones_like(A),))[1],
    S,
    backward=False,
)
modes["vmap"] = compare(lambda A: torch.func.vmap(lambda M: eg.matrix_inv_sqrt(M, eps=1e-2))(A), S, backward=False)
modes["grad"] = compare(lambda A: torch.func.grad(lambda M: eg.matrix_sqrt(M, eps=1e-2).sum())(A), S, backward=False)
modes["domain under vmap"] = compare(lambda A: torch.func.vmap(lambda M: eg.matrix_sqrt(M))(A), S, backward=False)
modes["autocast"] = compare(_autocast, S)
modes["no_grad"] = compare(lambda A: squares(eg.eigh(A)), S, backward=False)


def layer(make: Callable[[], torch.nn.Module], evaluate: bool = False) -> Callable[..., Any]:
    """A function that makes the layer, moves it, and applies it in training, or after training in evaluation."""

    def apply(*inputs: Tensor) -> Any:
        device = inputs[0].device
        module = make().to(device)
        WAITS.clear()  # what moves parameters may wait
        out = module(*inputs)
        if evaluate:
            module.eval()
            out = module(*inputs)
        return out

    return apply


MAPS, STYLE = randn(6, 8, 5, 5) * 2 + 3, randn(6, 8, 4, 4)
layers = GROUPS["layers"]
for layout in (torch.contiguous_format, torch.channels_last):
    x, tag = MAPS.contiguous(memory_format=layout), str(layout).removeprefix("torch.")
    for name, options in {
        "": {},
        " cholesky": {"whitening": "cholesky"},
        " taylor": {"gradient": "taylor"},
        " svd": {"gradient": "svd"},
        " momentum None": {"momentum": None},
        " without weight": {"affine": False},
    }.items():
        make = lambda options=options: nn.DecorrelatedBatchNorm2d(8, group_size=4, **options)  # noqa: E731
        layers[f"DecorrelatedBatchNorm2d{name} {tag}"] = compare(layer(make), x, rtol=1e-3)
    make = lambda: nn.DecorrelatedBatchNorm2d(8, group_size=4)  # noqa: E731
    layers[f"DecorrelatedBatchNorm2d evaluation {tag}"] = compare(layer(make, evaluate=True), x, rtol=1e-3)
    layers[f"IterativeNorm {tag}"] = compare(layer(lambda: nn.IterativeNorm(8, group_size=4)), x, rtol=1e-3)
    layers[f"SecondOrderPool2d {tag}"] = compare(layer(nn.SecondOrderPool2d), x, rtol=1e-3)
    for name, options in {
        "": {},
        " alpha": {"alpha": 0.5},
        " taylor": {"gradient": "taylor"},
        " batch": {"per_sample": False},
    }.items():
        make = lambda options=options: nn.WhitenColor2d(8, groups=2, **options)  # noqa: E731
        layers[f"WhitenColor2d{name} {tag}"] = compare(layer(make), x, STYLE, rtol=1e-3)
layers["DecorrelatedBatchNorm1d"] = compare(layer(lambda: nn.DecorrelatedBatchNorm1d(8)), randn(40, 8), rtol=1e-3)
layers["DecorrelatedBatchNorm3d"] = compare(
    layer(lambda: nn.DecorrelatedBatchNorm3d(8, group_size=4)), randn(6, 8, 3, 3, 3), rtol=1e-3
)
layers["few points in SecondOrderPool2d"] = compare(layer(nn.SecondOrderPool2d), randn(3, 16, 2, 2), rtol=1e-3)
layers["strength of whiten_color as a tensor"] = compare(
    lambda c, s, a: whiten_color(c, s, groups=2, alpha=a), MAPS, STYLE, torch.rand(6, generator=generator), rtol=1e-3
)


def _stale(how: str) -> Case:
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


def _handled_as_a_module() -> None:
    norm = nn.DecorrelatedBatchNorm2d(8, group_size=4, device=DEVICE)
    assert copy.deepcopy(norm).running_covariance.device == DEVICE
    norm.load_state_dict(nn.DecorrelatedBatchNorm2d(8, group_size=4).state_dict())
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)).to(DEVICE)
    converted = nn.DecorrelatedBatchNorm2d.convert_batchnorm(model, group_size=4)
    assert converted(randn(2, 3, 8, 8).to(DEVICE)).device == DEVICE
    assert norm(torch.empty(0, 8, 3, 3).to(DEVICE)).shape == (0, 8, 3, 3)


def _training_loop() -> None:
    norm = nn.DecorrelatedBatchNorm2d(8, group_size=4, momentum=None).to(DEVICE)
    optimiser, x = torch.optim.SGD(norm.parameters(), lr=0.1), randn(4, 8, 3, 3).to(DEVICE)
    with no_waiting():
        for _ in range(3):
            optimiser.zero_grad()
            norm(x).square().mean().backward()
            optimiser.step()


def _mixing_is_refused() -> None:
    for mixed in (lambda: S.to(DEVICE) @ S, lambda: torch.where(S > 0, S.to(DEVICE), 0.0)):
        with pytest.raises(RuntimeError, match="same device"):
            mixed()


def _waiting_is_noticed() -> None:
    A = S.to(DEVICE)
    for waits in (lambda: A.sum().item(), lambda: bool((A > 0).any()), lambda: A[A > 0], lambda: A.cpu()):
        with pytest.raises(AssertionError, match="the host waits"), no_waiting():
            waits()


def _nan_is_loud() -> None:
    A = S.clone()
    A[1, 0, 0] = torch.nan
    with pytest.raises(eg.NonFiniteError, match="batch element 1"):  # torch's own, which has waited anyway
        eg.eigh(A.to(DEVICE))
    assert eg.matrix_sqrt((-S).to(DEVICE)).cpu().isnan().all()


def _phase_dependence_is_nan() -> None:
    """On the CPU it is a GaugeError, which would wait for the device here."""
    H = torch.complex(S, (R - R.mT)).to(DEVICE).requires_grad_()
    V = eg.eigh(H).eigenvectors
    with no_waiting():
        V[1].imag.sum().backward()
    assert H.grad.cpu().isnan().any(-1).any(-1).tolist() == [False, True, False, False]


GROUPS["state"] = {
    "dependence on the phase is NaN": _phase_dependence_is_nan,
    **{f"stale matrices, {how}": _stale(how) for how in ("no_grad", "inference_mode", "data")},
    "handled as a module": _handled_as_a_module,
    "training loop": _training_loop,
    "mixing is refused": _mixing_is_refused,
    "waiting is noticed": _waiting_is_noticed,
    "NaN is loud": _nan_is_loud,
}


def main(group: str) -> int:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", eg.GradientWarning)
    failed = []
    with eg.kernels.disable():
        for name, check in GROUPS[group].items():
            try:
                check()
            except Exception:
                failed.append(name)
                print(f"FAILED {group}: {name}\n{traceback.format_exc(limit=-6)}")
    print(f"{len(GROUPS[group])} cases, {len(failed)} failed: {', '.join(failed)}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1]), 100))
