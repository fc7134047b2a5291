"""What a run is told: an immutable record that is JSON on disk and has a short name of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import Self

from ...arguments import require_integer
from ...errors import unknown_choice

__all__ = ["PRECISIONS", "Settings"]

PRECISIONS = ("no", "float64", "bf16", "fp16")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The fields that every kind of training has. A kind of training adds its own in a subclass.

    Args:
        seed: of the initial weights, of the order of the images and of their augmentation.
        precision: of the arithmetic: "no" (float32), "float64" (to compare runs beyond the round-off that training
            amplifies), "bf16" or "fp16" (mixed).
        threads: of torch on the CPU; ``None`` leaves them as they are.
        data_root: the folder that holds the data.
        data_digest: of the files, where the name of the data does not say which they are; see
            :func:`eigengrad.lab.data.digest`. Runs on other files are other runs.
    """

    seed: int = 0
    precision: str = "no"
    threads: int | None = None
    data_root: str | None = None
    data_digest: str | None = None

    #: Where the data lies and how many threads work on it is not part of what a run is.
    _incidental: ClassVar[frozenset[str]] = frozenset({"threads", "data_root"})

    def __post_init__(self) -> None:
        if isinstance(self.data_root, Path):
            object.__setattr__(self, "data_root", str(self.data_root))
        self._integer("seed", minimum=0)
        if self.seed >= 2**63:
            raise ValueError(f"{type(self).__name__}: seed must be below 2**63; got {self.seed}")
        if self.precision not in PRECISIONS:
            raise unknown_choice("precision", self.precision, PRECISIONS)
        if self.threads is not None:
            self._integer("threads", minimum=1)
        if self.data_root is not None and not isinstance(self.data_root, str):
            raise TypeError(f"{type(self).__name__}: data_root must be a path or None; got {self.data_root!r}")
        if self.data_digest is not None and not isinstance(self.data_digest, str):
            raise TypeError(f"{type(self).__name__}: data_digest must be a string or None; got {self.data_digest!r}")

    def _integer(self, name: str, *, minimum: int) -> None:
        require_integer(type(self).__name__, name, getattr(self, name), minimum=minimum)

    def to_dict(self) -> dict[str, Any]:
        """Every field, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_dict`. Fields that are absent take their defaults; unknown ones are refused."""
        if not isinstance(values, Mapping):
            raise TypeError(f"{cls.__name__}: expected a mapping of fields to values; got {values!r}")
        names = [field.name for field in fields(cls)]
        unknown = sorted(set(values) - set(names))
        if unknown:
            raise ValueError(
                f"{cls.__name__}: unknown field{'s' if len(unknown) > 1 else ''} {', '.join(map(repr, unknown))}; "
                f"there are: {', '.join(names)}"
            )
        return cls(**values)

    def replace(self, **changes: Any) -> Self:
        """These settings with some fields changed."""
        return type(self).from_dict({**self.to_dict(), **changes})

    def hash_fields(self) -> dict[str, Any]:
        """The fields that the result depends on, which name the run."""
        idle = self._incidental if self.data_digest is not None else self._incidental | {"data_digest"}
        return {name: value for name, value in self.to_dict().items() if name not in idle}

    def differences(self, other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """The fields of :meth:`hash_fields` in which another run's differ, as (here, there)."""
        mine, theirs = self.hash_fields(), dict(other)
        names = [*mine, *(name for name in theirs if name not in mine)]
        return {name: (mine.get(name), theirs.get(name)) for name in names if mine.get(name) != theirs.get(name)}

    def label(self) -> str:
        """A short description of the run, for people."""
        return f"s{self.seed}"

    def key(self) -> str:
        """A short stable name, fit for a folder: the label, and a hash of all that the result depends on."""
        content = json.dumps(self.hash_fields(), sort_keys=True).encode()
        return f"{self.label()}-{hashlib.sha256(content).hexdigest()[:8]}"
