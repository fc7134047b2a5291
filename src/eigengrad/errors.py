"""Exceptions that build their own message: what came, what was expected, which matrix.

Misuse raises :class:`ValueError` or :class:`TypeError`; numerical trouble raises a subclass of
:class:`torch.linalg.LinAlgError`, so code written for ``torch.linalg`` catches it unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

__all__ = [
    "ConvergenceError",
    "DomainError",
    "GaugeError",
    "GradientWarning",
    "LinAlgError",
    "NonFiniteError",
    "NotPositiveDefiniteError",
    "first_index",
    "unknown_choice",
]


if TYPE_CHECKING:

    class LinAlgError(RuntimeError):
        """:class:`torch.linalg.LinAlgError`, which torch does not declare for type checkers."""

else:
    LinAlgError = torch.linalg.LinAlgError


def _element(index: tuple[int, ...]) -> str:
    """How a message names one matrix of a batch."""
    if not index:
        return "the matrix"
    return f"batch element {index[0]}" if len(index) == 1 else f"batch element {index}"


def first_index(flags: Tensor) -> tuple[int, ...]:
    """Index of the first true entry of ``flags``, as a tuple (empty for a zero-dimensional tensor)."""
    return tuple(int(i) for i in flags.nonzero()[0])


class _Pickled:
    """An exception that comes back from another process as it was, although it makes its message from more."""

    def __reduce__(self) -> Any:
        return _remade, (type(self), str(self), vars(self))


def _remade(kind: type[Exception], message: str, state: dict[str, Any]) -> Exception:
    error = kind.__new__(kind, message)
    error.__dict__.update(state)
    return error


class NonFiniteError(_Pickled, LinAlgError):
    """The input holds NaN or infinity.

    It was made before the function that raises: look upstream. ``index`` is the position of the matrix in the batch.

    >>> import torch, eigengrad as eg
    >>> A = torch.eye(2).repeat(3, 1, 1)
    >>> A[1, 0, 0] = float("nan")
    >>> try:
    ...     eg.eigh(A)
    ... except eg.NonFiniteError as error:
    ...     print(error.index)
    (1,)
    """

    def __init__(self, function: str, index: tuple[int, ...], entries: int, argument: str = "A") -> None:
        super().__init__(
            f"{function}: {_element(index)} of {argument} has {entries} non-finite "
            f"entr{'y' if entries == 1 else 'ies'} (NaN or infinity); expected finite numbers. "
            "Look upstream for an overflow or a division by zero."
        )
        self.index = index


class ConvergenceError(_Pickled, LinAlgError):
    """The eigensolver did not converge, in float64 either.

    Raised for a matrix that is finite, after a second attempt in float64; ``index`` is its position in the batch.
    Scaling the matrix, or adding a multiple of the identity, may help.
    """

    def __init__(self, function: str, index: tuple[int, ...]) -> None:
        super().__init__(
            f"{function}: {_element(index)} of A did not converge, although it is finite and was "
            "tried again in float64. Scaling the matrix or adding a multiple of the identity may help."
        )
        self.index = index


class DomainError(_Pickled, LinAlgError):
    """An eigenvalue lies where the scalar function is not defined.

    Such as a negative one under a square root. With ``eps`` the spectrum is clamped there instead. ``index`` is the
    position of the matrix in the batch.

    >>> import torch, eigengrad as eg
    >>> A = torch.diag(torch.tensor([1.0, -2.0]))
    >>> try:
    ...     eg.matrix_sqrt(A)
    ... except eg.DomainError as error:
    ...     print(str(error).split(";")[0])
    matrix_sqrt: the matrix of A has eigenvalue -2
    >>> bool(eg.matrix_sqrt(A, eps=1e-4).isfinite().all())
    True
    """

    def __init__(self, function: str, index: tuple[int, ...], eigenvalue: float, domain: str) -> None:
        super().__init__(
            f"{function}: {_element(index)} of A has eigenvalue {eigenvalue:.6g}; expected {domain}. "
            "Pass eps > 0 to add it to the diagonal and clamp the spectrum there."
        )
        self.index = index


class NotHermitianError(_Pickled, ValueError):
    """A function of Hermitian matrices was given one that is not.

    Pass (A + A.mH) / 2 where the difference is an error of computation; for general matrices there is
    ``torch.linalg.matrix_exp`` and the like. ``index`` is the position of the matrix in the batch.

    >>> import torch, eigengrad as eg
    >>> try:
    ...     eg.matrix_exp(torch.tensor([[0.0, 1.0], [-1.0, 0.0]]))
    ... except eg.NotHermitianError as error:
    ...     print(str(error).split(": the largest")[0])
    matrix_exp: the matrix of A is not Hermitian
    """

    def __init__(self, function: str, index: tuple[int, ...], asymmetry: float, allowed: float) -> None:
        super().__init__(
            f"{function}: {_element(index)} of A is not Hermitian: the largest entry of A - A.mH is {asymmetry:.3g} of "
            f"the largest entry of A; expected at most {allowed:.3g}. Pass (A + A.mH) / 2 if the difference is an "
            "error of computation; for general matrices there is torch.linalg.matrix_exp and the like."
        )
        self.index = index


class NotPositiveDefiniteError(_Pickled, LinAlgError):
    """A matrix that must be positive definite is not.

    B of the generalised problem ``eigh(A, B=B)``, which needs a Cholesky factor. ``index`` is its position in the
    batch.

    >>> import torch, eigengrad as eg
    >>> try:
    ...     eg.eigh(torch.eye(2), B=torch.diag(torch.tensor([1.0, -1.0])))
    ... except eg.NotPositiveDefiniteError as error:
    ...     print(str(error).split(": its")[0])
    eigh: the matrix of B is not positive definite
    """

    def __init__(self, function: str, index: tuple[int, ...], argument: str, order: int) -> None:
        super().__init__(
            f"{function}: {_element(index)} of {argument} is not positive definite: its leading minor of order {order} "
            "is not positive. Adding a small multiple of the identity may help."
        )
        self.index = index


class GaugeError(_Pickled, RuntimeError):
    """The loss depends on something the decomposition does not determine.

    Complex eigenvectors have an arbitrary phase. A loss of abs(V) or of V @ V.mH does not feel it; one of V itself
    does, and has no gradient.

    >>> import torch, eigengrad as eg
    >>> A = torch.tensor([[1.0, 1j], [-1j, 3.0]]).requires_grad_()
    >>> try:
    ...     eg.eigh(A).eigenvectors[0, 0].imag.backward()
    ... except eg.GaugeError as error:
    ...     print(str(error).split(" (")[0])
    eigh: the loss depends on the phase of complex eigenvectors
    """

    def __init__(self, function: str) -> None:
        super().__init__(
            f"{function}: the loss depends on the phase of complex eigenvectors (or singular vectors), which the "
            "decomposition leaves arbitrary, so it has no gradient; expected a loss that is unchanged when a vector "
            "is multiplied by e^(iφ), such as one of abs(V) or of V @ V.mH."
        )


class GradientWarning(UserWarning):
    """A rule removed much of a gradient, or a gradient does not exist.

    Given on the CPU, once for each line that calls ``eigh`` or ``svd``; it names the functions that lose nothing.
    ``warnings.simplefilter("ignore", eigengrad.GradientWarning)`` silences it, ``"error"`` stops at it.

    >>> import torch, warnings, eigengrad as eg
    >>> A = torch.diag(torch.tensor([1.0, 1.0, 3.0])).requires_grad_()
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     eg.eigh(A).eigenvectors[1, 0].backward()         # one vector of a tied pair
    >>> caught[0].category.__name__
    'GradientWarning'
    """


def unknown_choice(argument: str, value: Any, choices: Iterable[str]) -> ValueError:
    """The error for a name that is not in a registry: it lists the choices."""
    names = ", ".join(repr(name) for name in sorted(choices))
    return ValueError(f"{argument}: got {value!r}; expected one of {names}")
