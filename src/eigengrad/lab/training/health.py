"""The health of a training: finite losses and gradients, and how much gradient rules change."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...diagnostics import GradientMonitor
from .result import Failure

__all__ = ["Health", "TrainingFailedError", "wide"]

#: A monitored backward pass does without the fused kernel, so only one step in so many is monitored.
MONITOR_EVERY = 20


def wide(value: Tensor) -> Tensor:
    """A number in the type that sums are taken in: float64 where the device has it."""
    return value if value.device.type == "mps" else value.double()


class TrainingFailedError(Exception):
    """The run cannot go on; it ends in a result that says so."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True)
class _Descent:
    """What was minimised in a step, and the norm of the gradient of each parameter, still on the device."""

    step: int
    epoch: int
    loss: Tensor
    names: Sequence[str]
    norms: Tensor


class Health:
    """The losses and gradients of a run.

    They are collected on the device and read by :meth:`check`, which waits for it; a failure is dated by the step
    that caused it, however late it is found.

    Attributes:
        step, epoch: where the run is, counted from 1; the loop sets them.
    """

    def __init__(self) -> None:
        self.step = 0
        self.epoch = 0
        self._pending: list[_Descent] = []
        self._norm_sum: Any = 0.0
        self._norm_max: Any = 0.0
        self._norm_count = 0
        self._pairs = 0
        self._acted = self._removed = self._amplification = 0.0
        self._matrices = self._truncated = 0
        self._lost = self._rank = 0.0

    @contextmanager
    def monitored(self) -> Iterator[None]:
        """Context for a backward pass that monitors its gradient rules, in one step out of :data:`MONITOR_EVERY`."""
        if self.step % MONITOR_EVERY != 1:
            yield
            return
        with GradientMonitor() as monitor:
            yield
        if monitor.matrices:
            self._matrices += monitor.matrices
            self._lost += monitor.lost * monitor.matrices
        if not math.isnan(monitor.rank):
            self._truncated += 1
            self._rank += monitor.rank
        if monitor.pairs:
            self._pairs += monitor.pairs
            self._acted += monitor.acted * monitor.pairs
            self._removed += monitor.removed * monitor.pairs
            self._amplification = max(self._amplification, monitor.amplification)

    def record(self, loss: Tensor, gradients: dict[str, Tensor]) -> None:
        """Note a loss and the gradients it had, by parameter."""
        norms = torch.stack(torch._foreach_norm(list(gradients.values()), 2.0))
        norm = torch.nan_to_num(norms.norm(), nan=0.0, posinf=0.0)  # a broken one ends the run, but not its statistics
        self._norm_sum = self._norm_sum + wide(norm)
        self._norm_max = torch.maximum(norm, torch.as_tensor(self._norm_max, dtype=norm.dtype, device=norm.device))
        self._norm_count += 1
        self._pending.append(_Descent(self.step, self.epoch, loss.detach(), list(gradients), norms))

    def check(
        self,
        mean_over_processes: Callable[[Tensor], Tensor] | None = None,
        gradients: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Raise :class:`TrainingFailedError` at the first loss or gradient that was not finite.

        Args:
            mean_over_processes: takes a tensor to its mean over all processes, so that all of them agree.
            gradients: of the last step, if they are at hand: they tell a norm that overflows from a broken gradient.
        """
        pending, self._pending = self._pending, []
        if not pending:
            return
        losses = torch.stack([descent.loss for descent in pending])
        if mean_over_processes is not None:
            losses = mean_over_processes(losses)
        total = losses.sum() + torch.stack([descent.norms.sum() for descent in pending]).sum()
        if bool(total.isfinite()):  # the only wait for the device
            return
        for descent, loss in zip(pending, losses.tolist(), strict=True):
            self._examine(descent, loss, gradients)

    def _examine(self, descent: _Descent, loss: float, gradients: Mapping[str, Tensor] | None) -> None:
        at = f"at step {descent.step} (epoch {descent.epoch})"
        if not math.isfinite(loss):
            self._fail(descent, "non-finite loss", "loss", f"the loss is {loss} {at}")
        broken = [name for name, fine in zip(descent.names, descent.norms.isfinite().tolist(), strict=True) if not fine]
        if broken and gradients is not None and all(bool(gradients[name].isfinite().all()) for name in broken):
            message = f"the gradient of {broken[0]} has grown beyond float32 {at}, with a loss of {loss:.4g}"
            self._fail(descent, "divergence", broken[0], message)
        if broken:
            others = f" (and of {len(broken) - 1} more parameters)" if len(broken) > 1 else ""
            message = f"the gradient of {broken[0]}{others} is not finite {at}, with a loss of {loss:.4g}"
            self._fail(descent, "non-finite gradient", broken[0], message)

    @staticmethod
    def _fail(descent: _Descent, reason: str, where: str, message: str) -> None:
        raise TrainingFailedError(Failure(descent.step, descent.epoch, reason, where, message))

    def end_epoch(self) -> dict[str, float]:
        """Mean and maximum of the gradient norm since the last call."""
        found = self._norms()
        self._norm_sum, self._norm_max, self._norm_count = 0.0, 0.0, 0
        return found

    def mean_norm(self) -> float:
        """The mean norm of the gradients in this epoch so far."""
        return self._norms()["gradient_norm"]

    def _norms(self) -> dict[str, float]:
        count = max(self._norm_count, 1)
        return {"gradient_norm": float(self._norm_sum) / count, "gradient_norm_max": float(self._norm_max)}

    def summary(self, curves: dict[str, list[float]]) -> dict[str, float]:
        """The summary of the whole run, with the curves of its complete epochs."""
        means, maxima = list(curves.get("gradient_norm", [])), list(curves.get("gradient_norm_max", []))
        if self._norm_count:
            unfinished = self._norms()
            means.append(unfinished["gradient_norm"])
            maxima.append(unfinished["gradient_norm_max"])
        found = {"norm_mean": sum(means) / len(means), "norm_max": max(maxima)} if means else {}
        if self._pairs:
            found |= {"acted": self._acted / self._pairs, "removed": self._removed / self._pairs}
            found["amplification"] = self._amplification
        if self._matrices:
            found["lost"] = self._lost / self._matrices
        if self._truncated:
            found["rank"] = self._rank / self._truncated
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def state_dict(self) -> dict[str, float]:
        """What a resumed run needs to end with the same summary."""
        return {
            "norm_sum": float(self._norm_sum),
            "norm_max": float(self._norm_max),
            "norm_count": self._norm_count,
            "pairs": self._pairs,
            "acted": self._acted,
            "removed": self._removed,
            "amplification": self._amplification,
            "matrices": self._matrices,
            "lost": self._lost,
            "truncated": self._truncated,
            "rank": self._rank,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`state_dict`."""
        for name, value in state.items():
            setattr(self, f"_{name}", value)
