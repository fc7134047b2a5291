"""The launches of the Triton kernels in triton's interpreter, which runs them in Python on CPU tensors.

Tests that import this module are skipped where triton is not installed. ``conftest.py`` sets ``TRITON_INTERPRET``.
"""

import pytest

pytest.importorskip("triton")

from eigengrad.kernels.gpu import launch

__all__ = ["launch"]
