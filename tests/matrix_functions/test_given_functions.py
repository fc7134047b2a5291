"""``matrix_function``: what somebody else wrote, steep, kinked, with parameters, or not elementwise at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import eigengrad as eg
from functions_matrix import hermitian, randn


def steep(width: float) -> tuple[Callable[[Tensor], Tensor], ...]:
    """tanh(x/width) with its derivatives."""
    return (
        lambda x: torch.tanh(x / width),
        lambda x: (1 - torch.tanh(x / width) ** 2) / width,
        lambda x: -2 * torch.tanh(x / width) * (1 - torch.tanh(x / width) ** 2) / width**2,
    )


@pytest.mark.parametrize("width", [1e-3, 3e-3, 1e-2, 0.1, 1.0])
def test_a_step_between_eigenvalues_is_not_missed(width):
    """However narrow: the nodes of a rule of integration can all lie beside it."""
    f, df, d2f = steep(width)
    A, E, G = (hermitian(randn(5, 5, seed=s)) for s in range(3))
    A = A - 0.1 * torch.eye(5)
    L, V = torch.linalg.eigh(A)
    assert L[0] < -3 * width
    assert L.abs().min() > 3e-2
    F = (f(L)[:, None] - f(L)) / (L[:, None] - L + torch.eye(5)) + torch.diag(df(L))
    expected = V @ (F * (V.mT @ E @ V)) @ V.mT

    def value(A):
        return (G * eg.matrix_function(A, f, df, d2f)).sum()

    X = A.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(value(X), X, create_graph=True)
    assert abs(float((gradient * E).sum() - (G * expected).sum())) < 1e-10 * float(G.norm() * expected.norm())
    (second,) = torch.autograd.grad((gradient * E).sum(), X)
    h = 1e-4 * min(1.0, 10 * width)
    with torch.no_grad():
        difference = (value(A + h * E) - 2 * value(A) + value(A - h * E)) / h**2
    assert float((second * E).sum()) == pytest.approx(float(difference), rel=1e-3, abs=1e-2)


def test_the_projection_onto_positive_matrices_has_its_gradient():
    A = torch.tensor([[-0.1, 0.05], [0.05, 1.0]], dtype=torch.float64)
    E, G = torch.tensor([[[0.3, 0.4], [0.4, -0.2]], [[1.0, 2.0], [2.0, 3.0]]], dtype=torch.float64)

    def value(A):
        return (G * eg.matrix_function(A, lambda x: x.clamp(min=0), lambda x: (x > 0).to(x))).sum()

    X = A.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(value(X), X)
    h = 1e-6
    assert float((gradient * E).sum()) == pytest.approx(float(value(A + h * E) - value(A - h * E)) / (2 * h), rel=1e-8)


def test_a_function_with_parameters_is_refused_unless_a_rule_differentiates_it():
    factor = torch.tensor(2.0, requires_grad=True)

    def f(x):
        return factor * x

    A = torch.diag(torch.tensor([1.0, 2.0])).requires_grad_()
    with pytest.raises(ValueError, match=r"matrix_function: f depends on a tensor that requires a gradient"):
        eg.matrix_function(A, f, lambda x: torch.full_like(x, 2.0))
    eg.matrix_function(A, f, lambda x: torch.full_like(x, 2.0), gradient="taylor").trace().backward()
    assert factor.grad == 3
    with torch.no_grad():
        assert torch.equal(eg.matrix_function(A, f, torch.ones_like), 2 * A)


@pytest.mark.parametrize(
    ("f", "came"),
    [(lambda x: 1.0, "got 1.0"), (torch.sum, r"got \(\)"), (lambda x: x.sum(-1, keepdim=True), r"got \(1,\)")],
)
def test_a_function_that_is_not_elementwise_is_refused(f, came):
    with pytest.raises(ValueError, match=rf"f must return a tensor of the shape of its argument, \(2,\); {came}"):
        eg.matrix_function(torch.eye(2), f, torch.cos)


def test_parameters_are_refused_in_every_transform():
    A, s = torch.diag(torch.tensor([1.0, 2.0, 3.0])), torch.tensor(2.0)

    def f(s):
        return eg.matrix_function(A, lambda x: s * x * x, lambda x: 2 * s * x).sum()

    def within_a_map(s):
        return torch.func.vmap(lambda _: f(s))(torch.ones(2)).sum()

    for call in (
        lambda: torch.func.jvp(f, (s,), (s,)),
        lambda: torch.func.grad(f)(s),
        lambda: torch.func.grad(within_a_map)(s),
        lambda: torch.func.vmap(f)(torch.stack([s, s])),
    ):
        with pytest.raises(ValueError, match="f depends on a tensor that requires a gradient"):
            call()
