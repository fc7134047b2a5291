"""The paper's tables and figures: one file each, and the registry of their names.

To add one, write its file with an :class:`~eigengrad.lab.experiments.experiment.Experiment` and name it in
:data:`EXPERIMENTS`.
"""

from __future__ import annotations

from ...errors import unknown_choice
from .convergence import Convergence
from .errors import Errors
from .errors_cifar import CifarErrors
from .experiment import SCALES, Context, Experiment, Plan, SweptExperiment
from .fidelity import FidelityExperiment
from .fig1a import Fig1a
from .fig1b import Fig1b
from .fig2 import Fig2
from .fig3 import Fig3
from .fig4 import Fig4
from .fig5 import Fig5
from .fig6 import Fig6
from .fig7 import Fig7
from .fig9 import Fig9
from .fig10 import Fig10
from .fig11 import Fig11
from .free_runs import FreeRuns
from .large_covariances import LargeCovariances
from .pooling_fidelity import PoolingFidelity
from .running_statistics import RunningStatistics
from .settings import HyperparameterPairs
from .survival import Survival
from .table3 import Table3
from .table4 import Table4
from .table5 import Table5
from .table6 import Table6
from .table7 import Table7
from .table8 import Table8
from .table9 import Table9
from .table10 import Table10
from .trained import TrainedExperiment
from .whiteness import Whiteness

__all__ = [
    "DECIDING",
    "EXPERIMENTS",
    "ORDER",
    "SCALES",
    "Context",
    "Experiment",
    "Plan",
    "SweptExperiment",
    "TrainedExperiment",
    "find",
]

#: Experiments by name: the tables and figures in the order of the paper, then those that decide its claims.
EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Fig1a(),
        Fig1b(),
        Fig2(),
        Fig3(),
        Fig4(),
        Table3(),
        Fig5(),
        Table4(),
        Fig6(),
        Fig7(),
        Table5(),
        Table6(),
        Table7(),
        Fig9(),
        Fig10(),
        Table8(),
        Table9(),
        Table10(),
        Fig11(),
        FidelityExperiment(),
        PoolingFidelity(),
        Errors(),
        CifarErrors(),
        HyperparameterPairs(),
        Convergence(),
        Survival(),
        FreeRuns(),
        RunningStatistics(),
        LargeCovariances(),
        Whiteness(),
    )
}

#: The experiments that decide claims stand first in reports; the paper's tables and figures follow in its order.
DECIDING = (
    *("fidelity", "pooling_fidelity", "errors", "errors_cifar", "settings", "convergence", "survival", "free_runs"),
    *("running_statistics", "large_covariances", "whiteness"),
)
ORDER = (*DECIDING, *(name for name in EXPERIMENTS if name not in DECIDING))


def find(name: str) -> Experiment:
    """The experiment of a name; a name that does not exist lists the choices."""
    if name not in EXPERIMENTS:
        raise unknown_choice("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]
