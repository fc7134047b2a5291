"""The named tuples of ``torch.linalg``, with their fields declared for type checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

__all__ = ["EighResult", "SvdResult"]

if TYPE_CHECKING:

    class EighResult(NamedTuple):
        """``torch.return_types.linalg_eigh``."""

        eigenvalues: Tensor
        eigenvectors: Tensor

    class SvdResult(NamedTuple):
        """``torch.return_types.linalg_svd``."""

        U: Tensor
        S: Tensor
        Vh: Tensor

else:
    EighResult = torch.return_types.linalg_eigh
    SvdResult = torch.return_types.linalg_svd


def eigh_result(L: Tensor, V: Tensor) -> EighResult:
    """As :func:`torch.linalg.eigh` returns it."""
    return EighResult((L, V))  # type: ignore[call-arg, arg-type]


def svd_result(U: Tensor, S: Tensor, Vh: Tensor) -> SvdResult:
    """As :func:`torch.linalg.svd` returns it."""
    return SvdResult((U, S, Vh))  # type: ignore[call-arg, arg-type]
