"""Functions that only kernels call: linked into them as they are, to be optimised there with everything else.

numba optimises every function and makes it ready to be called from Python, for which nobody asks here, and optimises it
again wherever it is linked. To leave that out takes a third off the time that a large kernel takes to compile, and
the machine code that comes out is as fast.
"""

from __future__ import annotations

from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler

__all__ = ["LinkedCompiler"]


class _NoEnvironment:
    """Where numba would put what a function needs of Python."""

    def set_env(self, name: str, environment: object) -> None: ...


class _LinkedLibrary(JITCodeLibrary):
    """Code in LLVM's language for others to link."""

    codegen = _NoEnvironment()

    def _optimize_final_module(self) -> None: ...

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """There is none, which numba takes for an answer."""
        self._ensure_finalized()
        return 0


class LinkedCompiler(Compiler):
    """numba's own compiler, with such a library for its result."""

    def __init__(self, typing_context: Any, target_context: Any, library: Any, *rest: Any) -> None:
        if library is None:
            library = _LinkedLibrary(target_context.codegen(), "linked")
        super().__init__(typing_context, target_context, library, *rest)
