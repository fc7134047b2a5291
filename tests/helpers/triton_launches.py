"""The launches of the Triton kernels, for tensors on the CPU: in triton's interpreter, or on a GPU and back.

``conftest.py`` sets ``TRITON_INTERPRET=1``, with which kernels run in Python. With ``TRITON_INTERPRET=0`` they run on
the GPU: ``make test-gpu``. Tests that import this module are skipped where there is no triton, or no such GPU.
"""

import os

import pytest
import torch
from torch.utils._pytree import tree_map_only

pytest.importorskip("triton")

from eigengrad.kernels.gpu import launch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("TRITON_INTERPRET=0, and there is no GPU", allow_module_level=True)


def _there_and_back(function):
    def call(*arguments):
        if INTERPRETED:
            return function(*arguments)
        found = function(*tree_map_only(torch.Tensor, lambda x: x.cuda(), arguments))
        return tree_map_only(torch.Tensor, lambda x: x.cpu(), found)

    return call


decompose, eigh_vjp, function_vjp = map(_there_and_back, (launch.decompose, launch.eigh_vjp, launch.function_vjp))
moments, affine = map(_there_and_back, (launch.moments, launch.affine))
