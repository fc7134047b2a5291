"""The whitening matrix of evaluation is derived once, kept, and never stale: every change of the state reaches it."""

import copy
import pickle

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap

from eigengrad.nn import DecorrelatedBatchNorm2d
from layers_matrix import (
    F32,
    F64,
    ZCA,
    features,
    randomize,
    wavy,
)


def fresh_output(module, x: Tensor) -> Tensor:
    """What a layer without a past gives for the same state."""
    other = DecorrelatedBatchNorm2d(module.num_features, module.eps, dtype=module.weight.dtype)
    other.load_state_dict(copy.deepcopy(module.state_dict()))
    return other.eval()(x)


def _train_more(module):
    module.train()(features(4, 4, 3, 3, seed=9))
    module.eval()


def _load(module):
    module.load_state_dict(randomize(ZCA.make(4), seed=7).state_dict())


def _assign(module):
    module.load_state_dict(randomize(ZCA.make(4), seed=7).state_dict(), assign=True)


def _assign_again(module):
    """The third buffer may well live where the first one did."""
    module.running_covariance = 5 * torch.eye(4, dtype=F64)[None]
    module(features(2, 4, 3, 3))
    module.running_covariance = 2 * torch.eye(4, dtype=F64)[None]
    module.running_covariance = 3 * torch.eye(4, dtype=F64)[None]


def _no_grad(module):
    with torch.no_grad():
        module.running_covariance.mul_(3)


CHANGES = {
    "further training": _train_more,
    "load_state_dict": _load,
    "load_state_dict(assign=True)": _assign,
    "edit in place": lambda m: m.running_covariance.mul_(3),
    "edit of an entry": lambda m: m.running_covariance[0, 0, 0].add_(3),
    "edit without grad": _no_grad,
    "edit through .data": lambda m: m.running_covariance.data.mul_(3),
    "new buffer": lambda m: setattr(m, "running_covariance", 3 * m.running_covariance),
    "several new buffers": _assign_again,
    "reset_running_stats": lambda m: m.reset_running_stats(),
    "running mean": lambda m: m.running_mean.add_(1),
    "eps": lambda m: setattr(m, "eps", 0.5),
    "weight": lambda m: m.weight.data.mul_(3),
    "double to float and back": lambda m: m.float().double(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_evaluation_follows_a_change_of_the_state(change):
    module, x = randomize(ZCA.make(4)).eval(), features(2, 4, 3, 3)
    before = module(x).detach().clone()
    CHANGES[change](module)
    torch.testing.assert_close(module(x), fresh_output(module, x), rtol=1e-12, atol=1e-12)
    assert not torch.equal(module(x), before)


def test_evaluation_follows_a_change_of_type():
    module, x = randomize(ZCA.make(4)).eval(), features(2, 4, 3, 3)
    exact = module(x)
    module.float()
    assert module(x.float()).dtype == F32
    torch.testing.assert_close(module(x.float()).double(), exact, rtol=1e-4, atol=1e-4)


def test_evaluation_follows_the_buffers_of_functional_call():
    module, x = ZCA.make(4, affine=False).eval(), features(2, 4, 3, 3)
    for scale in (1.0, 4.0, 9.0, 16.0, 25.0):
        y = functional_call(module, {"running_covariance": scale * torch.eye(4, dtype=F64)[None]}, (x,))
        torch.testing.assert_close(y, x / (scale + 1e-2) ** 0.5)


def test_an_ensemble_by_vmap_evaluates_as_its_members():
    members = [randomize(ZCA.make(4), seed=i).eval() for i in range(3)]
    x = features(2, 4, 3, 3)
    base = copy.deepcopy(members[0])
    for _ in range(2):
        y = vmap(lambda p, b: functional_call(base, (p, b), (x,)))(*stack_module_state(members))
        torch.testing.assert_close(y, torch.stack([m(x) for m in members]))
        for m in members:
            m.running_covariance.mul_(3)
    torch.testing.assert_close(base(x), fresh_output(base, x))


def test_the_matrix_is_derived_once(monkeypatch):
    module, x = ZCA.make(4), features(2, 4, 3, 3)
    calls = []
    original = type(module).whitening_matrices
    monkeypatch.setattr(type(module), "whitening_matrices", lambda self, M: calls.append(1) or original(self, M))
    module.eval()
    for _ in range(3):
        module(x)
    assert len(calls) == 1
    module.running_covariance.mul_(2)
    for _ in range(3):
        module(x)
    assert len(calls) == 2


def test_after_inference_mode_frozen_statistics_still_train():
    module, x = randomize(ZCA.make(4)).eval(), features(2, 4, 3, 3)
    with torch.inference_mode():
        expected = module(x)
    y = module(x)
    assert torch.equal(y, expected)
    y.sum().backward()
    assert module.weight.grad.isfinite().all()


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("track", [True, False], ids=["tracked", "no stats"])
def test_a_layer_runs_in_inference_mode(track, training):
    module, x = ZCA.make(4, track_running_stats=track).train(training), features(2, 4, 3, 3)
    expected = copy.deepcopy(module)(x)
    with torch.inference_mode():
        torch.testing.assert_close(module(x), expected.detach())
        made_inside = ZCA.make(4, track_running_stats=track).train(training)
        torch.testing.assert_close(made_inside(x), expected.detach())


def test_after_a_transform_the_layer_can_be_copied_and_pickled():
    module, x = randomize(ZCA.make(4)).eval(), features(2, 4, 3, 3)
    g = grad(lambda z: wavy(module(z)))(x)
    z = x.clone().requires_grad_()
    torch.testing.assert_close(g, torch.autograd.grad(wavy(module(z)), z)[0])
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(x), module(x))


def test_a_caller_cannot_spoil_the_cache():
    module, x = randomize(ZCA.make(4, affine=False)).eval(), features(2, 4, 3, 3)
    expected = module(x)
    module.evaluation_map()[0].mul_(2)
    assert torch.equal(module(x), expected)
