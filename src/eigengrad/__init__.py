"""eigengrad: eigendecomposition that you can train through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import linalg
from .config import show_config
from .diagnostics import GradientMonitor, SpectrumReport, spectrum_report
from .doctor import Diagnosis, diagnose
from .eigh import eigh
from .errors import (
    ConvergenceError,
    DomainError,
    GaugeError,
    GradientWarning,
    NonFiniteError,
    NotHermitianError,
    NotPositiveDefiniteError,
)
from .gradients import Clip, Exact, GradientRule, Lorentzian, Mask, PairRule, PowerIteration, Saturate, Taylor, Truncate
from .matrix_functions import (
    kabsch,
    logdet,
    low_rank,
    matrix_exp,
    matrix_function,
    matrix_inv_sqrt,
    matrix_log,
    matrix_power,
    matrix_sqrt,
    newton_schulz_inv_sqrt,
    newton_schulz_sqrt,
    nuclear_norm,
    pinv,
    polar,
    procrustes,
    spectral_projector,
)
from .patch import patch_torch
from .power_iteration import power_iteration
from .svd import svd
from .values import eigvalsh, svdvals

if TYPE_CHECKING:
    from . import nn

__version__ = "0.1.0"

__all__ = [
    "Clip",
    "ConvergenceError",
    "Diagnosis",
    "DomainError",
    "Exact",
    "GaugeError",
    "GradientMonitor",
    "GradientRule",
    "GradientWarning",
    "Lorentzian",
    "Mask",
    "NonFiniteError",
    "NotHermitianError",
    "NotPositiveDefiniteError",
    "PairRule",
    "PowerIteration",
    "Saturate",
    "SpectrumReport",
    "Taylor",
    "Truncate",
    "diagnose",
    "eigh",
    "eigvalsh",
    "kabsch",
    "linalg",
    "logdet",
    "low_rank",
    "matrix_exp",
    "matrix_function",
    "matrix_inv_sqrt",
    "matrix_log",
    "matrix_power",
    "matrix_sqrt",
    "newton_schulz_inv_sqrt",
    "newton_schulz_sqrt",
    "nn",
    "nuclear_norm",
    "patch_torch",
    "pinv",
    "polar",
    "power_iteration",
    "procrustes",
    "show_config",
    "spectral_projector",
    "spectrum_report",
    "svd",
    "svdvals",
]


def __getattr__(name: str) -> Any:
    """``eigengrad.nn``, imported when it is first asked for: those who need no layer do not wait for them."""
    if name == "nn":
        import importlib

        return importlib.import_module(".nn", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
