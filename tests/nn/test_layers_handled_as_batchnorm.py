"""The whitening layers where others handle them as batch norm: hooks, frozen statistics, no bias, modes, old states."""

import pytest
import torch
from torch import nn

from eigengrad.nn import DecorrelatedBatchNorm2d
from layers_matrix import DEFAULTS, ZCA, features, over


@over(DEFAULTS)
def test_a_hook_that_saves_tensors_in_another_layout_changes_no_gradient(layer):
    x = features(4, 8, 5, 5, dtype=torch.float32).to(memory_format=torch.channels_last)
    found = []
    for pack in (lambda t: t, lambda t: t.contiguous()):
        leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            y = layer.make(8, group_size=4, dtype=torch.float32)(leaf)
        (y**3).sum().backward()
        found.append(leaf.grad)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def test_statistics_can_be_frozen_as_those_of_batch_norm():
    x = features(3, 8, 4, 5)
    for norm in (nn.BatchNorm2d(8, dtype=x.dtype), ZCA.make(8)):
        norm.track_running_stats = False
        norm(x)
        assert norm.num_batches_tracked == 0
        assert torch.equal(norm.running_mean, torch.zeros(8, dtype=x.dtype))
        norm.track_running_stats, norm.num_batches_tracked = True, None
        norm(x)
        torch.testing.assert_close(norm.running_mean, 0.1 * x.mean((0, 2, 3)))


@over(DEFAULTS)
def test_without_bias_the_weight_alone_is_learned(layer):
    module = layer.make(8, bias=False)
    assert set(dict(module.named_parameters())) == {"weight"}
    with_bias = layer.make(8)
    x = features(3, 8, 4, 5)
    found = []
    for layer_ in (module, with_bias):
        leaf = x.clone().requires_grad_()
        (layer_(leaf) ** 3).sum().backward()
        found.append((leaf.grad, layer_.weight.grad))
    torch.testing.assert_close(*found)
    torch.testing.assert_close(module.eval()(x), with_bias.eval()(x))


@pytest.mark.parametrize("c", [1e-13, 1e13, 1e14])
def test_the_exact_gradient_does_not_depend_on_the_scale_of_the_features(c):
    x, g = (features(16, 8, 5, 5, dtype=torch.float32, seed=s) for s in range(2))
    found = []
    for dtype in (torch.float32, torch.float64):
        leaf = (x.double() * c).to(dtype).requires_grad_()
        layer = DecorrelatedBatchNorm2d(8, eps=1e-28 if c < 1 else 1e-2, dtype=dtype)
        layer(leaf).backward(g.to(dtype))
        found.append(leaf.grad.double() * c)
    assert (found[0] - found[1]).norm() < 1e-5 * found[1].norm()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_whitening_matrix_is_derived_once_in_every_mode(mode, monkeypatch):
    module, x = ZCA.make(8), features(3, 8, 4, 5)
    module(x)
    derived = []
    whitening = module.whitening_matrices
    monkeypatch.setattr(module, "whitening_matrices", lambda c: derived.append(1) or whitening(c))
    module.eval()
    with mode():
        for _ in range(3):
            module(x)
    leaf = x.clone().requires_grad_()
    module(leaf).sum().backward()  # what was derived there is of use here
    assert len(derived) == 1


def test_a_layer_made_in_inference_mode_evaluates_outside():
    with torch.inference_mode():
        module = ZCA.make(8).eval()
    with torch.no_grad():
        assert module.eval()(features(3, 8, 4, 5)).isfinite().all()


@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m, "running_covariance", 4 * m.running_covariance),
        lambda m: m.running_covariance.data.mul_(4),
        lambda m: m.running_covariance.mul_(4),
    ],
    ids=["replaced", "behind the back", "in place"],
)
def test_an_export_sees_every_change_of_the_statistics(change):
    module, x = ZCA.make(8).eval(), features(3, 8, 4, 5)
    with torch.no_grad():
        change(module)
    exported = torch.export.export(module, (x,), strict=False)
    torch.testing.assert_close(exported.module()(x), module(x))


def test_states_of_old_batch_norms_load_and_what_is_too_much_is_named():
    module = ZCA.make(8)
    old = nn.BatchNorm2d(8).state_dict()
    old["running_var"] = torch.arange(1.0, 9)
    del old["num_batches_tracked"]
    module.load_state_dict(old)
    assert torch.equal(module.running_covariance.diagonal(dim1=1, dim2=2).flatten().float(), torch.arange(1.0, 9))
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "running_var"'):
        module.load_state_dict(module.state_dict() | {"running_var": torch.ones(8)})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: DecorrelatedBatchNorm2d(4, process_group="wrld"),
            'process_group must be a process group or "world"',
        ),
        (lambda: DecorrelatedBatchNorm2d(4, dtype="float32"), "dtype must be a floating-point type"),
        (lambda: DecorrelatedBatchNorm2d(4)(torch.ones(2, 4, 2, 2).to(torch.float8_e5m2)), "got torch.float8_e5m2"),
        (lambda: DecorrelatedBatchNorm2d.convert_batchnorm([1]), "module must be an nn.Module; got list"),
        (lambda: ZCA.make(4, track_running_stats=False).eval()(features(1, 4, 1, 1)), "more than 1 value per channel"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()
