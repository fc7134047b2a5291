"""E9: who has the smaller error on CIFAR-10, with the slim network of Table 4 and enough pairs of runs to say so."""

from __future__ import annotations

from .errors import Errors

__all__ = ["CifarErrors"]


class CifarErrors(Errors):
    """The comparison of :class:`Errors` on natural images; its runs are those of Table 4 at the small scale."""

    name = "errors_cifar"
    title = "Errors on CIFAR-10: who has the smaller one, by pairs of runs"
    protocol = "cifar10_pairs"
    compared = ("taylor", "power_iteration", "clip", "exact")
    pairs = (("taylor", "clip"), ("taylor", "power_iteration"), ("exact", "taylor"))
