"""What is public in eigengrad, in the families that the reference is read in."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

__all__ = ["FAMILIES", "Family", "families", "lookup", "public_names"]


@dataclass(frozen=True)
class Family:
    """Names that belong together, and the page that explains them."""

    title: str
    guide: str
    names: tuple[str, ...]


#: Names are relative to ``eigengrad``.
FAMILIES = (
    Family("Decompositions", "gradients.md", ("eigh", "svd", "eigvalsh", "svdvals")),
    Family(
        "Functions of a matrix",
        "matrix_functions.md",
        (
            "matrix_sqrt",
            "matrix_inv_sqrt",
            "matrix_power",
            "matrix_log",
            "matrix_exp",
            "matrix_function",
            "logdet",
        ),
    ),
    Family("Rotations", "matrix_functions.md#rotations", ("kabsch", "procrustes", "polar")),
    Family(
        "Subspaces and low rank",
        "matrix_functions.md#subspaces-and-low-rank",
        ("spectral_projector", "low_rank", "nuclear_norm", "pinv"),
    ),
    Family(
        "Gradient rules",
        "gradients.md#the-rules",
        (
            "Saturate",
            "Exact",
            "Mask",
            "Lorentzian",
            "Truncate",
            "Taylor",
            "Clip",
            "PowerIteration",
            "UnitNormOrNaN",
            "register_rule",
            "PairRule",
            "GradientRule",
        ),
    ),
    Family(
        "Layers",
        "decorrelated_batch_norm.md",
        (
            "nn.DecorrelatedBatchNorm1d",
            "nn.DecorrelatedBatchNorm2d",
            "nn.DecorrelatedBatchNorm3d",
            "nn.IterativeNorm",
            "nn.SecondOrderPool2d",
            "nn.WhitenColor2d",
            "nn.fuse_conv_dbn",
        ),
    ),
    Family(
        "Layers as functions",
        "whitening_and_colouring.md",
        (
            "nn.functional.whitening_matrix",
            "nn.functional.covariance",
            "nn.functional.second_order_pool",
            "nn.functional.whiten_color",
            "nn.functional.color_transfer",
        ),
    ),
    Family(
        "In place of torch.linalg",
        "migration.md",
        (
            "patch_torch",
            "linalg.eigh",
            "linalg.eigvalsh",
            "linalg.svd",
            "linalg.svdvals",
            "linalg.cond",
            "linalg.matrix_norm",
            "linalg.norm",
            "linalg.matrix_rank",
            "linalg.pinv",
        ),
    ),
    Family("Diagnostics", "nan.md", ("diagnose", "Diagnosis", "spectrum_report", "SpectrumReport", "GradientMonitor")),
    Family(
        "Errors and warnings",
        "errors.md",
        (
            "NonFiniteError",
            "ConvergenceError",
            "DomainError",
            "NotHermitianError",
            "NotPositiveDefiniteError",
            "GaugeError",
            "GradientWarning",
        ),
    ),
    Family(
        "Iterative baselines",
        "matrix_functions.md#iterations",
        (
            "power_iteration",
            "newton_schulz_sqrt",
            "newton_schulz_inv_sqrt",
            "pade_sqrt",
            "pade_inv_sqrt",
            "taylor_sqrt",
            "taylor_inv_sqrt",
        ),
    ),
    Family(
        "What computes",
        "speed.md",
        (
            "show_config",
            "kernels.available",
            "kernels.why_not",
            "kernels.disable",
            "kernels.enable",
            "kernels.warmup",
        ),
    ),
    Family(
        "For tests",
        "faq.md",
        (
            "testing.hard_matrices",
            "testing.adjoint_defect",
            "testing.decomposition_errors",
            "testing.random_hermitian",
            "testing.random_matrix",
            "testing.random_unitary",
            "testing.random_cotangents",
            "testing.SPECTRA",
            "testing.MATRICES",
            "testing.Spectrum",
        ),
    ),
)

#: Modules whose ``__all__`` is what users may import, with what they list of other modules.
_MODULES = {
    "eigengrad": ("linalg", "nn"),
    "eigengrad.nn": ("functional",),
    "eigengrad.nn.functional": (),
    "eigengrad.linalg": (),
    "eigengrad.testing": (),
}


def public_names() -> list[str]:
    """Every name of a public module's ``__all__``, relative to ``eigengrad``, modules left out."""
    names = []
    for module, submodules in _MODULES.items():
        prefix = module.removeprefix("eigengrad").removeprefix(".")
        listed = importlib.import_module(module).__all__
        names += [f"{prefix}.{name}".removeprefix(".") for name in listed if name not in submodules]
    return names


def families() -> list[Family]:
    """The families, and a last one of public names that none of them has."""
    known = {name for family in FAMILIES for name in family.names}
    rest = tuple(name for name in public_names() if name not in known)
    return [*FAMILIES, *([Family("More", "index.md", rest)] if rest else [])]


def lookup(name: str) -> Any:
    """The object that a name relative to ``eigengrad`` stands for."""
    module, _, attribute = f"eigengrad.{name}".rpartition(".")
    return getattr(importlib.import_module(module), attribute)
