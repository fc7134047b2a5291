"""GPU kernels in Triton, from the extra ``gpu``. Everything works without them, only slower.

This is the only door: tensors in, tensors out, or None where there is no kernel and torch has to do it.

    selection         which implementation is used: measured on the first call, and why
    launch            from tensors to kernels
    jacobi_lanes      eigendecomposition for n ≤ 4, a matrix a lane
    jacobi_program    eigendecomposition for n ≤ 64, a matrix a program
    vjp               backward passes of ``eigh`` and of matrix roots in one kernel
    rules             what stands for 1/(λ_j − λ_i)
    feature_maps      the passes of whitening over a feature map
    arithmetic        what the eigensolvers share

triton is imported with the first kernel, so that importing eigengrad stays quick.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..._compat import as_trace_constant
from ..._execution import ExecutionMode, can_read, execution_mode, forward_mode
from ..._transforms import is_fixed
from . import selection

__all__ = [
    "LARGEST",
    "devices",
    "disable_after",
    "eigh",
    "eigh_by_copy",
    "eigh_measured",
    "eigh_unmeasured",
    "eigh_vjp",
    "function_vjp",
    "is_operator",
    "map_affine",
    "map_moments",
    "mode",
    "suits",
    "suits_map",
    "usable",
    "why_not",
]

_log = logging.getLogger("eigengrad")

LARGEST = 64
_WIDEST = 32  # channels of a group
_REAL = frozenset({torch.float32, torch.float64})
_MODES = ("measure", "triton", "off")
_failure: str | None = None


@functools.cache
def mode() -> str:
    """What ``EIGENGRAD_GPU`` says: "measure" (the default), "triton" (wherever there is a kernel), or "off"."""
    given = os.environ.get("EIGENGRAD_GPU", "measure").lower()
    if given not in _MODES:
        _log.warning("EIGENGRAD_GPU=%s is none of %s; taking measure", given, ", ".join(_MODES))
        return "measure"
    return given


def why_not() -> str | None:
    """Why no GPU kernel is used; None if they are."""
    if mode() == "off":
        return "EIGENGRAD_GPU=off"
    return _failure or _missing()


@functools.cache
def _missing() -> str | None:
    return None if importlib.util.find_spec("triton") else "triton is not installed (pip install triton)"


@as_trace_constant
def _interpreted() -> bool:
    """Whether kernels run in triton's interpreter, where they take CPU tensors."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def suits(A: Tensor) -> bool:
    """Whether there is a kernel for A (..., n, n): real, 1 ≤ n ≤ 64, on a device of triton's, with numbers in it."""
    return _in_range(A) and can_read(A) and why_not() is None


def is_operator(operation: str, A: Tensor, asked: bool = False) -> bool:
    """Whether the compiler is to see an operation's kernel as an operator: it was chosen before for such matrices.

    See ``eigengrad.gpu_operators``. Transforms and forward mode in compiled functions take torch's operations.

    Args:
        operation: as it is called in :func:`.selection.choices`.
        A: (..., n, n).
        asked: whether the kernel was asked for by name, whatever has been measured.
    """
    if execution_mode() is not ExecutionMode.COMPILING or forward_mode() or not is_fixed(A.shape[-1]):
        return False
    return (asked or _off_the_cpu(A)) and _in_range(A) and _chosen(operation, A.device, A.dtype, A.shape[-1], asked)


def _in_range(A: Tensor) -> bool:
    """Whether A (..., n, n) has a type, a size and a device that the kernels know."""
    return (
        1 <= A.shape[-1] <= LARGEST and A.dtype in _REAL and (_is_gpu(A) or (A.device.type == "cpu" and _interpreted()))
    )


def _is_gpu(A: Tensor) -> bool:
    """Whether A is on a device that triton knows and that has events for timing: CUDA, ROCm (of that name) or XPU."""
    return A.is_cuda or A.is_xpu


def _off_the_cpu(A: Tensor) -> bool:
    """Whether A is where kernels are used without being asked for: on the CPU they are interpreted, and slow."""
    return A.device.type != "cpu"


@as_trace_constant
def _chosen(operation: str, device: torch.device, dtype: torch.dtype, n: int, asked: bool) -> bool:
    """Whether the kernel of an operation is used for some batch of n × n matrices: a constant to the compiler."""
    if why_not() is not None:
        return False
    return asked or mode() == "triton" or selection.is_chosen("triton", operation, device, dtype, n)


def usable(V: Tensor, *others: Tensor | None) -> bool:
    """Whether a backward pass at V (..., n, n), off the CPU, is for a kernel: no derivative of it is recorded."""
    if not _off_the_cpu(V) or torch.is_grad_enabled() or forward_mode() or not suits(V) or not can_read(*others):
        return False
    return all(X is None or (X.dtype == V.dtype and X.device == V.device) for X in others)


def eigh(A: Tensor) -> tuple[Tensor, Tensor] | None:
    """Eigenvalues and eigenvectors of A that :func:`suits`, from its lower triangle; None if the kernel fails.

    A matrix with NaN or infinity has NaN for its results, and nothing waits for the device.
    """
    return _attempt("decompose", A, take=2)


