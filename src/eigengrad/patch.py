"""``patch_torch``: our gradients in code that calls ``torch.linalg`` and is not yours to change.

The mechanism is torch's own, :class:`torch.overrides.TorchFunctionMode`. Other than a replacement of the attributes of
``torch.linalg``, it sees names that were bound earlier (``from torch.linalg import eigh``), belongs to a thread, nests,
ends with its block, and is a guard of ``torch.compile``: what was compiled without it is compiled again with it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function

from . import linalg
from ._execution import is_constant
from ._return_types import EighResult, SvdResult
from .eigh import eigh
from .gradients import GradientRule, PairRule, resolve
from .svd import svd

__all__ = ["TorchPatch", "patch_torch"]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def patch_torch(gradient: str | GradientRule = "saturate") -> TorchPatch:
    """Give torch's decompositions our gradients, in code that is not yours.

    As a context manager or a decorator it holds in the thread that enters it, until the block or the function ends:

    >>> import torch, eigengrad as eg
    >>> A = torch.eye(3, requires_grad=True)
    >>> with eg.patch_torch():
    ...     torch.linalg.eigh(A).eigenvectors[0].sum().backward()
    >>> bool(torch.isfinite(A.grad).all())
    True

    As a switch it holds until it is switched off, in this thread and in those started from then on by
    :class:`threading.Thread` (which thread pools and ``nn.DataParallel`` use)::

        patch = eg.patch_torch()
        patch.enable()
        ...
        patch.disable()

    **What is replaced:** ``eigh``, ``eigvalsh``, ``svd``, ``svdvals``, ``cond``, ``matrix_norm`` and ``norm`` of
    ``torch.linalg``, ``torch.svd``, ``torch.norm`` and ``torch.nuclear_norm``, and the methods ``svd`` and ``norm`` of
    tensors, however they were imported. Only where a gradient can be asked for; elsewhere torch's function runs as if
    nothing were there. Eigenvectors and singular vectors are those of torch to the bit, by the same LAPACK; norms and
    values alone are to round-off. (``pinv`` and ``pinverse`` need no replacement: their gradient has no gaps in it.)

    **What is not:** what C++ code calls (TorchScript, which the environment variable ``PYTORCH_JIT=0`` turns off;
    exported programs), threads that run already, other processes. A backward pass may run inside or outside, but torch
    takes all modes away in it, so what it recomputes (``torch.utils.checkpoint``) has to enter the patch by itself:
    decorate the function that is checkpointed.

    **Finite is not always right.** Code that takes a matrix apart and multiplies V f(λ) Vᴴ together again has a
    gradient at ties, but not by way of V: there it loses what belongs to pairs of equal eigenvalues (0/0 in each pair).
    :func:`eigengrad.matrix_function` and its kin, and :func:`eigengrad.low_rank`, are exact there; a patch cannot know
    what becomes of V. Polar factors U Vᴴ, rotations and functions of the values alone are exact.

    Each operation of torch takes about two microseconds longer inside, whichever it is, except in compiled code.

    Args:
        gradient: the rule for eigenvectors and singular vectors, or its name, as in :func:`eigengrad.svd`.
    """
    return TorchPatch(gradient)


class TorchPatch(TorchFunctionMode):
    """What :func:`patch_torch` returns."""

    def __init__(self, gradient: str | GradientRule = "saturate") -> None:
        super().__init__()
        rule = resolve(gradient)
        if not isinstance(rule, PairRule):
            raise ValueError(
                f"gradient: got {rule!r}, which differentiates eigenvectors only; expected a rule that svd can use, too"
            )
        self.gradient = rule
        self._effective = True
        self._switch: TorchPatch | None = None
        self._thread = 0

    def __repr__(self) -> str:
        return f"patch_torch(gradient={self.gradient!r})"

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call our function in place of torch's where there is a gradient in which they differ."""
        kwargs = {} if kwargs is None else kwargs
        if self._effective and func in _REPLACEMENTS and _differentiated(args, kwargs):
            function, takes_rule = _REPLACEMENTS[func]
            return function(*args, **kwargs, gradient=self.gradient) if takes_rule else function(*args, **kwargs)
        return self if func is _innermost else func(*args, **kwargs)

    def __call__(self, function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        """Decorate a function, to run under the patch."""
        if any(suspended(function) for suspended in _SUSPENDED):
            raise TypeError(
                f"patch_torch decorates plain functions; got {function!r}, which is suspended halfway, with the patch "
                "on for whoever runs in between. Write `with eigengrad.patch_torch():` around the calls inside it."
            )

        @functools.wraps(function)
        def patched(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            with self:
                return function(*args, **kwargs)

        return patched

    @property
    def enabled(self) -> bool:
        """Whether the switch is on."""
        return self._switch is not None

    def enable(self) -> None:
        """Switch the patch on, in this thread and all that are started from now on, until :meth:`disable`."""
        with _LOCK:
            if self._switch is not None:
                return
            if _modes(_PROBE) and _innermost_patch() not in _SWITCHED_ON and not _only_a_default_device():
                raise RuntimeError(
                    "patch_torch: enable() was called inside the block of another torch.overrides.TorchFunctionMode "
                    "(such as `with patch_torch():` or `with torch.device(…):`), which would end it; call it before"
                )
            self._switch, self._thread = TorchPatch(self.gradient), threading.get_ident()
            _SWITCHED_ON.append(self._switch)
            threading.Thread.start = _start  # type: ignore[method-assign]
            self._switch.__enter__()  # type: ignore[no-untyped-call]

    def disable(self) -> None:
        """Switch the patch off in all threads. For the thread that switched it on, outside of other modes' blocks."""
        with _LOCK:
            if self._switch is None:
                return
            if self._thread != threading.get_ident():
                raise RuntimeError("patch_torch: disable() was called in another thread than enable()")
            if (
                not has_torch_function((_PROBE,))
                or handle_torch_function(_innermost, (_PROBE,), _PROBE) is not self._switch
            ):
                raise RuntimeError(
                    "patch_torch: disable() was called inside the block of another torch.overrides.TorchFunctionMode "
                    "(such as a `with patch_torch():`); leave that first"
                )
            self._switch._effective = False  # in the threads that have inherited it
            self._switch.__exit__(None, None, None)
            _SWITCHED_ON.remove(self._switch)
            self._switch = None
            if not _SWITCHED_ON and threading.Thread.start is _start:  # somebody else may have wrapped ours
                threading.Thread.start = _start_of_python  # type: ignore[method-assign]


_SUSPENDED = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
_LOCK = threading.Lock()
_SWITCHED_ON: list[TorchPatch] = []
_PROBE = torch.empty(0)
_start_of_python = threading.Thread.start


def _innermost(probe: Tensor) -> Any:
    """A function to be overridden, which every patch knows: it returns itself, where other modes call this."""
    return None


def _innermost_patch() -> Any:
    """The mode that this thread entered last, if it is a patch."""
    return handle_torch_function(_innermost, (_PROBE,), _PROBE) if has_torch_function((_PROBE,)) else None


def _modes(probe: Tensor) -> int:
    """The number of modes that this thread has entered: each calls this again, with itself out of the way."""
    return 1 + handle_torch_function(_modes, (probe,), probe) if has_torch_function((probe,)) else 0


def _only_a_default_device() -> bool:
    """Whether the one mode is that of ``torch.set_default_device``, which keeps below all others.

    Nothing public tells it from that of a ``with torch.device(…)`` block, whose end would be ours.
    """
    default = getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None)
    return getattr(default, "device_context", None) is not None and _modes(_PROBE) == 1


def _start(self: threading.Thread) -> None:
    """Start a thread under what is switched on: modes belong to threads, and Python has no hook for new ones."""
    inherited, run = tuple(_SWITCHED_ON), self.run

    def run_patched() -> None:
        del self.run  # which refers to the thread itself
        with contextlib.ExitStack() as stack:
            for patch in inherited:
                stack.enter_context(patch)
            run()

    if inherited:
        self.run = run_patched  # type: ignore[method-assign]
    _start_of_python(self)


def _differentiated(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the first argument is a dense matrix, and a gradient with respect to it can be asked for."""
    A = args[0] if args else next((kwargs[name] for name in ("A", "input", "x", "a") if name in kwargs), None)
    return isinstance(A, Tensor) and A.layout is torch.strided and A.ndim >= 2 and not is_constant(A)


@linalg.accept_torch_names
def _eigh(A: Tensor, UPLO: str = "L", *, out: Any = None, gradient: GradientRule) -> EighResult:
    """``torch.linalg.eigh``, by LAPACK."""
    if out is not None:
        return linalg.eigh(A, UPLO, out=out)
    return eigh(A, UPLO, gradient=gradient, driver="lapack")


@linalg.accept_torch_names
def _svd(
    A: Tensor, full_matrices: bool = True, *, driver: str | None = None, out: Any = None, gradient: GradientRule
) -> SvdResult:
    """``torch.linalg.svd``, by LAPACK."""
    if out is not None or driver is not None:
        return linalg.svd(A, full_matrices, driver=driver, out=out, gradient=gradient)
    return svd(A, full_matrices, gradient=gradient, driver="lapack")


@linalg.accept_torch_names
def _torch_svd(
    A: Tensor, some: bool = True, compute_uv: bool = True, *, out: Any = None, gradient: GradientRule
) -> Any:
    """``torch.svd``, which returns V and not Vᴴ, and zeros in place of the vectors where they are not wanted."""
    if out is not None:
        return _SVD_OF_TORCH(A, some, compute_uv, out=out)
    if compute_uv:
        U, S, Vh = _svd(A, not some, gradient=gradient)
        return torch.return_types.svd((U, S, Vh.mH))
    *batch, m, n = A.shape
    return torch.return_types.svd((A.new_zeros(*batch, m, m), linalg.svdvals(A), A.new_zeros(*batch, n, n)))


def _torch_norm(
    input: Tensor,  # noqa: A002  (torch's name)
    p: float | str | None = "fro",
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """``torch.norm``, which knows one norm of singular values: with p = 2 it is a vector norm in all dimensions."""
    if p != "nuc" or isinstance(dim, int):
        return cast(Tensor, _NORM_OF_TORCH(input, p, dim, keepdim, out, dtype))
    return linalg.matrix_norm(input, p, tuple(range(input.ndim)) if dim is None else dim, keepdim, dtype=dtype, out=out)


def _tensor_norm(
    self: Tensor,
    p: float | str | None = "fro",
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """``Tensor.norm``."""
    return _torch_norm(self, p, dim, keepdim, dtype=dtype)


@linalg.accept_torch_names
def _nuclear_norm(
    A: Tensor, dim: Sequence[int] = (-2, -1), keepdim: bool = False, *, out: Tensor | None = None
) -> Tensor:
    """``torch.nuclear_norm``."""
    return linalg.matrix_norm(A, "nuc", dim, keepdim, out=out)


_SVD_OF_TORCH, _NORM_OF_TORCH = torch.svd, torch.norm

#: Ours by torch's, and whether it takes a rule.
_REPLACEMENTS: dict[Any, tuple[Callable[..., Any], bool]] = {
    torch.linalg.eigh: (_eigh, True),
    torch.linalg.eigvalsh: (linalg.eigvalsh, False),
    torch.linalg.svd: (_svd, True),
    torch.linalg.svdvals: (linalg.svdvals, False),
    torch.linalg.cond: (linalg.cond, False),
    torch.linalg.matrix_norm: (linalg.matrix_norm, False),
    torch.linalg.norm: (linalg.norm, False),
    torch.svd: (_torch_svd, True),
    torch.norm: (_torch_norm, False),
    torch.nuclear_norm: (_nuclear_norm, False),
    Tensor.svd: (_torch_svd, True),
    Tensor.norm: (_tensor_norm, False),
}
