"""``eigengrad.diagnose``: look at matrices, and say what their gradients will be like and what to write."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._inputs import check_matrix
from ..gradients import PairRule, Saturate
from ..gradients.spectrum import round_off, spectrum_scale, spread
from ..precision import widen
from .advice import general_advice, hermitian_advice, not_finite_advice
from .diagnosis import Diagnosis
from .probes import hermitian_losses, offered, singular_losses, widest_gap

__all__ = ["diagnose"]

#: The smaller side of a matrix; at this size it takes seconds.
_LARGEST = 1024
#: Multiplications of all decompositions together, above which a part of the batch stands for the whole.
_WORK = 2e10
#: Gaps over the spread, in units of the default rule's rtol, above which that rule is exact to round-off.
_HEALTHY = 40.0


@torch.no_grad()
def diagnose(A: Tensor) -> Diagnosis:
    """Say how close the eigenvalues or singular values of matrices are, what each rule makes of it, and what to write.

    The numbers are about the matrix of the batch whose gap is the smallest: gradients of random losses through each
    rule, in the type of the matrix, against the exact ones in float64.

    Args:
        A: (..., m, n), real or complex; Hermitian matrices are told by themselves. The smaller side is at most 1024.
            Of a large batch, matrices at even distances are looked at.

    Returns:
        A :class:`Diagnosis`; ``print`` shows it.

    >>> import torch, eigengrad as eg
    >>> found = eg.diagnose(torch.diag(torch.tensor([1.0, 1.0, 4.0])))
    >>> found.verdict, found.tied, found.kind
    ('tied', 2, 'Hermitian, positive definite')
    >>> found.advice[0].line
    'W = eg.matrix_inv_sqrt(A)'
    """
    check_matrix("diagnose", A, square=False)
    m, n = A.shape[-2:]
    if A.numel() == 0:
        raise ValueError(f"diagnose: A must not be empty; got shape {tuple(A.shape)}")
    if min(m, n) > _LARGEST:
        raise ValueError(f"diagnose: the smaller side of A must be at most {_LARGEST}; got shape {tuple(A.shape)}")
    dtype = str(A.dtype).removeprefix("torch.")
    flat = widen(A.detach().cpu()).reshape(-1, m, n)
    finite = flat.isfinite().all(-1).all(-1)
    if not bool(finite.all()):
        first = _index(int((~finite).nonzero()[0]), A.shape[:-2])
        bad = int((~finite).sum())
        which = "It" if len(flat) == 1 else f"{bad:,} of the matrices, {list(first)} the first,"
        summary = f"{which} {'holds' if bad == 1 else 'hold'} NaN or infinity, made before any decomposition."
        return Diagnosis(
            tuple(A.shape), dtype, "general", len(flat), 0, "not finite", summary, first, advice=not_finite_advice()
        )
    step = max(1, math.ceil(len(flat) * m * n * min(m, n) / _WORK))
    chosen = flat[::step]
    hermitian = m == n and _is_hermitian(chosen)
    doubled = chosen.to(torch.promote_types(chosen.dtype, torch.float64))
    values = torch.linalg.eigvalsh(doubled) if hermitian else torch.linalg.svdvals(doubled).flip(-1)
    accuracy = round_off(values.to(widen(A.real if A.is_complex() else A).dtype)).to(values)
    gaps, widths = values.diff(dim=-1), spread(values)
    relative = (gaps / widths).amin(-1) if values.shape[-1] > 1 else torch.full((len(values),), math.inf)
    worst = int(relative.argmin())
    L, tie = values[worst], gaps[worst] <= accuracy[worst]
    near = torch.cat([tie.new_zeros(1), tie]) | torch.cat([tie, tie.new_zeros(1)])
    rank = int((L.abs() > accuracy[worst]).sum())
    kind = _kind(L, float(accuracy[worst])) if hermitian else "general"
    eps = _suggested_eps(L, float(accuracy[worst])) if kind != "Hermitian, indefinite" else None
    A_worst = (chosen[worst] + chosen[worst].mH) / 2 if hermitian else chosen[worst]
    if hermitian:
        losses = hermitian_losses(A_worst, tie, eps)
        advice = hermitian_advice(eps, widest_gap(L), len(L))
    else:
        losses = singular_losses(A_worst, tie, rank == len(L))
        advice = general_advice((m, n), widest_gap(L), rank)
    verdict, summary = _verdict(kind, float(relative[worst]), int(near.sum()), len(L))
    notes = []
    if step > 1:
        notes.append(f"Every matrix with a number divisible by {step} was looked at: {len(chosen):,} of {len(flat):,}.")
    if m == n and not hermitian:
        notes.append(
            "The matrices are square, but not Hermitian: eigh would read one triangle of them and ignore the other. "
            "If they should be symmetric, make them so: A = (A + A.mH) / 2."
        )
    return Diagnosis(
        shape=tuple(A.shape),
        dtype=dtype,
        kind=kind,
        matrices=len(flat),
        examined=len(chosen),
        verdict=verdict,
        summary=summary,
        worst=_index(worst * step, A.shape[:-2]),
        values=tuple(L.tolist()),
        relative_gap=float(relative[worst]),
        largest_relative_gap=float(relative.amax()),
        ties=tuple(near.tolist()),
        rank=rank,
        condition=float(L.abs().amax() / L.abs().amin()) if float(L.abs().amin()) > 0 else math.inf,
        amplification=_amplification(L, A_worst),
        losses=losses if len(L) > 1 else (),
        advice=advice,
        notes=tuple(notes),
    )


def _index(number: int, batch: torch.Size) -> tuple[int, ...]:
    """The index in a batch of the matrix with this number; empty if there is no batch."""
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(number), batch)) if len(batch) else ()


def _is_hermitian(A: Tensor) -> bool:
    """Whether all matrices are Hermitian to √eps, as the matrix functions require it."""
    size = A.abs().amax((-2, -1))
    off = (A - A.mH).abs().amax((-2, -1))
    return bool((off <= math.sqrt(torch.finfo(A.dtype).eps) * size).all())


def _kind(L: Tensor, accuracy: float) -> str:
    lowest = float(L[0])
    sign = (
        "indefinite" if lowest < -accuracy else "positive definite" if lowest > accuracy else "positive semi-definite"
    )
    return f"Hermitian, {sign}"


def _suggested_eps(L: Tensor, accuracy: float) -> float:
    """0 for a matrix that has an inverse in its type, else a hundredth of a per cent of the largest eigenvalue."""
    if float(L[0]) > 1e3 * accuracy:
        return 0.0
    size = 1e-4 * float(spectrum_scale(L))
    return 10.0 ** math.floor(math.log10(size))


def _amplification(L: Tensor, A: Tensor) -> dict[str, float]:
    """The largest |R| of each rule times the spread, for eigenvalues as the type of the matrix has them."""
    values = L.to(A.real.dtype if A.is_complex() else A.dtype)
    if values.numel() < 2:
        return {}
    rules = {name: rule for name, rule in offered().items() if isinstance(rule, PairRule)}
    found = {name: torch.triu(rule.reciprocal(values), 1).amax() for name, rule in rules.items()}
    return {name: float(value.double() * spread(L)) for name, value in found.items()}


def _verdict(kind: str, gap: float, tied: int, n: int) -> tuple[str, str]:
    values = "singular values" if kind == "general" else "eigenvalues"
    function = "svd" if kind == "general" else "eigh"
    if n < 2:
        return "healthy", "A single value has no gap: nothing can go wrong."
    if tied:
        return (
            "tied",
            f"{tied} of {n} {values} equal a neighbour to round-off. torch.linalg.{function} divides by their gap: its "
            "gradient is NaN, infinite, or round-off. Their single vectors are arbitrary and have no gradient; "
            "functions of the matrix have an exact one.",
        )
    rtol = Saturate().rtol
    if gap < _HEALTHY * rtol:
        return (
            "close",
            f"two {values} are {gap:.2g} of the spread apart. torch.linalg.{function} multiplies gradients by up to "
            f"{1 / gap:.2g}/spread; the default rule here stays below {1 / rtol:.0e}/spread.",
        )
    same = f"torch.linalg.{function} and the default rule here have the same gradient"
    return "healthy", f"all {values} are apart: {same}."
