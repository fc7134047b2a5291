"""Functions of Hermitian matrices with exact derivatives, and the iterative approximations they replace."""

from .exp import matrix_exp
from .function import matrix_function
from .inv_sqrt import matrix_inv_sqrt
from .log import matrix_log
from .newton_schulz import newton_schulz_inv_sqrt, newton_schulz_sqrt
from .polar import polar, procrustes
from .power import matrix_power
from .sqrt import matrix_sqrt

__all__ = [
    "matrix_exp",
    "matrix_function",
    "matrix_inv_sqrt",
    "matrix_log",
    "matrix_power",
    "matrix_sqrt",
    "newton_schulz_inv_sqrt",
    "newton_schulz_sqrt",
    "polar",
    "procrustes",
]
