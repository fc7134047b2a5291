"""The training loop: epochs of steps, evaluated, checkpointed, and ended by one result."""

from __future__ import annotations

import contextlib
import itertools
import math
import shutil
import signal
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from ...errors import LinAlgError
from ..files import make_folder, remove_partial
from ..tensors import save_tensors
from . import randomness
from .checkpoint import CheckpointError, Checkpoints, require_same
from .curves import remove_curves, write_curves
from .engine import Engine, StopRequested
from .environment import conditions
from .health import TrainingFailedError, wide
from .lock import locked
from .reporter import Pace, Reporter, Silent, Snapshot, Terminal
from .result import FAILED, RESULT_FILE, SUCCEEDED, Failure, Result
from .scalars import Scalars
from .settings import Settings
from .task import Task

__all__ = ["run", "run_context"]

#: Steps between two entries of the step curves in TensorBoard.
_SCALARS_EVERY = 10

_BEST, _LAST, _SCALARS = "best.pt", "last.pt", "tensorboard"


def run(
    settings: Settings,
    make_task: Callable[[Engine], Task],
    directory: Path | str,
    *,
    resume: bool = True,
    progress: bool | Reporter = True,
    checkpoint_steps: int | None = None,
) -> Result:
    """Train a task.

    The folder gets ``result.json`` (whether the run succeeds or fails), ``best.pt`` and ``last.pt`` (weights:
    ``torch.load(path)["modules"]``, by the name of the module), ``tensorboard/``, and while it runs the checkpoints
    from which it goes on when it is started again. On a CPU a run that was killed any number of times ends with the
    same weights, bit for bit, as one that was not, if it goes on with as many threads and the same versions; else it
    says what has changed, and ``result.json`` lists it.

    Args:
        settings: the settings of the run.
        make_task: makes the task for an engine; called with the random generators seeded.
        directory: the folder of this run alone.
        resume: go on from a checkpoint in the folder; a run that has ended is not repeated. Otherwise start over.
        progress: show a progress bar, or tell a reporter.
        checkpoint_steps: also save every so many steps, besides every epoch.

    Raises:
        ValueError: the folder holds a run with another configuration.
        KeyboardInterrupt: Ctrl-C. The step was finished and saved, and the text says how to go on.
        OSError: the folder cannot be written; what was saved before is intact.
    """
    directory = Path(directory)
    with contextlib.ExitStack() as stack:
        stack.enter_context(run_context(settings))
        engine = Engine(settings.precision)
        if engine.is_main:
            make_folder(directory)
            stack.enter_context(locked(directory))
        opening = engine.from_main(lambda: _open(settings, directory, resume))
        if isinstance(opening, Result):
            return opening
        reporter: Reporter = Silent()
        if engine.is_main and progress:
            reporter = Terminal() if progress is True else progress
        stack.callback(reporter.close)
        task = make_task(engine)
        engine.prepare(task)
        if engine.is_main and not resume:
            _clear(directory)  # only now: what could not be begun has cost nothing
        randomness.seed(settings.seed + engine.rank)
        return _Run(settings, task, directory, reporter, checkpoint_steps).complete(opening)


def _open(settings: Settings, directory: Path, resume: bool) -> Result | dict[str, Any] | None:
    """The result of a run that has ended, the state of one that has begun, or nothing; all of this configuration."""
    remove_partial(directory)
    checkpoints, result_file = Checkpoints(directory), directory / RESULT_FILE
    if not resume:
        return None
    if result_file.exists():
        result = Result.load(result_file, type(settings))
        require_same(result_file, settings, result.config.hash_fields())
        with contextlib.suppress(OSError):  # of a session that was killed before it could remove them
            checkpoints.clear()
            remove_curves(directory)
        return replace(result, config=settings)  # the fields that do not matter may differ
    state = checkpoints.newest()
    if state is not None:
        require_same(directory, settings, state["settings"])
    return state


def _clear(directory: Path) -> None:
    """Remove what an earlier run left."""
    for name in (RESULT_FILE, _BEST, _LAST):
        (directory / name).unlink(missing_ok=True)
    Checkpoints(directory).clear()
    remove_curves(directory)
    shutil.rmtree(directory / _SCALARS, ignore_errors=True)


@contextlib.contextmanager
def run_context(settings: Settings) -> Iterator[None]:
    """Context with the threads and seeded generators of a run; those of the caller are restored."""
    before = torch.get_num_threads()
    with randomness.private():
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        randomness.seed(settings.seed)
        try:
            yield
        finally:
            torch.set_num_threads(before)


