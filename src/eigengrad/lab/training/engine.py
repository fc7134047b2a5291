"""Devices, precision and processes: Hugging Face Accelerate, as far as a task needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from accelerate import Accelerator  # type: ignore[import-untyped]
from accelerate.state import AcceleratorState  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.optim import Optimizer

from .health import Health
from .interruption import Interruption

if TYPE_CHECKING:
    from .task import Task

__all__ = ["Engine", "StopRequested"]

#: Steps between two looks at a device that has to be waited for.
LOOK_EVERY = 10


class StopRequested(BaseException):
    """A signal asked the run to stop, and this is a point where it can."""

    def __init__(self, signal: int) -> None:
        self.signal = signal


class Engine:
    """Where and how a task is computed: one process or many, in single, double or mixed precision.

    Processes are started by ``torchrun`` or ``accelerate launch``; started without them, there is one.

    Args:
        precision: "no" (float32), "float64", "bf16" or "fp16".

    Attributes:
        device: of this process.
        dtype: of the parameters and of the batches.
        rank, world: which process this is, of how many.
        health: what is known about losses and gradients.
        look_every: how often health is checked, in steps: always where that does not mean waiting.
    """

    def __init__(self, precision: str = "no") -> None:
        # Accelerate keeps the precision for the whole process; another run may want another one.
        AcceleratorState._reset_state()
        # Without cpu=True it would take processes without a GPU for runs of their own.
        self.dtype = torch.float64 if precision == "float64" else torch.float32
        mixed = "no" if precision == "float64" else precision
        self.accelerator = Accelerator(mixed_precision=mixed, cpu=not torch.accelerator.is_available())
        self.device: torch.device = self.accelerator.device
        if precision == "fp16" and self.device.type == "cpu":
            raise ValueError("precision: got 'fp16', but there is no GPU here; expected 'bf16' or 'no' on a CPU")
        if precision == "float64" and self.device.type == "mps":
            raise ValueError("precision: got 'float64', which this device does not have; expected 'no' on it")
        self.rank: int = self.accelerator.process_index
        self.world: int = self.accelerator.num_processes
        self.health = Health()
        self.interruption = Interruption()
        self.look_every = 1 if self.device.type == "cpu" else LOOK_EVERY
        self._optimizers: dict[str, Optimizer] = {}
        self._parameters: dict[str, dict[str, nn.Parameter]] = {}

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def prepare(self, task: Task) -> None:
        """Put the modules and optimisers of a task on the device, in its own dictionaries."""
        prefixes = {name: f"{name}." if len(task.modules) > 1 else "" for name in task.modules}
        names = {
            id(parameter): prefixes[module] + name
            for module, network in task.modules.items()
            for name, parameter in network.named_parameters()
        }
        for name, network in task.modules.items():
            task.modules[name] = self.accelerator.prepare(network.to(self.dtype))
        for name, optimizer in task.optimizers.items():
            task.optimizers[name] = self.accelerator.prepare(optimizer)
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            self._parameters[name] = {names[id(p)]: p for p in parameters}
        self._optimizers = task.optimizers

    def unwrap(self, module: nn.Module) -> nn.Module:
        """The module without what Accelerate put around it."""
        inner: nn.Module = self.accelerator.unwrap_model(module, keep_fp32_wrapper=True)
        return inner

    def descend(self, loss: Tensor, optimizer: str = "model") -> None:
        """Take a step of an optimiser down the gradient of a loss, and record the norms of the gradient."""
        chosen = self._optimizers[optimizer]
        chosen.zero_grad()
        with self.health.monitored():
            self.accelerator.backward(loss)
        self.accelerator.unscale_gradients(chosen)  # only float16 scales them
        gradients = {name: p.grad for name, p in self._parameters[optimizer].items() if p.grad is not None}
        if not self._overflowed(gradients):
            self.health.record(loss, gradients)
            if self.look_every == 1:
                self.check_health(gradients)  # before the weights are touched
        chosen.step()

    def _overflowed(self, gradients: dict[str, Tensor]) -> bool:
        """Whether float16 overflowed by its scale alone: such a step is skipped, and the scale lowered, as intended."""
        scaler = self.accelerator.scaler
        if scaler is None or scaler.get_scale() < 1:
            return False
        return not bool(torch.stack([g.isfinite().all() for g in gradients.values()]).all())

    def check_health(self, gradients: Mapping[str, Tensor] | None = None) -> None:
        """Raise, in every process, if a loss or gradient since the last check was not finite."""
        self.health.check(self.mean if self.world > 1 else None, gradients)

    def batches(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Batches (tuples of tensors) on the device, until the process is asked to stop.

        Several processes have to stop at the same batch: see :meth:`stop_together`.
        """
        for batch in batches:
            if self.world == 1 and self.interruption.signal is not None:
                raise StopRequested(self.interruption.signal)
            yield tuple(self.placed(part) for part in batch)

    def placed(self, data: Tensor) -> Tensor:
        """Data on the device and in the type of the parameters; labels stay the integers they are."""
        return data.to(self.device, self.dtype if data.is_floating_point() else data.dtype, non_blocking=True)

    def vector(self, values: Sequence[float]) -> Tensor:
        """Numbers on the device, in float64 where it has that."""
        kind = torch.float32 if self.device.type == "mps" else torch.float64
        return torch.tensor(values, dtype=kind, device=self.device)

    def mean(self, values: Tensor) -> Tensor:
        """The mean over all processes."""
        return self.accelerator.reduce(values, "mean") if self.world > 1 else values

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        return self.accelerator.reduce(values, "sum") if self.world > 1 else values

    def stop_together(self) -> None:
        """Raise in every process if any of them was asked to stop."""
        if self.world == 1:
            return
        flag = torch.tensor(self.interruption.signal or 0, device=self.device)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        if int(flag):
            raise StopRequested(int(flag))

    def from_main(self, make: Callable[[], Any]) -> Any:
        """What the main process makes, in every process; an exception there is one everywhere."""
        if self.world == 1:
            return make()
        answer: list[Any] = [None, None]
        if self.is_main:
            try:
                answer[0] = make()
            except Exception as error:
                answer[1] = error
        dist.broadcast_object_list(answer, 0)
        if answer[1] is not None:
            raise answer[1]
        return answer[0]

    def gathered(self, value: Any) -> list[Any]:
        """The values of all processes, in the order of their rank."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values
