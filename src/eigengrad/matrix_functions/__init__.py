"""Functions of Hermitian matrices with exact derivatives, and the iterative approximations they replace."""

from .approximants import pade_inv_sqrt, pade_sqrt, taylor_inv_sqrt, taylor_sqrt
from .exp import matrix_exp
from .function import matrix_function
from .inv_sqrt import matrix_inv_sqrt
from .kabsch import kabsch
from .log import matrix_log
from .logdet import logdet
from .low_rank import low_rank
from .newton_schulz import newton_schulz_inv_sqrt, newton_schulz_sqrt
from .nuclear_norm import nuclear_norm
from .pinv import pinv
from .polar import polar
from .power import matrix_power
from .procrustes import procrustes
from .projector import spectral_projector
from .sqrt import matrix_sqrt

__all__ = [
    "kabsch",
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
    "nuclear_norm",
    "pade_inv_sqrt",
    "pade_sqrt",
    "pinv",
    "polar",
    "procrustes",
    "spectral_projector",
    "taylor_inv_sqrt",
    "taylor_sqrt",
]
