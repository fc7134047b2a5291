"""Which implementation is used: the candidates run on the caller's own matrices, once, and the fastest right one stays.

A choice is made for each operation, device, number type, n and class of batch sizes, which are powers of two. It is
kept in the process and in a file, one for each device and version of what computes, that nobody else can write to. What
is wrong or fails is never chosen again. While a CUDA graph is captured or a function compiled nothing is measured, and
what has not been measured is torch's.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import math
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..private_folder import cache_folder, read_private, require_private

__all__ = [
    "CANDIDATES",
    "Choice",
    "Selector",
    "agree",
    "choices",
    "file_of",
    "is_chosen",
    "is_decomposition",
    "run",
    "run_on_map",
]

_log = logging.getLogger("eigengrad")

#: The candidate that the others are compared with, and that is used where nothing is known.
REFERENCE = "torch"
#: All there are: a Triton kernel, torch's operations, and the CPU kernels with a copy there and back.
CANDIDATES = ("triton", REFERENCE, "cpu")
_REASONS = ("failed", "wrong")
_KEY = re.compile(r"[a-z_0-9 ]{1,60} n=\d{1,6} batch<\d{1,20}")
_REPEATS = 5  # of which the fastest counts
_WORSE = 4.0  # so many times the reference's errors are still right,
_ROUND_OFF = 4.0  # and so many n · finfo.eps


@dataclass
class Choice:
    """What was chosen for one kind of call, and why."""

    name: str
    seconds: dict[str, float] = field(default_factory=dict)  #: of the candidates that were right
    refused: dict[str, str] = field(default_factory=dict)  #: the others, and what was wrong with them

    def __str__(self) -> str:
        times = [f"{name} {1e3 * seconds:.3g} ms" for name, seconds in sorted(self.seconds.items(), key=lambda x: x[1])]
        return f"{self.name} ({', '.join([*times, *(f'{name} {why}' for name, why in self.refused.items())])})"

    @classmethod
    def parsed(cls, content: Any) -> Choice | None:
        """A choice from what a file has for it; None if that is not well formed."""
        if not isinstance(content, dict) or set(content) != {"name", "seconds", "refused"}:
            return None
        name, seconds, refused = content["name"], content["seconds"], content["refused"]
        if name not in CANDIDATES or not isinstance(seconds, dict) or not isinstance(refused, dict):
            return None
        numbers = all(n in CANDIDATES and type(t) is float and 0 <= t < math.inf for n, t in seconds.items())
        reasons = all(n in CANDIDATES and why in _REASONS for n, why in refused.items())
        return cls(name, seconds, refused) if numbers and reasons and name not in refused else None


Clock = Callable[[Callable[[], Any]], float]


class Selector:
    """Measures candidates, and remembers.

    Args:
        clock: seconds that a call takes.
        path: the file that choices are kept in; None for none.
    """

    def __init__(self, clock: Clock, path: Path | None) -> None:
        self._clock, self.path = clock, path
        self.choices = _read(path) if path is not None else {}

    def run(
        self,
        key: str,
        candidates: Mapping[str, Callable[[], Any]],
        right: Callable[[Any, Any], bool | None],
        measure: bool,
    ) -> Any:
        """The result of the candidate that is chosen for ``key``; the others run if it has to be chosen first.

        Args:
            key: the kind of call.
            candidates: by name, :data:`REFERENCE` among them. One that returns None has failed, and said so.
            right: whether a result is right, given that and the reference's; None if these matrices cannot tell.
            measure: whether a choice may be made now.
        """
        known = self.choices.get(key)
        if known is None and measure:
            return self._choose(key, candidates, right)
        name = known.name if known is not None and known.name in candidates else REFERENCE
        result = candidates[name]()
        if result is None:
            self._keep(key, Choice(REFERENCE, refused={name: _REASONS[0]}))
            return candidates[REFERENCE]()
        return result

    def _choose(
        self, key: str, candidates: Mapping[str, Callable[[], Any]], right: Callable[[Any, Any], bool | None]
    ) -> Any:
        reference = candidates[REFERENCE]()
        choice = Choice(REFERENCE)
        for name, candidate in candidates.items():
            verdict: bool | None = True
            if name != REFERENCE:
                result = candidate()
                verdict = False if result is None else right(result, reference)
                if verdict is None:
                    return reference
                if not verdict:
                    choice.refused[name] = _REASONS[0] if result is None else _REASONS[1]
                    if result is not None:
                        _log.warning("%s is wrong for %s and is not used; please report it", name, key)
            if verdict:
                choice.seconds[name] = self._clock(candidate)
        choice.name = min(choice.seconds, key=lambda name: choice.seconds[name])
        self._keep(key, choice)
        return reference

    def _keep(self, key: str, choice: Choice) -> None:
        self.choices[key] = choice
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            require_private(self.path.parent)
            kept = {**_read(self.path), **self.choices}  # other processes measure too
            with tempfile.NamedTemporaryFile("w", dir=self.path.parent, delete=False) as file:
                json.dump({k: asdict(v) for k, v in kept.items()}, file, indent=1)
            os.replace(file.name, self.path)
        except OSError as error:
            _log.warning("measurements on the GPU are kept for this process only: %s", error)
            self.path = None


def _read(path: Path) -> dict[str, Choice]:
    """The choices in a file; none if it cannot be read or trusted, and without those that are not well formed."""
    try:
        content = json.loads(read_private(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        _log.warning("what was measured on the GPU before is not used: %s", error)
        return {}
    if not isinstance(content, dict):
        return {}
    found = {key: Choice.parsed(value) for key, value in content.items() if _KEY.fullmatch(key)}
    return {key: choice for key, choice in found.items() if choice is not None}


def agree(found: Tensor, reference: Tensor) -> bool | None:
    """Whether two gradients (..., n, n) are equal to round-off, and finite in the same places."""
    size = torch.where(torch.isfinite(reference), reference, 0.0).abs().amax((-2, -1), keepdim=True)
    limit = 100 * reference.shape[-1] * torch.finfo(reference.dtype).eps * size
    close = ((found - reference).abs() <= limit) | (found == reference) | (found.isnan() & reference.isnan())
    return bool(close.all())


def agree_roughly(found: Any, reference: Any) -> bool | None:
    """Whether maps, or sums over many points, are equal as far as the order of summation allows.

    It tells a kernel that is wrong from one that rounds: both lose digits where the points' mean is far from zero, so
    there is no bound close to round-off.

    Args:
        found, reference: maps; or products Σ y xᵀ (groups, d, d) and sums Σ y (C,), which may cancel.
    """
    if isinstance(reference, Tensor):
        return bool(_within(found, reference, _largest(reference)))
    (products, sums), (their_products, their_sums) = found, reference
    size = _largest(their_products)
    scale = _largest(their_sums) + size.sqrt() * their_sums.numel() ** 0.5
    return bool(_within(products, their_products, size) & _within(sums, their_sums, scale))


def _largest(x: Tensor) -> Tensor:
    """The largest finite entry."""
    return torch.where(torch.isfinite(x), x, 0.0).abs().amax()


def _within(found: Tensor, reference: Tensor, size: Tensor) -> Tensor:
    """Whether the difference is at most a share of ``size``, and NaN in the same places."""
    limit = 32 * torch.finfo(reference.dtype).eps ** 0.5 * size
    close = ((found - reference).abs() <= limit) | (found == reference) | (found.isnan() & reference.isnan())
    return close.all()


def is_decomposition(A: Tensor, found: tuple[Tensor, Tensor], reference: tuple[Tensor, Tensor]) -> bool | None:
    """Whether (L, V) decompose symmetric A (..., n, n), of which the lower triangle is read, about as well as torch's.

    None if the reference does not either: matrices that are not finite say nothing about a kernel.
    """
    M = A.double().tril() + A.double().tril(-1).mT
    M = M / M.abs().amax((-2, -1), keepdim=True).clamp(min=sys.float_info.min)
    theirs, ours = (_errors(M, A, L.double(), V.double()) for L, V in (reference, found))
    if not bool(torch.isfinite(theirs).all()):
        return None
    limit = torch.maximum(_WORSE * theirs, torch.full_like(theirs, _ROUND_OFF * A.shape[-1] * torch.finfo(A.dtype).eps))
    ascending = found[0].diff(dim=-1) >= 0
    return bool((ours <= limit).all() & ascending.all())


def _errors(M: Tensor, A: Tensor, L: Tensor, V: Tensor) -> Tensor:
    """Residual, relative to the largest entry of A, and departure from orthogonality, (2, ...)."""
    scale = A.double().tril().abs().amax((-2, -1)).clamp(min=sys.float_info.min)
    residual = M @ V - V * (L / scale.unsqueeze(-1)).unsqueeze(-2)
    gram = V.mT @ V - torch.eye(V.shape[-1], dtype=V.dtype, device=V.device)
    return torch.stack([residual.abs().amax((-2, -1)), gram.abs().amax((-2, -1))])


_selectors: dict[torch.device, Selector] = {}


def run(
    operation: str, A: Tensor, candidates: Mapping[str, Callable[[], Any]], right: Any, measure: bool = True
) -> Any:
    """Run the candidate that is chosen for this operation on matrices like A (..., n, n).

    It is chosen now if it has to be, unless ``measure`` is false or a CUDA graph is captured.
    """
    return _run(operation, A, A.shape[-1], A.shape[:-2].numel(), candidates, right, measure)


def run_on_map(operation: str, x: Tensor, d: int, candidates: Mapping[str, Callable[[], Any]]) -> Any:
    """Run the candidate that is chosen for a pass over maps like x (N, C, *spatial) in groups of d channels.

    The batch is the number of groups and points.
    """
    layout = "channels_last" if x.stride(1) == 1 else "nchw"
    return _run(f"{operation} {layout}", x, d, x.numel() // d, candidates, agree_roughly, True)


def _run(
    operation: str,
    A: Tensor,
    n: int,
    batch: int,
    candidates: Mapping[str, Callable[[], Any]],
    right: Any,
    measure: bool,
) -> Any:
    key = f"{_kind(operation, A.dtype, n)} batch<{1 << batch.bit_length()}"
    return _selector(A.device).run(key, candidates, right, measure and not _capturing(A) and A.numel() > 0)


def is_chosen(name: str, operation: str, device: torch.device, dtype: torch.dtype, n: int) -> bool:
    """Whether a candidate is chosen for an operation on n × n matrices, in batches of some size."""
    kind = _kind(operation, dtype, n) + " "
    return any(key.startswith(kind) and c.name == name for key, c in _selector(device).choices.items())


def _kind(operation: str, dtype: torch.dtype, n: int) -> str:
    return f"{operation} {str(dtype).removeprefix('torch.')} n={n}"


def _selector(device: torch.device) -> Selector:
    if device not in _selectors:
        _selectors[device] = Selector(_clock(device), _file(device))
    return _selectors[device]


def choices(devices: Iterable[torch.device] = ()) -> dict[str, dict[str, Choice]]:
    """What was chosen, by device and kind of call: for the devices that this process has used, and those given."""
    for device in devices:
        _selector(device)
    return {str(device): dict(selector.choices) for device, selector in _selectors.items()}


def file_of(device: torch.device) -> Path | None:
    """The file that the choices for a device are kept in; None if they are not."""
    return _selector(device).path


def _capturing(A: Tensor) -> bool:
    return A.is_cuda and torch.cuda.is_current_stream_capturing()


def _clock(device: torch.device) -> Clock:
    """Seconds on the device, by its events; the least of a few runs."""

    def seconds(call: Callable[[], Any]) -> float:
        times = []
        for _ in range(_REPEATS):
            if device.type == "cpu":  # the interpreter
                begin = time.perf_counter()
                call()
                times.append(time.perf_counter() - begin)
                continue
            module = torch.get_device_module(device)
            with module.device(device):  # whose stream events are recorded in
                start, end = module.Event(enable_timing=True), module.Event(enable_timing=True)
                start.record()
                call()
                end.record()
                end.synchronize()
            times.append(start.elapsed_time(end) / 1e3)
        return min(times)

    return seconds


def _file(device: torch.device) -> Path | None:
    """Where choices for a device are kept: a file for its name and the versions of what computes."""
    if device.type == "cpu":
        return None
    name = torch.get_device_module(device).get_device_name(device)
    versions = torch.__version__, torch.version.cuda, torch.version.hip, _version("triton"), _version("numba")
    host = platform.machine(), os.cpu_count()  # on which the CPU kernels are timed
    digest = hashlib.sha256(repr((name, versions, host)).encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    base = cache_folder()
    try:
        folder = None if base is None else base.expanduser().absolute() / "eigengrad" / "gpu"
    except RuntimeError:  # there is no home folder
        return None
    return None if folder is None else folder / f"{digest.hexdigest()[:16]}.json"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
