"""What a run ends in: one file, result.json, whether it succeeded or failed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..files import read_regular_file, write_atomically
from ..json_fields import require_kind, require_number, require_strings
from .config import Config
from .environment import machine, versions
from .settings import Settings

__all__ = ["FAILED", "RESULT_FILE", "SUCCEEDED", "Failure", "Result"]

SUCCEEDED, FAILED = "succeeded", "failed"
RESULT_FILE = "result.json"

#: Bytes of a result.json; one of 350 epochs has 100 kB.
_LARGEST = 16 << 20


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
        seed, versions, machine: what it was made with; of a run that was interrupted, the last session.
        changes: what was different when the run went on after an interruption, and can have changed the last bits: one
            ``{"step": 40, "what": "threads", "before": 1, "after": 2}`` for each, with the last step before it.
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
    changes: list[dict[str, Any]] = field(default_factory=list)

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
        """The inverse of :meth:`to_dict`.

        Raises:
            ValueError: names a field that is missing, unknown or of the wrong kind.
        """
        require_kind("the whole", values, Mapping)
        values = {"changes": [], **values}  # which results of earlier versions do not have
        expected = {f.name for f in fields(cls)}
        odd = sorted(expected ^ set(values))
        if odd:
            raise ValueError(f"fields are missing or unknown: {', '.join(odd)}")
        if values["outcome"] not in (SUCCEEDED, FAILED) or (values["outcome"] == FAILED) != bool(values["failure"]):
            raise ValueError(f"outcome {values['outcome']!r} with failure {values['failure']!r}")
        _require_types(values)
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
            return cls.from_dict(json.loads(read_regular_file(path, _LARGEST)), config_type)
        except FileNotFoundError:
            raise FileNotFoundError(f"no result at {path}: the run has not ended, or never began") from None
        # An OSError, because a folder, or a file that must not be read, may have this name.
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, OSError) as error:
            raise ValueError(
                f"{path} is not a whole result ({str(error)[:300]}); expected what a finished run writes. "
                "Delete it to do the run again"
            ) from error


def _require_types(values: Mapping[str, Any]) -> None:
    """Refuse what is not of the types that :meth:`Result.to_dict` gives; the settings check themselves."""
    for name in ("best_error", "best_epoch", "last_error", "seconds_per_step"):
        if values[name] is not None:
            require_number(name, values[name], whole=name == "best_epoch")
    for name in ("steps", "seconds", "seed"):
        require_number(name, values[name], whole=name != "seconds")
    if values["failure"] is not None:
        require_kind("failure", values["failure"], dict)
        for name in ("step", "epoch"):
            require_number(f"failure: {name}", values["failure"][name], whole=True)
        for name in ("reason", "message"):
            require_kind(f"failure: {name}", values["failure"][name], str)
        require_kind("failure: where", values["failure"]["where"], str, type(None))
    require_kind("curves", values["curves"], dict)
    for name, curve in values["curves"].items():
        require_kind(f"curves: {name}", curve, list)
        for value in curve:
            if value is not None:
                require_number(f"curves: {name}", value)
    require_kind("gradient", values["gradient"], dict)
    for name, value in values["gradient"].items():
        if value is not None:
            require_number(f"gradient: {name}", value)
    require_strings("versions", values["versions"])
    require_kind("machine", values["machine"], dict)
    require_kind("changes", values["changes"], list)
    for change in values["changes"]:
        require_kind("changes", change, dict)
        if set(change) != {"step", "what", "before", "after"}:
            raise ValueError("changes: expected step, what, before and after")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Failure):
        return asdict(value)
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
