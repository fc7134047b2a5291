"""The cases of ``test_devices.py``: run as a script with the name of a group, it checks all cases of the group.

A case runs on the CPU, with kernels off so that the same operations are compared, and on the device under test. Results
and derivatives must be equal to round-off, on the device, and in the same layout, and the host may not wait for the
device. Each case is checked in both passes, in forward mode and under autocast.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

import eigengrad as eg
from device_under_test import DEVICE, IS_GPU, no_waiting

__all__ = ["Case", "covered", "main", "randn"]

generator = torch.Generator().manual_seed(0)


def randn(*shape: int, **options: Any) -> Tensor:
    return torch.randn(*shape, generator=generator, **options)


@dataclass
class Case:
    """A function of tensors that gives a tensor or a tuple of them, the same on every device.

    Args:
        function: without signs and phases in its results, which are arbitrary. If ``made_for`` is set, what makes it
            for a device: a layer and its parameters, for example.
        inputs: of the function, on the CPU; all are differentiated.
        rtol: against the largest entry of a result.
        backward, forward_mode, autocast: whether there is such a thing to check.
    """

    function: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    rtol: float = 1e-4
    backward: bool = True
    forward_mode: bool = True
    autocast: bool = True
    made_for: bool = False

    def check(self) -> None:
        """Compare the devices in all modes."""
        self._compare(self._both_passes if self.backward else self._forward)
        if self.forward_mode:
            self._compare(self._tangents)
        if self.autocast:
            self._compare(self._under_autocast)

    def _compare(self, run: Callable[[torch.device], list[Tensor]]) -> None:
        here, there = run(torch.device("cpu")), run(DEVICE)
        assert len(here) == len(there)
        for expected, found in zip(here, there, strict=True):
            assert found.device == DEVICE, found.device
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            assert found.ndim != 4 or found.stride() == expected.stride(), (found.stride(), expected.stride())
            size = float(expected.abs().amax()) if expected.numel() else 0.0
            torch.testing.assert_close(found.cpu(), expected, rtol=self.rtol, atol=self.rtol * size, equal_nan=True)

    def _on(self, device: torch.device, differentiated: bool) -> tuple[Callable[..., Any], list[Tensor]]:
        """The function and its inputs on a device."""
        function = self.function(device) if self.made_for else self.function
        xs = [x.detach().clone().to(device).requires_grad_(differentiated) for x in self.inputs]
        if IS_GPU and device == DEVICE:  # the first call of a kind measures, and waits for it
            outputs = _listed(function(*xs))
            if differentiated:
                torch.autograd.grad(outputs, xs, [_ramp(y).to(device) for y in outputs], allow_unused=True)
        return function, xs

    def _forward(self, device: torch.device) -> list[Tensor]:
        function, xs = self._on(device, False)
        with no_waiting():
            return _listed(function(*xs))

    def _both_passes(self, device: torch.device) -> list[Tensor]:
        function, xs = self._on(device, True)
        with no_waiting():
            outputs = _listed(function(*xs))
        seeds = [_ramp(y).to(device) for y in outputs]
        with no_waiting():
            torch.autograd.backward(outputs, seeds)
        return [y.detach() for y in outputs] + [x.grad for x in xs if x.grad is not None]

    def _tangents(self, device: torch.device) -> list[Tensor]:
        function, xs = self._on(device, False)
        directions = [_ramp(x).to(device) for x in xs]
        with no_waiting(), forward_ad.dual_level():
            outputs = _listed(function(*map(forward_ad.make_dual, xs, directions)))
            return [forward_ad.unpack_dual(y).tangent.detach() for y in outputs]

    def _under_autocast(self, device: torch.device) -> list[Tensor]:
        function, xs = self._on(device, self.backward)
        with no_waiting(), torch.autocast(device.type, dtype=torch.bfloat16):
            outputs = _listed(function(*xs))
        return [y.detach() for y in outputs]


def _listed(out: Any) -> list[Tensor]:
    return list(out) if isinstance(out, tuple) else [out]


def _ramp(x: Tensor) -> Tensor:
    """A tensor of the shape and type of ``x`` with different entries, on the CPU."""
    return torch.linspace(1, 2, x.numel(), dtype=x.dtype).view(x.shape)


def groups() -> dict[str, dict[str, Callable[[], None]]]:
    """All cases by group and name."""
    import device_functions
    import device_layers
    import device_state

    found: dict[str, dict[str, Callable[[], None]]] = {"state": dict(device_state.CHECKS)}
    for name, cases in {**device_functions.GROUPS, **device_layers.GROUPS}.items():
        found[name] = {key: case.check for key, case in cases.items()}
    return found


def covered() -> set[str]:
    """The public names that have a case: the first words of the cases' names."""
    return {name.split()[0] for cases in groups().values() for name in cases}


def main(names: list[str]) -> int:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", eg.GradientWarning)
    failed = []
    cases = [(group, name, check) for group in names for name, check in groups()[group].items()]
    with eg.kernels.disable():
        for group, name, check in cases:
            try:
                check()
            except Exception:
                failed.append(name)
                print(f"FAILED {group}: {name}\n{traceback.format_exc(limit=-6)[:2000]}")
    print(f"{len(cases)} cases, {len(failed)} failed: {', '.join(failed)}")
    return len(failed)


if __name__ == "__main__":
    sys.modules["device_cases"] = sys.modules["__main__"]  # which the files of cases import
    if sys.argv[1] == "--covered":
        print("\n".join(sorted(covered())))
    else:
        sys.exit(min(main(sys.argv[1:]), 100))