class _Run:
    """A run in progress: where it is, and what it has measured so far."""

    def __init__(
        self, settings: Settings, task: Task, directory: Path, reporter: Reporter, checkpoint_steps: int | None
    ) -> None:
        self.settings, self.task, self.engine = settings, task, task.engine
        self.directory, self.reporter, self.checkpoint_steps = directory, reporter, checkpoint_steps
        self.checkpoints = Checkpoints(directory)
        self.scalars: Scalars | None = None
        self.pace = Pace()
        self.epoch = 0  # complete epochs
        self.batch = 0  # batches done in the epoch after them
        self.step = 0
        self.samples = 0
        self.totals: dict[str, Tensor | float] = {}
        self.epoch_seconds = 0.0
        self.seconds = 0.0
        self.curves: dict[str, list[float]] = {}
        self.best: tuple[float, int] | None = None
        self.changes: list[dict[str, Any]] = []

    # The run as a whole ---------------------------------------------------------------------------------------------

    def complete(self, state: dict[str, Any] | None) -> Result:
        """Train to the end of the run, and return its result."""
        if state is not None:
            self.load_state_dict(state)
            self.reporter.message(f"going on at epoch {self.epoch + 1}, step {self.step + 1}, in {self.directory}")
            self._note_changes(state.get("conditions", {}))
        if self.engine.is_main:
            self.scalars = Scalars(self.directory / _SCALARS, self.step)
        failure = request = None
        try:
            request = self._train()
        except TrainingFailedError as error:
            failure = error.failure
        except LinAlgError as error:
            failure = self._decomposition_failure(error)
            if self.engine.world > 1:
                # The other processes may be waiting for this one: only an error makes the launcher end them.
                self._result(failure).save(self.directory / RESULT_FILE)
                raise
        finally:
            if self.scalars is not None:
                self.scalars.close()
        if request is not None:
            self._stop(request)
        return self._finish(failure)

    def _note_changes(self, before: dict[str, Any]) -> None:
        """Say in which conditions this session differs from the one that saved the state, and keep it for the result.

        Sums are taken in another order by other numbers of threads, other processors and other versions, so the weights
        will not be those of a run that was never interrupted, bit for bit.
        """
        now = conditions()
        found = [
            {"step": self.step, "what": name, "before": before.get(name), "after": now.get(name)}
            for name in dict.fromkeys((*before, *now))
            if before and before.get(name) != now.get(name)
        ]
        self.changes += found
        if found:
            listed = ", ".join(f"{c['what']} was {c['before']} and is {c['after']}" for c in found)
            self.reporter.message(
                f"since step {self.step} was saved, {listed}: the last bits of the result will differ from those of an "
                "uninterrupted run"
            )

    def _train(self) -> int | None:
        """Train the remaining epochs; the signal that asked to stop, if one did."""
        try:
            with self.engine.interruption:
                while self.epoch < self.task.epochs:
                    self._train_epoch()
                    self._end_epoch()
        except StopRequested as stop:
            self.engine.check_health()  # only a healthy run is saved to go on
            return stop.signal
        return None

    def _decomposition_failure(self, error: LinAlgError) -> Failure:
        """The failure of a decomposition, unless a loss or gradient that was not checked yet explains it."""
        try:
            self.engine.health.check()
        except TrainingFailedError as earlier:
            return earlier.failure
        step = max(self.engine.health.step, self.step)  # the step it is in; in an evaluation, the last one
        message = f"the decomposition failed at step {step} (epoch {self.epoch + 1}): {error}"
        return Failure(step, self.epoch + 1, "decomposition", _raising_module(error, self.task), message)

    def _finish(self, failure: Failure | None) -> Result:
        """Write the result, then drop what was only needed to get there."""
        result = self._result(failure)
        if self.engine.is_main:
            if failure is None:
                self._save_weights(_LAST)
            result.save(self.directory / RESULT_FILE)
            with contextlib.suppress(OSError):  # beside a result they mean nothing
                self.checkpoints.clear()
                remove_curves(self.directory)
        if failure is not None:
            self.reporter.message(f"failed: {failure.message}")
        return result

    def _result(self, failure: Failure | None) -> Result:
        curves = self.curves
        return Result(
            config=self.settings,
            outcome=SUCCEEDED if failure is None else FAILED,
            failure=failure,
            curves=curves,
            best_error=self.best[0] if self.best else None,
            best_epoch=self.best[1] if self.best else None,
            last_error=curves[self.task.criterion][-1] if curves else None,
            steps=self.step,
            seconds=self.seconds + self.epoch_seconds,
            seconds_per_step=statistics.median(curves["seconds_per_step"]) if curves else None,
            gradient=self.engine.health.summary(curves),
            seed=self.settings.seed,
            changes=self.changes,
        )

    # An epoch -------------------------------------------------------------------------------------------------------

    def _train_epoch(self) -> None:
        """Train the remaining steps of an epoch."""
        engine, task = self.engine, self.task
        batches = task.epoch_batches(self.epoch)
        began, seconds_before, samples_before = time.perf_counter(), self.epoch_seconds, self.samples
        for batch in engine.batches(itertools.islice(iter(batches), self.batch, None)):
            engine.health.step, engine.health.epoch = self.step + 1, self.epoch + 1
            values = task.step(batch)
            size = task.size(batch)
            for name, value in values.items():
                self.totals[name] = self.totals.get(name, 0.0) + wide(value) * size
            self.samples += size
            self.batch += 1
            self.step += 1
            session = time.perf_counter() - began
            self.epoch_seconds = seconds_before + session
            if self.step % engine.look_every == 0:
                self._poll(values, len(batches), (self.samples - samples_before) * engine.world / session)
            if self.checkpoint_steps and self.step % self.checkpoint_steps == 0 and self.batch < len(batches):
                self._save()
        engine.check_health()

    def _poll(self, values: dict[str, Tensor], batches: int, speed: float) -> None:
        """Check the health and report progress, in steps in which waiting for the device costs little."""
        self.engine.check_health()
        if self.scalars is not None and self.step % _SCALARS_EVERY == 0:
            self.scalars.write({f"step/{name}": float(value) for name, value in values.items()}, self.step)
        if self.pace.due():
            means = {name: float(total) / self.samples for name, total in self.totals.items()}
            norm = self.engine.health.mean_norm()
            self.reporter.step(Snapshot(self.epoch + 1, self.task.epochs, self.batch, batches, means, norm, speed))
        self.engine.stop_together()

    def _end_epoch(self) -> None:
        """Evaluate, extend the curves, and save."""
        values = self._training_means()
        if not values["train_loss"] <= self.task.divergence:
            self._fail("divergence", "loss", f"the mean loss has grown to {values['train_loss']:.4g}")
        began = time.perf_counter()
        evaluated = self.task.evaluate()
        test_seconds = time.perf_counter() - began
        broken = [name for name, value in evaluated.items() if not math.isfinite(value)]
        if broken:
            self._fail("non-finite loss", "evaluation", f"{broken[0]} is {evaluated[broken[0]]} in the evaluation")
        values |= evaluated | self.engine.health.end_epoch()
        values |= {"lr": next(iter(self.task.optimizers.values())).param_groups[0]["lr"], "seconds": self.epoch_seconds}
        values |= {"seconds_per_step": self.epoch_seconds / max(self.batch, 1), "test_seconds": test_seconds}
        for name, value in values.items():
            self.curves.setdefault(name, []).append(value)
        self.epoch += 1
        self.seconds += self.epoch_seconds + test_seconds
        self.batch, self.samples, self.totals, self.epoch_seconds = 0, 0, {}, 0.0
        with warnings.catch_warnings():
            # Resumed at the end of an epoch, the schedulers have not seen the steps that were taken.
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
            for scheduler in self.task.schedulers.values():
                scheduler.step()
        self.reporter.epoch(self.epoch, self.task.epochs, values)
        if self.scalars is not None:
            self.scalars.write({f"epoch/{name}": value for name, value in values.items()}, self.epoch)
            self.scalars.images(self.task.images(), self.epoch)
        if self.best is None or values[self.task.criterion] < self.best[0]:
            self.best = (values[self.task.criterion], self.epoch)
            self._save_weights(_BEST)
        if self.engine.is_main:
            write_curves(self.directory, self.epoch, self.task.epochs, self.curves)
        self._save()
        self.engine.stop_together()

    def _training_means(self) -> dict[str, float]:
        """The means over the samples of this epoch, in all processes."""
        names = list(self.totals)
        sums = [*(float(self.totals[name]) for name in names), float(self.samples)]
        *totals, samples = self.engine.sum(self.engine.vector(sums)).tolist()
        return {f"train_{name}": total / samples for name, total in zip(names, totals, strict=True)}

    def _fail(self, reason: str, where: str, what: str) -> None:
        message = f"{what} at step {self.step} (epoch {self.epoch + 1})"
        raise TrainingFailedError(Failure(self.step, self.epoch + 1, reason, where, message))

    # Saving ---------------------------------------------------------------------------------------------------------

    def _stop(self, number: int) -> NoReturn:
        """Save, report how to resume, and end as the signal asks."""
        self._save()
        text = (
            f"interrupted after step {self.step}, in epoch {self.epoch + 1} of {self.task.epochs}; saved in "
            f"{self.directory}. Start the same run again to go on from there"
        )
        if number == signal.SIGINT:
            raise KeyboardInterrupt(text)
        self.reporter.message(text)
        raise SystemExit(128 + number)

    def _save(self) -> None:
        """Write a checkpoint, of healthy weights only."""
        self.engine.check_health()
        state = self.state_dict()
        if self.engine.is_main:
            self.checkpoints.save(self.step, state)

    def _save_weights(self, name: str) -> None:
        if self.engine.is_main:
            content = {"settings": self.settings.to_dict(), "epoch": self.epoch, "modules": self._weights()}
            save_tensors(self.directory / name, content)

    def _weights(self) -> dict[str, dict[str, Any]]:
        return {name: self.engine.unwrap(module).state_dict() for name, module in self.task.modules.items()}

    def state_dict(self) -> dict[str, Any]:
        """The state that the rest of the run depends on."""
        scaler = self.engine.accelerator.scaler
        mine = {
            "random": randomness.capture(),
            "samples": self.samples,
            "totals": {name: float(total) for name, total in self.totals.items()},
        }
        return {
            "settings": self.settings.hash_fields(),
            "conditions": conditions(),
            "changes": self.changes,
            "epoch": self.epoch,
            "batch": self.batch,
            "step": self.step,
            "epoch_seconds": self.epoch_seconds,
            "seconds": self.seconds,
            "curves": self.curves,
            "best": self.best,
            "health": self.engine.health.state_dict(),
            "modules": self._weights(),
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.task.optimizers.items()},
            "schedulers": {name: scheduler.state_dict() for name, scheduler in self.task.schedulers.items()},
            "scaler": scaler.state_dict() if scaler is not None else None,
            "processes": self.engine.gathered(mine),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`state_dict`."""
        processes = state["processes"]
        if len(processes) != self.engine.world:
            raise ValueError(
                f"the run in {self.directory} was begun with {len(processes)} processes, and there are "
                f"{self.engine.world} now; start as many again, or delete the folder to start over"
            )
        try:
            self._load(state, processes[self.engine.rank])
        except Exception as error:  # torch's own load_state_dict raises many kinds
            raise CheckpointError(
                f"the checkpoint of step {state['step']} in {self.directory} does not fit this run "
                f"({type(error).__name__}: {str(error)[:300]}). Delete it to go on from the one before, if there is one"
            ) from error

    def _load(self, state: dict[str, Any], mine: dict[str, Any]) -> None:
        """Take over a state, and the part of it that belongs to this process."""
        for name in ("epoch", "batch", "step", "epoch_seconds", "seconds", "curves", "best"):
            setattr(self, name, state[name])
        self.changes = state.get("changes", [])  # which states of earlier versions do not have
        self.engine.health.load_state_dict(state["health"])
        for name, module in self.task.modules.items():
            self.engine.unwrap(module).load_state_dict(state["modules"][name])
        for kind in ("optimizers", "schedulers"):
            for name, part in getattr(self.task, kind).items():
                part.load_state_dict(state[kind][name])
        if state["scaler"] is not None and self.engine.accelerator.scaler is not None:
            self.engine.accelerator.scaler.load_state_dict(state["scaler"])
        self.samples, self.totals = mine["samples"], dict(mine["totals"])
        randomness.restore(mine["random"])


def _raising_module(error: BaseException, task: Task) -> str | None:
    """The innermost layer in whose forward pass an error was raised; in a backward pass it is not known."""
    names = {id(layer): name for module in task.modules.values() for name, layer in module.named_modules()}
    found, trace = None, error.__traceback__
    while trace is not None:
        found = names.get(id(trace.tb_frame.f_locals.get("self")), found)
        trace = trace.tb_next
    return found.removeprefix("module.") if found else None
