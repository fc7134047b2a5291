"""Forward and backward of the decompositions and of the exact functions, against the same through ``torch.linalg``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import eigengrad as eg
from eigengrad import kernels
from harness import interleave, write

SIZES = [(16, 4), (8, 8), (4, 16), (2, 32), (1, 64), (128, 64), (1024, 16), (8, 256)]
FEW = [(16, 4), (4, 16), (128, 64)]
KEPT = 2
TEXT = """Forward + backward, float32; median time of the contestants taking turns, each call straight after a matrix
product of torch. *torch* is what one would write with `torch.linalg`; *ours/torch* below 1 is faster.

- *without numba*: ours with the compiled kernels switched off, as it is without the extra `fast`.
- *over eigh*: ours over `torch.linalg.eigh` alone, forward + backward with gradients of eigenvalues and eigenvectors.
- `eigh`, `matrix_sqrt`, `matrix_inv_sqrt` and `spectral_projector` of covariance matrices (batch, n, n), the others of
  random matrices; `eigh` and `svd` with the default rule; k = 2 pairs, or a rank of 2, where there is a k.
- `kabsch` of 2n points in n dimensions, with the gradients of both sets."""
COLUMNS = ["threads", "function", "batch", "n", "torch", "ours", "ours/torch", "without numba/torch", "over eigh"]

#: From the inputs to the results that gradients are given for.
Function = Callable[..., Sequence[Tensor]]


@dataclass(frozen=True)
class Case:
    """A function of ours, what one would write in torch, the inputs that both take, and the sizes (batch, n)."""

    ours: Function
    torch: Function
    inputs: Callable[[int, int], list[Tensor]]
    sizes: list[tuple[int, int]]


def run(threads: list[int]) -> Path:
    rows = [measure(name, *size, count) for count in threads for name, case in CASES.items() for size in case.sizes]
    return write("derivatives", TEXT, COLUMNS, rows)


def measure(name: str, batch: int, n: int, threads: int, seconds: float = 0.6) -> dict[str, Any]:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    case = CASES[name]
    inputs, covariance = case.inputs(batch, n), covariances(batch, n)
    ours = pass_through(case.ours, inputs)

    def without_numba() -> None:
        with kernels.disable():
            ours()

    times = interleave(
        {
            "torch": pass_through(case.torch, inputs),
            "ours": ours,
            "without numba": without_numba,
            "eigh": pass_through(torch.linalg.eigh, covariance),
        },
        seconds,
    )
    return {
        "threads": threads,
        "function": name,
        "batch": batch,
        "n": n,
        **times,
        "ours/torch": times["ours"].median / times["torch"].median,
        "without numba/torch": times["without numba"].median / times["torch"].median,
        "over eigh": times["ours"].median / times["eigh"].median,
    }


def pass_through(function: Function, inputs: list[Tensor]) -> Callable[[], object]:
    """A forward and a backward pass, with random gradients of all results."""
    gradients = [torch.randn_like(x) for x in function(*inputs)]
    return lambda: torch.autograd.grad(tuple(function(*inputs)), inputs, gradients)


def covariances(batch: int, n: int) -> list[Tensor]:
    samples = torch.randn(batch, n, 2 * n)
    return [(samples @ samples.mT / (2 * n)).requires_grad_()]


def matrices(batch: int, n: int) -> list[Tensor]:
    return [torch.randn(batch, n, n).requires_grad_()]


def point_sets(batch: int, n: int) -> list[Tensor]:
    return [torch.randn(batch, 2 * n, n).requires_grad_() for _ in range(2)]


def leading_pairs(A: Tensor) -> Sequence[Tensor]:
    L, V = torch.linalg.eigh(A)
    return L[..., -KEPT:], V[..., -KEPT:]


def leading_triples(A: Tensor) -> Sequence[Tensor]:
    U, S, Vh = torch.linalg.svd(A, full_matrices=False)
    return U[..., :KEPT], S[..., :KEPT], Vh[..., :KEPT, :]


def of_eigenvalues(f: Callable[[Tensor], Tensor]) -> Function:
    def function(A: Tensor) -> Sequence[Tensor]:
        L, V = torch.linalg.eigh(A)
        return [(V * f(L).unsqueeze(-2)) @ V.mT]

    return function


def projector(A: Tensor) -> Sequence[Tensor]:
    _, V = leading_pairs(A)
    return [V @ V.mT]


def truncation(A: Tensor) -> Sequence[Tensor]:
    U, S, Vh = leading_triples(A)
    return [(U * S.unsqueeze(-2)) @ Vh]


def unitary_factor(A: Tensor) -> Sequence[Tensor]:
    U, _, Vh = torch.linalg.svd(A, full_matrices=False)
    return [U @ Vh]


def pose(P: Tensor, Q: Tensor) -> Sequence[Tensor]:
    """The rotation U diag(1, …, 1, ±1) Vᵀ that brings centred points P closest to Q."""
    U, _, Vh = torch.linalg.svd((Q - Q.mean(-2, keepdim=True)).mT @ (P - P.mean(-2, keepdim=True)))
    signs = torch.ones_like(U[..., 0, :])
    signs[..., -1] = torch.linalg.det(U.detach() @ Vh.detach()).sign()
    return [(U * signs.unsqueeze(-2)) @ Vh]


CASES = {
    "eigh": Case(eg.eigh, torch.linalg.eigh, covariances, SIZES),
    "eigh, k=2": Case(lambda A: eg.eigh(A, k=KEPT), leading_pairs, covariances, FEW),
    "svd": Case(
        lambda A: eg.svd(A, full_matrices=False), lambda A: torch.linalg.svd(A, full_matrices=False), matrices, FEW
    ),
    "svd, k=2": Case(lambda A: eg.svd(A, k=KEPT), leading_triples, matrices, FEW),
    "matrix_sqrt": Case(lambda A: [eg.matrix_sqrt(A)], of_eigenvalues(torch.sqrt), covariances, SIZES),
    "matrix_inv_sqrt": Case(lambda A: [eg.matrix_inv_sqrt(A)], of_eigenvalues(torch.rsqrt), covariances, SIZES),
    "spectral_projector": Case(lambda A: [eg.spectral_projector(A, KEPT)], projector, covariances, FEW),
    "low_rank": Case(lambda A: [eg.low_rank(A, KEPT)], truncation, matrices, FEW),
    "pinv": Case(lambda A: [eg.pinv(A)], lambda A: [torch.linalg.pinv(A)], matrices, FEW),
    "polar": Case(lambda A: [eg.polar(A).U], unitary_factor, matrices, FEW),
    "kabsch": Case(lambda P, Q: [eg.kabsch(P, Q).rotation], pose, point_sets, FEW),
}
