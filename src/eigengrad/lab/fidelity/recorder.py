"""Records what the whitening layers of a model are given while it is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ...arguments import require_integer
from ...gradients import GradientRule
from ...nn import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d, DecorrelatedBatchNorm3d, IterativeNorm
from .snapshot import Snapshot, take_snapshot

if TYPE_CHECKING:
    from .report import Fidelity

__all__ = ["Recording", "record_whitening"]

_LAYERS = (DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d, DecorrelatedBatchNorm3d, IterativeNorm)


class Recording:
    """The snapshots of a model's whitening layers.

    Attributes:
        snapshots: in the order they were taken.
    """

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []

    def report(self, methods: Mapping[str, str | GradientRule] | None = None) -> Fidelity:
        """Compute the gradient of every method on every snapshot.

        Args:
            methods: further methods by name, such as ``{"mine": MyRule()}``, beside those of
                :func:`~eigengrad.lab.fidelity.fidelity_methods`.

        Raises:
            ValueError: nothing was recorded.
        """
        from .report import Fidelity

        return Fidelity.of(self.snapshots, methods)

    def write(self, directory: Path | str) -> Path:
        """Write :meth:`report` to a folder, and return its ``README.md``."""
        return self.report().write(directory)


@contextmanager
def record_whitening(
    model: nn.Module, every: int = 10, *, sink: Callable[[Snapshot], None] | None = None
) -> Iterator[Recording]:
    """Context in which the ZCA whitening layers of a model are recorded in training, in one step out of ``every``.

    The layers are ``eigengrad.nn.DecorrelatedBatchNorm1d/2d/3d`` and ``IterativeNorm``. Nothing about the training
    changes: a snapshot reads the input of a layer and the gradient of its output, and keeps three matrices of the size
    of its covariance.

    Args:
        model: to be trained inside the context; its layers are found when it is entered.
        every: steps from one snapshot to the next, counted by layer.
        sink: receives each snapshot instead of the recording, for runs that are too long to keep them all.

    Raises:
        ValueError: the model has no such layer.

    >>> import torch
    >>> from eigengrad.nn import DecorrelatedBatchNorm1d
    >>> model = torch.nn.Sequential(torch.nn.Linear(5, 4), DecorrelatedBatchNorm1d(4), torch.nn.Linear(4, 2))
    >>> with record_whitening(model, every=1) as recording:
    ...     model(torch.randn(32, 5)).square().sum().backward()
    >>> [(s.layer, tuple(s.covariance.shape)) for s in recording.snapshots]
    [('1', (1, 4, 4))]
    """
    require_integer("record_whitening", "every", every, minimum=1)
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, _LAYERS) and getattr(layer, "whitening", "zca") == "zca"
    }
    if not layers:
        raise ValueError(
            f"record_whitening: {type(model).__name__} has no whitening layer; expected a model with "
            "eigengrad.nn.DecorrelatedBatchNorm2d (whitening='zca') or the like"
        )
    recording = Recording()
    receive = recording.snapshots.append if sink is None else sink
    with ExitStack() as stack:
        for name, layer in layers.items():
            hook = layer.register_forward_hook(_Watch(name, every, receive))
            stack.callback(hook.remove)
        yield recording


class _Watch:
    """The forward hook of one layer."""

    def __init__(self, name: str, every: int, receive: Callable[[Snapshot], None]) -> None:
        self.name, self.every, self.receive, self.step = name, every, receive, 0

    def __call__(self, layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if not layer.training or not output.requires_grad:
            return
        step, self.step = self.step, self.step + 1
        if step % self.every:
            return
        x, weight = inputs[0].detach(), None if layer.weight is None else layer.weight.detach().clone()

        def take(gy: Tensor) -> None:
            self.receive(take_snapshot(self.name, step, layer.eps, layer.num_groups, x, gy, weight))

        output.register_hook(take)
