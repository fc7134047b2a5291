"""Compiled CPU kernels, from the extra ``fast`` (numba). Everything works without them, only slower.

Import from here only: tensors in, tensors out. Addresses, kernel numbers and costs stay inside.

    dispatch        the switch, and the machine code of a kernel by its name
    warmup          compiles ahead of the first use
    costs           what kernels take: which to choose, how many threads
    memory          addresses of tensors, checked; huge_pages for large results
    eigensolvers/   Jacobi, batched QL, divide and conquer
    vjp/            backward passes through decompositions and matrix functions
    feature_maps/   passes over feature maps, and the algebra of whitening and colouring
    simd/           vectors as values: loads, stores, transposes, products
    runtime/        the compiler and its cache, torch's threads

numba is imported with the first kernel, so that importing eigengrad stays quick. Derivations and layouts are in
``docs/design/kernels.md``.
"""

from __future__ import annotations

from .dispatch import (
    REAL,
    KernelsUnavailableError,
    available,
    cache_folder,
    disable,
    enable,
    usable,
    vector_bytes,
    why_not,
)
from .eigensolvers import Plan, column_major, decompose, plan, plan_exists
from .feature_maps.passes import KernelPasses, kernel_passes
from .feature_maps.transfers import Transfers
from .runtime.openmp import runtime as openmp_runtime
from .vjp import RuleVjp, eigh_vjp, function_vjp, rule_bracket
from .warmup import warmup

__all__ = [
    "REAL",
    "KernelPasses",
    "KernelsUnavailableError",
    "Plan",
    "RuleVjp",
    "Transfers",
    "available",
    "cache_folder",
    "column_major",
    "decompose",
    "disable",
    "eigh_vjp",
    "enable",
    "function_vjp",
    "kernel_passes",
    "openmp_runtime",
    "plan",
    "plan_exists",
    "rule_bracket",
    "usable",
    "vector_bytes",
    "warmup",
    "why_not",
]
