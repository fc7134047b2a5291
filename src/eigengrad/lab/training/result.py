"""What a run ends in: one file, result.json, whether it succeeded or failed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..files import write_atomically
from .config import Config
from .environment import machine, versions
from .settings import Settings

__all__ = ["FAILED", "RESULT_FILE", "SUCCEEDED", "Failure", "Result"]

SUCCEEDED, FAILED = "succeeded", "failed"
RESULT_FILE = "result.json"


@dataclass(frozen=True)
class Failure:
    """How a run failed.

    Attributes:
        step: the step at which it did, counted from 1 over the whole run.
        epoch: the epoch of that step, counted from 1.
        reason: "non-finite loss", "non-finite gradient", "divergence" or "decomposition".
        where: the parameter, layer or phase in which it showed; ``None`` if unknown.
        message: all of it as a sentence.
    """

    step: int
    epoch: int
    reason: str
    where: str | None
    message: str


@dataclass(frozen=True)
class Result:
    """The outcome of a run.

    Attributes:
        config: the settings of the run.
        outcome: "succeeded", or "failed" with a :class:`Failure`.
        curves: name → one number for each complete epoch: train_loss, train_error, test_loss, test_error,
            test_top5_error (with more than five classes), lr, gradient_norm (mean) and gradient_norm_max, seconds (of
            training) and test_seconds.
        best_error, best_epoch, last_error: of the test set, and the epoch (counted from 1) of the best. ``None`` before
            the first epoch is complete.
        steps: how many were taken.
        seconds: of training and evaluation, over all sessions of a run that was interrupted.
        seconds_per_step: the median over epochs of the mean time of a training step.
        gradient: health of the gradients: norm_mean and norm_max over the run; where a gradient rule was at work, the
            share of eigenvalue pairs it acted on and of the exact gradient it removed, and its largest amplification.
        seed, versions, machine: what it was made with.
    """

    config: Any
    outcome: str
    failure: Failure | None = None
    curves: dict[str, list[float]] = field(default_factory=dict)
    best_error: float | None = None
    best_epoch: int | None = None
    last_error: float | None = None
    steps: int = 0
    seconds: float = 0.0
    seconds_per_step: float | None = None
    gradient: dict[str, float] = field(default_factory=dict)
    seed: int = 0
    versions: dict[str, str] = field(default_factory=versions)
    machine: dict[str, Any] = field(default_factory=machine)

    @property
    def succeeded(self) -> bool:
        """Whether the run reached its last epoch."""
        return self.outcome == SUCCEEDED

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON: numbers that are not finite become null."""
        values = {f.name: getattr(self, f.name) for f in fields(self)} | {"config": self.config.to_dict()}
        return {name: _finite(value) for name, value in values.items()}

    def save(self, path: Path) -> None:
        """Write the result, atomically."""
        write_atomically(path, (json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n").encode())

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], config_type: type[Settings] = Config) -> Result:
        """The inverse of :meth:`to_dict`."""
        values = dict(values)
        expected = {f.name for f in fields(cls)}
        odd = sorted(expected ^ set(values))
        if odd:
            raise ValueError(f"fields are missing or unknown: {', '.join(odd)}")
        if values["outcome"] not in (SUCCEEDED, FAILED) or (values["outcome"] == FAILED) != bool(values["failure"]):
            raise ValueError(f"outcome {values['outcome']!r} with failure {values['failure']!r}")
        values["config"] = config_type.from_dict(values["config"])
        values["failure"] = Failure(**values["failure"]) if values["failure"] else None
        values["curves"] = {
            name: [math.nan if value is None else value for value in curve] for name, curve in values["curves"].items()
        }
        return cls(**values)

    @classmethod
    def load(cls, path: Path, config_type: type[Settings] = Config) -> Result:
        """Read a result from its file, or from the folder of a run.

        Raises:
            FileNotFoundError: there is none.
            ValueError: the file is not a whole result; the message names it.
        """
        path = Path(path)
        path = path / RESULT_FILE if path.is_dir() else path
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise FileNotFoundError(f"no result at {path}: the run has not ended, or never began") from None
        try:
            return cls.from_dict(json.loads(content), config_type)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(
                f"{path} is not a whole result ({error}); expected what a finished run writes. "
                "Delete it to do the run again"
            ) from error


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Failure):
        return asdict(value)
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