def eigh_measured(A: Tensor, other: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """:func:`eigh` or ``other``, torch's: whichever was right and faster on the first call of this kind."""
    return _select("eigh", A, lambda: eigh(A), other, lambda found, own: selection.is_decomposition(A, found, own))


def eigh_by_copy(
    A: Tensor, other: Callable[[], tuple[Tensor, Tensor]], by_cpu: Callable[[], tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """``by_cpu``, in main memory, or ``other``, torch's, for A (..., n, n) with n > 64, which no kernel is for.

    Whichever was right and faster on the first call of this kind, copies there and back included.
    """
    if mode() != "measure" or not _is_gpu(A) or not can_read(A):
        return other()
    right = lambda found, own: selection.is_decomposition(A, found, own)  # noqa: E731
    found: tuple[Tensor, Tensor] = selection.run("eigh", A, {"torch": other, "cpu": by_cpu}, right)
    return found


def eigh_unmeasured(
    A: Tensor, other: Callable[[], tuple[Tensor, Tensor]], asked: bool = False
) -> tuple[Tensor, Tensor]:
    """:func:`eigh` if it is ``asked`` for or was chosen before, ``other`` if not, or if the kernel fails."""
    if asked:
        found = eigh(A) if why_not() is None else None
        return other() if found is None else found
    return _select("eigh", A, lambda: eigh(A), other, None, measure=False)


def eigh_vjp(
    rule: str, parameters: tuple[float, float], lifted: bool, L: Tensor, V: Tensor, gL: Tensor | None, gV: Tensor,
    other: Callable[[], Tensor], measure: bool = True,
) -> Tensor:  # fmt: skip
    """The gradient of A by a rule in one kernel, or ``other``, torch's; see :func:`.launch.eigh_vjp`.

    Without ``measure`` it is what was chosen before.
    """
    return _select(
        f"eigh_vjp {rule}",
        V,
        lambda: _attempt("eigh_vjp", rule, parameters, lifted, L, V, gL, gV),
        other,
        selection.agree,
        measure,
    )


def function_vjp(
    function: str, L: Tensor, V: Tensor, G: Tensor, other: Callable[[], Tensor], measure: bool = True
) -> Tensor:
    """The gradient of A through a matrix root in one kernel, or ``other``; see :func:`.launch.function_vjp`."""
    ours = lambda: _attempt("function_vjp", function, L, V, G)  # noqa: E731
    return _select(f"function_vjp {function}", V, ours, other, selection.agree, measure)


def suits_map(x: Tensor, groups: int) -> bool:
    """Whether there are kernels for passes over maps like x (N, C, *spatial), dense, in so many groups of channels.

    In groups of at most 32 channels: above, arithmetic takes longer than memory, and batched products do it best.
    """
    d = x.shape[1] // max(groups, 1)
    known = (
        x.dtype in _REAL
        and 1 <= d <= _WIDEST
        and x.numel() > 0
        and (_is_gpu(x) or (x.device.type == "cpu" and _interpreted()))
    )
    return known and _off_the_cpu(x) and can_read(x) and why_not() is None


def map_moments(
    x: Tensor, y: Tensor | None, centre: Tensor, d: int, other: Callable[[], tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Products and sums over the points of maps that :func:`suits_map`, or ``other``; see :func:`.launch.moments`."""
    name = "covariance" if y is None else "backward_sums"
    found: tuple[Tensor, Tensor] = _select_for_map(name, x, d, lambda: _attempt("moments", x, y, centre, d), other)
    return found


def map_affine(
    x: Tensor, centre: Tensor, B: Tensor, offset: Tensor, y: Tensor | None, A: Tensor | None,
    other: Callable[[], Tensor],
) -> Tensor:  # fmt: skip
    """An affine function of the points of maps that :func:`suits_map`, or ``other``; see :func:`.launch.affine`."""
    name, d = "apply" if y is None else "backward_apply", B.shape[-1]
    found: Tensor = _select_for_map(name, x, d, lambda: _attempt("affine", x, centre, B, offset, y, A), other)
    return found


def _select_for_map(name: str, x: Tensor, d: int, ours: Callable[[], Any], other: Callable[[], Any]) -> Any:
    if mode() == "triton":
        found = ours()
        return other() if found is None else found
    return selection.run_on_map(f"whitening {name}", x, d, {"triton": ours, "torch": other})


def disable_after(reason: str) -> None:
    """Use no GPU kernel from now on, in this process, and say why, once."""
    global _failure
    if _failure is None:
        _failure = reason
        _log.warning("eigengrad computes without its GPU kernels from now on: %s", reason)


def _attempt(name: str, *arguments: Any, take: int | None = None) -> Any:
    """A launch, or None if triton cannot be imported, or the kernel compiled or run."""
    try:
        from . import launch

        result = getattr(launch, name)(*arguments)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        disable_after(f"{name} fails ({type(error).__name__}: {str(error).strip()[:300]})")
        return None
    return result[:take] if take else result


def devices() -> list[torch.device]:
    """The GPUs of this machine that kernels can be used on."""
    found = []
    for kind in ("cuda", "xpu"):
        module = torch.get_device_module(kind)
        if module.is_available():
            found += [torch.device(kind, k) for k in range(module.device_count())]
    return found


def _select(
    operation: str, A: Tensor, ours: Callable[[], Any], other: Callable[[], Any], right: Any, measure: bool = True
) -> Any:
    if why_not() is not None:
        return other()
    if mode() == "triton":
        found = ours()
        return other() if found is None else found
    return selection.run(operation, A, {"triton": ours, "torch": other}, right, measure)
