"""Compiled CPU kernels, from the extra ``fast`` (numba). Everything works without them, only slower.

This is the only door: tensors in, tensors out. Addresses, kernel numbers and costs stay inside.

    dispatch        the switch, and the way from a kernel's name to its machine code
    warmup          compiles ahead of the first use
    costs           what kernels take: which to choose, how many threads
    memory          addresses of tensors, checked
    eigensolvers/   Jacobi, batched QL, divide and conquer
    vjp/            backward passes through decompositions and matrix functions
    feature_maps/   passes over feature maps, and the algebra of whitening and colouring
    simd/           vectors as values: loads, stores, transposes, products
    runtime/        the compiler and its cache, torch's threads

numba is imported with the first kernel, so that importing eigengrad stays quick.
"""

from __future__ import annotations

from .dispatch import REAL, KernelsUnavailableError, available, disable, enable, usable, vector_bytes, why_not
from .warmup import warmup

__all__ = [
    "REAL",
    "KernelsUnavailableError",
    "available",
    "disable",
    "enable",
    "usable",
    "vector_bytes",
    "warmup",
    "why_not",
]
