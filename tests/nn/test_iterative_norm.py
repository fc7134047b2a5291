"""IterNorm: what its iterations reach, and that it is otherwise the same layer."""

import pytest
import torch

from eigengrad.nn import DecorrelatedBatchNorm2d, IterativeNorm
from layers_matrix import F64, SHAPES, features, group_covariance, randomize, wavy


def schulz(x, d: int, eps: float, steps: int):
    """IterNorm as its paper writes it: Newton–Schulz of the covariance over its trace."""
    parts = []
    for part in x.split(d, 1):
        points = part.transpose(0, 1).reshape(d, -1)
        centred = points - points.mean(1, keepdim=True)
        identity = torch.eye(d, dtype=x.dtype)
        M = centred @ centred.T / points.shape[1] + eps * identity
        P = identity
        for _ in range(steps):
            P = 1.5 * P - 0.5 * P @ P @ P @ (M / M.trace())
        parts.append(((P / M.trace().sqrt()) @ centred).reshape(d, x.shape[0], *x.shape[2:]).transpose(0, 1))
    return torch.cat(parts, 1)


@pytest.mark.parametrize("ndim", SHAPES)
@pytest.mark.parametrize("steps", [1, 5, 9])
def test_output_is_the_formula_of_its_paper(steps, ndim):
    x = features(*SHAPES[ndim])
    y = IterativeNorm(8, steps=steps, group_size=4, dtype=F64)(x)
    torch.testing.assert_close(y, schulz(x, 4, 1e-5, steps), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("steps", [3, 7])
def test_gradient_is_that_of_the_formula(steps):
    x = features(3, 8, 4, 5).requires_grad_()
    got = torch.autograd.grad(wavy(IterativeNorm(8, steps=steps, dtype=F64)(x)), x)[0]
    expected = torch.autograd.grad(wavy(schulz(x, 8, 1e-5, steps)), x)[0]
    torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-10)


def test_more_steps_come_closer_to_decorrelated_batch_norm():
    x = features(8, 8, 6, 6)
    target = DecorrelatedBatchNorm2d(8, 1e-5, dtype=F64)(x)
    distances = [(IterativeNorm(8, steps=n, dtype=F64)(x) - target).norm().item() for n in (1, 3, 5, 7, 12)]
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 1e-6 < distances[0]


def test_directions_of_small_variance_are_whitened_in_part_only():
    x = features(64, 8, 4, 4) * torch.logspace(0, -2, 8, dtype=F64).view(-1, 1, 1)
    variances = torch.linalg.eigvalsh(group_covariance(IterativeNorm(8, dtype=F64)(x), 1)[0])
    assert variances[0] < 0.1
    assert abs(variances[-1] - 1) < 0.1


@pytest.mark.parametrize("steps", [0, -1, 2.0, "5"])
def test_a_number_of_steps_that_is_none_is_refused(steps):
    with pytest.raises((ValueError, TypeError), match="steps"):
        IterativeNorm(8, steps=steps)


def test_repr_names_the_steps():
    assert "steps=7" in repr(IterativeNorm(8, steps=7))


def test_evaluation_is_by_the_same_number_of_steps():
    module = IterativeNorm(8, steps=2, momentum=1.0, affine=False, dtype=F64)
    x = features(8, 8, 6, 6)
    torch.testing.assert_close(module(x), module.eval()(x), rtol=1e-9, atol=1e-9)


def test_state_of_one_layer_loads_into_the_other():
    source = randomize(DecorrelatedBatchNorm2d(8, group_size=4, dtype=F64))
    target = IterativeNorm(8, 1e-2, steps=25, group_size=4, dtype=F64)
    target.load_state_dict(source.state_dict())
    x = features(2, 8, 3, 3)
    torch.testing.assert_close(target.eval()(x), source.eval()(x), rtol=1e-6, atol=1e-6)
