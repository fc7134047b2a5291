"""What a number of runs can decide: paired differences, equivalence, rates, survival, and several tests at once."""

from .bootstrap import cluster_bootstrap
from .multiple import holm
from .paired import PairedDifference, detectable, paired, pairs_for_difference, pairs_for_equivalence
from .proportions import clopper_pearson, runs_for_bound, upper_bound
from .survival import Hazard, KaplanMeier, hazard, kaplan_meier

__all__ = [
    "Hazard",
    "KaplanMeier",
    "PairedDifference",
    "clopper_pearson",
    "cluster_bootstrap",
    "detectable",
    "hazard",
    "holm",
    "kaplan_meier",
    "paired",
    "pairs_for_difference",
    "pairs_for_equivalence",
    "runs_for_bound",
    "upper_bound",
]
