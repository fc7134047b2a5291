"""Five short trainings that start at a tie, fail or stall with torch.linalg, and converge by changing one import.

Each is a function of the module that the decompositions come from: ``torch.linalg`` or ``eigengrad.linalg``. The losses
do not depend on what a decomposition leaves arbitrary.
"""

from __future__ import annotations

import itertools
import math
import warnings

import pytest
import torch
from torch import Tensor

import eigengrad.linalg
import eigengrad.testing

OURS = [pytest.param(eigengrad.linalg, id="eigengrad.linalg")]
EVERY_TYPE = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def train(parameters: list[Tensor], loss, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    """The losses of all steps, up to the first that is not finite (as its loss or its gradient)."""
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        finite = all(torch.isfinite(p.grad).all() for p in parameters)
        losses.append(value.item() if finite else math.nan)
        if not math.isfinite(losses[-1]):
            break
        optimizer.step()
    return losses


def randn(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


# The pose layer from the identity -----------------------------------------------------------------------------------


def pose_from_the_identity(LA, dtype: torch.dtype) -> list[float]:
    """U diag(1, 1, det) Vh is to be a given rotation by two radians."""
    axis = torch.tensor([1.0, 2.0, 2.0], dtype=dtype) / 3
    cross = torch.linalg.cross(torch.eye(3, dtype=dtype), axis.expand(3, 3))
    target = torch.linalg.matrix_exp(2.0 * cross)
    M = torch.eye(3, dtype=dtype, requires_grad=True)

    def loss():
        U, _, Vh = LA.svd(M)
        D = torch.diag(torch.stack([torch.ones(()), torch.ones(()), torch.det(U @ Vh).detach().sign()]).to(dtype))
        return (U @ D @ Vh - target).square().sum()

    return train([M], loss, torch.optim.Adam([M], lr=0.05), 250)


# An eigenvector from the identity -----------------------------------------------------------------------------------


def eigenvector_from_the_identity(LA, dtype: torch.dtype) -> list[float]:
    """The leading eigenvector of a matrix is to be a given one, up to sign."""
    target = torch.nn.functional.normalize(randn(5, dtype=dtype), dim=0)
    M = torch.eye(5, dtype=dtype, requires_grad=True)

    def loss():
        _, V = LA.eigh((M + M.mT) / 2)
        return 1 - (V[:, -1] @ target) ** 2

    return train([M], loss, torch.optim.Adam([M], lr=0.02), 400)


# A nuclear norm from zero -------------------------------------------------------------------------------------------


def nuclear_norm_from_zero(LA, dtype: torch.dtype) -> list[float]:
    """½ ‖X − Y‖² + ‖X‖_* from X = 0 for a Y of rank two: the minimum has the singular values of Y less one.

    The losses are those above the minimum. With torch, the zeros are thrown about by a step length for ever.
    """
    generator = torch.Generator().manual_seed(0)
    Y = eigengrad.testing.random_matrix(torch.tensor([3.0, 3.0, 0.0, 0.0, 0.0]), 8, 5, generator, dtype)
    U, S, Vh = torch.linalg.svd(Y, full_matrices=False)
    best = (U * (S - 1).clamp(min=0)) @ Vh

    def of(X, norm):
        return 0.5 * (X - Y).square().sum() + norm

    minimum = of(best, (S - 1).clamp(min=0).sum()).item()
    X = torch.zeros(8, 5, dtype=dtype, requires_grad=True)
    optimizer = torch.optim.SGD([X], lr=0.1)
    losses = train([X], lambda: of(X, LA.matrix_norm(X, "nuc")), optimizer, 300)
    return [value - minimum for value in losses]


# ZCA whitening by hand, with dead channels --------------------------------------------------------------------------


def zca_with_dead_channels(LA, dtype: torch.dtype) -> list[float]:
    """Features of eight channels, three of them zero at the start, whitened by V (λ + ε)^(−½) Vᵀ.

    The targets are the whitened features of a teacher whose channels are alive.
    """
    x, teacher = randn(64, 6, dtype=dtype), randn(6, 8, dtype=dtype, seed=1)

    def whiten(h, decompose):
        h = h - h.mean(0)
        L, V = decompose(h.mT @ h / len(h))
        return h @ (V * (L + 0.1).rsqrt()) @ V.mT

    y = whiten(x @ teacher, torch.linalg.eigh)
    W = 0.5 * randn(6, 8, dtype=dtype, seed=2)
    W[:, 5:] = 0
    W.requires_grad_()
    head = torch.eye(8, dtype=dtype, requires_grad=True)
    parameters = [W, head]
    optimizer = torch.optim.Adam(parameters, lr=0.02)
    return train(parameters, lambda: (whiten(x @ W, LA.eigh) @ head - y).square().mean(), optimizer, 500)


# PCA whitening of white data ----------------------------------------------------------------------------------------


def pca_whitening_of_white_data(LA, dtype: torch.dtype) -> list[float]:
    """The leading whitened component of M x is to be a given one, up to sign; the covariance of x is the identity."""
    x = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=4)), dtype=dtype)
    direction = torch.nn.functional.normalize(randn(4, dtype=dtype), dim=0)
    M = torch.eye(4, dtype=dtype, requires_grad=True)

    def loss():
        h = x @ M
        L, V = LA.eigh(h.mT @ h / len(h))
        z = h @ V * L.rsqrt()
        return (z[:, -1].square() - (x @ direction).square()).square().mean()

    return train([M], loss, torch.optim.Adam([M], lr=0.02), 500)


# ---------------------------------------------------------------------------------------------------------------------

#: Each training, and the loss that it comes below.
TRAININGS = {
    "pose layer from the identity": (pose_from_the_identity, 1e-6),
    "eigenvector from the identity": (eigenvector_from_the_identity, 1e-6),
    "nuclear norm from zero": (nuclear_norm_from_zero, 1e-5),
    "ZCA with dead channels": (zca_with_dead_channels, 1e-3),
    "PCA whitening of white data": (pca_whitening_of_white_data, 1e-5),
}
every_training = pytest.mark.parametrize(("training", "goal"), TRAININGS.values(), ids=TRAININGS)


@EVERY_TYPE
@every_training
def test_torch_fails_or_stalls(training, goal, dtype):
    losses = training(torch.linalg, dtype)
    assert math.isnan(losses[-1]) or min(losses[-10:]) > 10 * goal


@EVERY_TYPE
@every_training
@pytest.mark.parametrize("LA", OURS)
def test_with_one_import_changed_it_converges(LA, training, goal, dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", eigengrad.GradientWarning)
        losses = training(LA, dtype)
    assert losses[0] > 100 * goal
    assert max(losses[-10:]) < goal
