"""The gradients of a whitening matrix that are compared, by name."""

from __future__ import annotations

from ...gradients import Clip, GradientRule, Lorentzian, Mask, PowerIteration, Saturate, Taylor
from ..models.released import ReleasedTaylor

__all__ = [
    "ALGORITHM_1",
    "ALL_PAIRS",
    "EXACT",
    "PAPER_DEGREE",
    "RELEASED",
    "SVD",
    "TAYLOR_DEGREES",
    "fidelity_methods",
    "taylor_name",
]

#: K of the Taylor expansions.
TAYLOR_DEGREES = (1, 2, 3, 5, 7, 9, 14, 19, 29, 49, 100)
PAPER_DEGREE = 9

EXACT, SVD = "Exact (ours)", "SVD"
ALGORITHM_1, ALL_PAIRS = "SVD-PI", "SVD-PI, all pairs"
RELEASED = "SVD-Taylor as released"


def taylor_name(degree: int) -> str:
    """What the Taylor expansion of a degree is called."""
    return f"SVD-Taylor, K = {degree}"


def fidelity_methods(eps: float) -> dict[str, str | GradientRule]:
    """Name → the ``gradient`` of :func:`eigengrad.nn.functional.whitening_matrix`, for a layer with this ε.

    "As released" is the code of the paper's authors, which gives both entries of a tied pair the same sign. "SVD-PI" is
    the paper's Algorithm 1, which truncates S at ε as well; "all pairs" keeps every eigenvector. Both take K + 1 = 10
    power iterations.
    """
    taylor = {taylor_name(degree): Taylor(degree=degree, eps=eps) for degree in TAYLOR_DEGREES}
    return {
        EXACT: "exact",
        **taylor,
        "SVD-Clip": Clip(threshold=100.0),
        ALGORITHM_1: PowerIteration(steps=PAPER_DEGREE + 1, eps=eps, inclusive=True),
        ALL_PAIRS: PowerIteration(steps=PAPER_DEGREE + 1, stop=False),
        "PI": "pi",
        RELEASED: ReleasedTaylor(degree=PAPER_DEGREE),
        "Saturate": Saturate(),
        "Lorentzian": Lorentzian(),
        "Mask": Mask(),
        SVD: "svd",
    }
