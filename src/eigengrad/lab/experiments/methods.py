"""The methods that the paper compares, and ours, by the names they have in tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..report import figures

__all__ = ["MORE_WHITENING", "POOLING", "WHITENING", "Method"]


@dataclass(frozen=True)
class Method:
    """A row of a table.

    Args:
        label: in tables and legends.
        fields: of a :class:`~eigengrad.lab.training.Config`, that make a run use it.
        colour: in figures.
        ours: whether it is an addition of this library; the paper has no numbers for it.
    """

    label: str
    fields: Mapping[str, Any]
    colour: str = figures.GREY
    ours: bool = False


def _whitening(label: str, gradient: str, colour: str, **more: Any) -> Method:
    ours = bool(more.pop("ours", False))
    return Method(label, {"norm": "dbn", "gradient": gradient, **more}, colour, ours)


#: Normalisations of the first layer. SVD-PI takes as many power iterations, K + 1, as Taylor has terms.
#: Batch norm has no group size: it names one so that a grid has one column for it.
WHITENING: dict[str, Method] = {
    "svd": _whitening("SVD", "svd", figures.GREY),
    "pi": _whitening("PI", "pi", figures.PINK),
    "clip": _whitening("SVD-Clip", "clip", figures.BLUE),
    "power_iteration": _whitening("SVD-PI", "power_iteration", figures.ORANGE, degree=9),
    "taylor": _whitening("SVD-Taylor", "taylor", figures.RED, degree=9),
    "exact": _whitening("Exact (ours)", "exact", figures.GREEN, ours=True),
    "iternorm": Method("IterNorm", {"norm": "iternorm"}, figures.TEAL, ours=True),
    "batchnorm": Method("Batch norm", {"norm": "batchnorm", "group_size": 1}, figures.INK, ours=True),
}

#: Methods that no table of the paper has a row for, and that a sweep can be asked for.
MORE_WHITENING: dict[str, Method] = {
    "released": _whitening("SVD-Taylor as released", "released", figures.YELLOW, degree=9),
    "taylor_subspace": _whitening("SVD-Taylor, averaged S", "taylor", figures.YELLOW, degree=9, average="whitening"),
    "power_iteration_all": _whitening(
        "SVD-PI, all eigenvectors", "power_iteration(stop=false)", figures.YELLOW, degree=9
    ),
    "unit_norm": _whitening("Scaled by its norm", "unit_norm_or_nan", figures.GREY),
    "mpa": Method("MPA", {"norm": "mpa"}, figures.TEAL, ours=True),
    "mtp": Method("MTP", {"norm": "mtp"}, figures.TEAL, ours=True),
}

#: Poolings of the last layer, in the order of the paper's table.
POOLING: dict[str, Method] = {
    "average": Method("AlexNet", {"pooling": "average"}, figures.INK),
    "bilinear": Method("Bilinear CNN", {"pooling": "bilinear"}, figures.GREY),
    "improved_bilinear": Method("Improved Bilinear CNN", {"pooling": "improved_bilinear"}, figures.YELLOW),
    "deep_o2p": Method("DeepO2P", {"pooling": "deep_o2p"}, figures.PINK),
    "g2denet": Method("G2DeNet", {"pooling": "g2denet"}, figures.TEAL),
    "mpn_cov": Method("MPN-COV (clipped)", {"pooling": "mpn_cov"}, figures.BLUE),
    "isqrt_cov": Method("Fast MPN-COV (iSQRT-COV)", {"pooling": "isqrt_cov"}, "#7a5195"),
    "mpa": Method("MPA", {"pooling": "mpa"}, "#955196", ours=True),
    "mtp": Method("MTP", {"pooling": "mtp"}, "#dd5182", ours=True),
    "svd_pi": Method("SVD-PI", {"pooling": "svd_pi"}, figures.ORANGE),
    "svd_taylor": Method("SVD-Taylor", {"pooling": "svd_taylor"}, figures.RED),
    "exact": Method("Exact (ours)", {"pooling": "exact"}, figures.GREEN, ours=True),
}
