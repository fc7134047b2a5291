"""What every public function does with its matrix argument before the mathematics begins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor, is_legacy_batchedtensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes

_COMPUTED = frozenset({torch.float32, torch.float64, torch.complex64, torch.complex128})
_WIDENED = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}
#: The real types that are computed, some in a wider one.
REAL = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_PLAIN = (Tensor, torch.nn.Parameter)
_NO_CONTEXT: AbstractContextManager[None] = nullcontext()

_modes, _mode, _tracing = torch._C._len_torch_dispatch_stack, torch._C._get_dispatch_mode, torch._C._is_tracing
_PROXIES = torch._C._TorchDispatchModeKey.PROXY
transforming = torch._C._are_functorch_transforms_active  #: whether a transform of ``torch.func`` is at work


def check_matrix(function: str, A: Tensor, *, square: bool, argument: str = "A") -> None:
    """Refuse what is not a floating-point or complex (batch of) matrices, saying what came."""
    if not isinstance(A, Tensor):
        raise TypeError(f"{function}: {argument} must be a torch.Tensor; got {type(A).__name__}")
    shape = A.shape
    if len(shape) < 2:
        raise ValueError(f"{function}: {argument} must have shape (..., m, n); got {tuple(shape)}")
    if square and shape[-1] != shape[-2]:
        raise ValueError(f"{function}: {argument} must be square, of shape (..., n, n); got {tuple(shape)}")
    if A.layout is not torch.strided:
        raise TypeError(f"{function}: {argument} must be dense; got {A.layout}. Convert it with .to_dense().")
    if A.dtype not in _COMPUTED and A.dtype not in _WIDENED:
        raise TypeError(
            f"{function}: {argument} must be of a floating-point or complex type; got {A.dtype}. "
            "Convert it, for example with .float()."
        )


def widen(A: Tensor) -> Tensor:
    """Half precision is computed in float32; everything else as it comes."""
    return A if A.dtype in _COMPUTED else A.to(_WIDENED[A.dtype])


def add_to_diagonal(A: Tensor, eps: float) -> Tensor:
    """A + eps·I, (..., n, n)."""
    return A + eps * torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type of the eigenvalues of a matrix of this type."""
    return dtype.to_real() if dtype.is_complex else dtype


def autocasting(A: Tensor) -> bool:
    """Whether autocast is on for the device of ``A``."""
    if A.is_cpu:
        return torch.is_autocast_enabled("cpu")
    device = A.device.type
    return device != "meta" and torch.is_autocast_enabled(device)


def full_precision(A: Tensor) -> AbstractContextManager[None]:
    """Context in which autocast is off for the device of ``A``, free of charge where it is off already."""
    return torch.autocast(A.device.type, enabled=False) if autocasting(A) else _NO_CONTEXT


def recorded() -> bool:
    """Whether somebody writes down the operations (``torch.jit.trace``, ``make_fx``), who sees nothing of kernels."""
    return _tracing() or (_modes() > 0 and _mode(_PROXIES) is not None)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Context in which nobody writes down anything, for what is a constant to them."""
    if not recorded():
        yield
        return
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    try:
        with _disable_current_modes():
            yield
    finally:
        torch._C._set_tracing_state(state)  # type: ignore[attr-defined]


def is_concrete(*tensors: Tensor | None) -> bool:
    """Whether the numbers can be looked at: no compiler, transform or fake tensor in between. Nobody is no obstacle."""
    if torch.compiler.is_compiling() or transforming() or _tracing() or (_modes() and recorded()):
        return False
    try:
        for A in tensors:
            if A is not None and (type(A) not in _PLAIN or not (A.untyped_storage().data_ptr() or _has_numbers(A))):
                return False
    except RuntimeError:  # one has no storage, or none in memory
        return all(A is None or (type(A) in _PLAIN and _has_numbers(A)) for A in tensors)
    return True


def _has_numbers(A: Tensor) -> bool:
    """Whether a tensor of a plain type without an address still has numbers: it is empty, sparse, or a zero tensor."""
    return not (
        is_legacy_batchedtensor(A)  # of autograd.grad(..., is_grads_batched=True)
        or is_functorch_wrapped_tensor(A)  # that has outlived its transform
        or A.is_meta
        or torch._is_functional_tensor(A)
    )


def is_constant(A: Tensor) -> bool:
    """Whether nobody can ask for a derivative with respect to ``A``: then there is nothing to record."""
    return not (
        (A.requires_grad and torch.is_grad_enabled())
        or forward_mode()
        or torch.compiler.is_compiling()
        or transforming()
    )


def nothing_between(A: object) -> bool:
    """Whether ``A`` is in main memory, with nothing to cast, transform or compile, and no forward mode.

    Tensors of a transform that has ended pass: they have no memory to point to, which is an error soon enough.
    """
    return (
        (type(A) is Tensor or type(A) is torch.nn.Parameter)
        and A.is_cpu
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and not transforming()
        and not _tracing()
        and not _modes()  # whether they record is asked later
        and forward_ad._current_level < 0
    )


def forward_mode() -> bool:
    """Whether forward-mode differentiation is at work."""
    return forward_ad._current_level >= 0


def detached(A: Tensor) -> Tensor:
    """``A`` as a constant, in gradients that are batched (``autograd.grad(..., is_grads_batched=True)``) as well."""
    if not torch.compiler.is_compiling() and is_legacy_batchedtensor(
        A
    ):  # has no rule for detach, and no forward mode that would need it
        with torch.no_grad():
            return A.clone()
    return A.detach()


def matmul(A: Tensor, B: Tensor) -> Tensor:
    """A @ B without the two microseconds that broadcasting takes to find out it has nothing to do."""
    return torch.bmm(A, B) if A.ndim == 3 and B.ndim == 3 else A @ B
