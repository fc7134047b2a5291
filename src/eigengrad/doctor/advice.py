"""Which function to use for which loss, as lines to write."""

from __future__ import annotations

from .diagnosis import Advice

__all__ = ["general_advice", "hermitian_advice", "not_finite_advice"]


def hermitian_advice(eps: float | None, k: int, n: int) -> tuple[Advice, ...]:
    """Lines for Hermitian matrices of size n.

    Args:
        eps: for ``matrix_inv_sqrt``; 0 for none, and None for indefinite matrices.
        k: how many of the largest eigenvalues are above the widest gap; 0 if all tie.
        n: how many there are.
    """
    found = []
    if eps is None:
        line = "S = eg.matrix_exp(A)  # or eg.matrix_power(A, 3), eg.matrix_function(A, f, df)"
        found.append(Advice("The loss depends on f(A) = V f(λ) Vᴴ", line, "Exact at ties, by divided differences."))
    else:
        argument = f", eps={eps:g}" if eps else ""
        why = "Exact at ties, by divided differences."
        if eps:
            why += " The matrix has no inverse without eps, which is added to its diagonal; how large it is, is yours."
        when = "The loss depends on f(A) = V f(λ) Vᴴ: whitening, A^½, log A"
        found.append(Advice(when, f"W = eg.matrix_inv_sqrt(A{argument})", why))
    if 0 < k < n:
        found.append(
            Advice(
                "It depends on a subspace",
                f"P = eg.spectral_projector(A, {k})",
                _cut(k),
            )
        )
    found += [
        Advice("It depends on eigenvalues alone", "L = eg.eigvalsh(A)", "Exact: no gap enters."),
        Advice(
            "It depends on single eigenvectors",
            "L, V = eg.eigh(A)  # in place of torch.linalg.eigh",
            "Exact where eigenvalues are apart, bounded where they are not.",
        ),
        _patch("eigh"),
    ]
    return tuple(found)


def general_advice(shape: tuple[int, int], k: int, rank: int) -> tuple[Advice, ...]:
    """Lines for matrices (m, n) of a rank, k of whose singular values are above the widest gap (0 if all tie)."""
    found = []
    if rank == min(shape):
        square = shape[0] == shape[1]
        special = ", special=True" if square else ""
        line = f"R = eg.polar(A{special}).U  # eg.kabsch(P, Q) from points"
        found.append(Advice("The loss depends on a rotation or a pose, U Vᴴ", line, "Exact at ties: 1/(σᵢ + σⱼ)."))
    if 0 < k < min(shape):
        found.append(
            Advice(
                "It depends on a truncation to rank k",
                f"B = eg.low_rank(A, {k})",
                _cut(k),
            )
        )
    found += [
        Advice(
            "It depends on singular values alone",
            "S = eg.svdvals(A)  # or eg.nuclear_norm(A), eg.pinv(A)",
            "Exact: no gap enters.",
        ),
        Advice(
            "It depends on single singular vectors",
            "U, S, Vh = eg.svd(A, full_matrices=False)",
            "Exact where singular values are apart, bounded where they are not.",
        ),
        _patch("svd"),
    ]
    return tuple(found)


def not_finite_advice() -> tuple[Advice, ...]:
    """Lines to find where a NaN was made."""
    return (
        Advice(
            "Find the operation that made it",
            "with torch.autograd.detect_anomaly():  # around forward and backward",
            "It raises where a backward pass makes NaN, and shows the line of the forward pass. Then save the matrix "
            "of the step before, and look at that.",
        ),
    )


def _cut(k: int) -> str:
    behind = "the largest value" if k == 1 else f"the {k} largest values"
    return f"Exact: only the gap at the cut counts. The widest one here is behind {behind}."


def _patch(function: str) -> Advice:
    why = f"Every torch.linalg.{function} inside takes these gradients."
    return Advice("The code is not yours", "with eg.patch_torch():", why)
