"""eigengrad: eigendecomposition that you can train through."""

from .diagnostics import GradientMonitor, SpectrumReport, spectrum_report
from .eigh import eigh
from .errors import ConvergenceError, DomainError, GaugeError, NonFiniteError
from .gradients import Clip, Exact, GradientRule, Lorentzian, Mask, PairRule, PowerIteration, Taylor, Truncate
from .matrix_functions import (
    matrix_exp,
    matrix_function,
    matrix_inv_sqrt,
    matrix_log,
    matrix_power,
    matrix_sqrt,
    newton_schulz_inv_sqrt,
    newton_schulz_sqrt,
    polar,
    procrustes,
)
from .power_iteration import power_iteration
from .svd import svd

__version__ = "0.1.0"

__all__ = [
    "Clip",
    "ConvergenceError",
    "DomainError",
    "Exact",
    "GaugeError",
    "GradientMonitor",
    "GradientRule",
    "Lorentzian",
    "Mask",
    "NonFiniteError",
    "PairRule",
    "PowerIteration",
    "SpectrumReport",
    "Taylor",
    "Truncate",
    "eigh",
    "matrix_exp",
    "matrix_function",
    "matrix_inv_sqrt",
    "matrix_log",
    "matrix_power",
    "matrix_sqrt",
    "newton_schulz_inv_sqrt",
    "newton_schulz_sqrt",
    "polar",
    "power_iteration",
    "procrustes",
    "spectrum_report",
    "svd",
]
