"""Weights from elsewhere: what fits is loaded, and what does not is named."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from eigengrad.lab.models import build, load_weights, normalisation

BATCHNORM = normalisation("batchnorm")


def torchvision_resnet18_state(classes: int = 1000) -> dict[str, torch.Tensor]:
    """Names and shapes of torchvision's ResNet-18, written down from its own ``state_dict``."""
    generator = torch.Generator().manual_seed(0)
    state: dict[str, torch.Tensor] = {}

    def norm(name: str, channels: int) -> None:
        for key in ("weight", "bias", "running_mean", "running_var"):
            state[f"{name}.{key}"] = torch.rand(channels, generator=generator) + 0.5
        state[f"{name}.num_batches_tracked"] = torch.tensor(7)

    def conv(name: str, *shape: int) -> None:
        state[f"{name}.weight"] = torch.randn(shape, generator=generator)

    conv("conv1", 64, 3, 7, 7)
    norm("bn1", 64)
    before = 64
    for stage, channels in enumerate((64, 128, 256, 512), 1):
        for block in (0, 1):
            prefix = f"layer{stage}.{block}"
            conv(f"{prefix}.conv1", channels, before, 3, 3)
            norm(f"{prefix}.bn1", channels)
            conv(f"{prefix}.conv2", channels, channels, 3, 3)
            norm(f"{prefix}.bn2", channels)
            if before != channels:
                conv(f"{prefix}.downsample.0", channels, before, 1, 1)
                norm(f"{prefix}.downsample.1", channels)
            before = channels
    state["fc.weight"] = torch.randn(classes, 512, generator=generator)
    state["fc.bias"] = torch.randn(classes, generator=generator)
    return state


def torchvision_alexnet_state() -> dict[str, torch.Tensor]:
    shapes = {
        "features.0": (64, 3, 11, 11),
        "features.3": (192, 64, 5, 5),
        "features.6": (384, 192, 3, 3),
        "features.8": (256, 384, 3, 3),
        "features.10": (256, 256, 3, 3),
        "classifier.1": (4096, 9216),
        "classifier.4": (4096, 4096),
        "classifier.6": (1000, 4096),
    }
    state = {}
    for name, shape in shapes.items():
        state[f"{name}.weight"] = torch.full(shape, 0.01)
        state[f"{name}.bias"] = torch.full(shape[:1], 0.02)
    return state


def test_resnet_takes_torchvisions_names():
    state = torchvision_resnet18_state()
    assert sum(v.numel() for k, v in state.items() if "running" not in k and "num_batches" not in k) == 11_689_512
    model = build("resnet18", 1000, norm=BATCHNORM)
    before = model.conv1.weight.clone()
    fit = load_weights(model, state)
    assert fit.mismatched == {"conv1.weight": "(64, 3, 7, 7) for (64, 3, 3, 3)"}
    assert (fit.missing, fit.unexpected) == ((), ())
    assert set(fit.loaded) == set(state) - {"conv1.weight"}
    assert torch.equal(model.conv1.weight, before)
    loaded = model.state_dict()
    assert all(torch.equal(loaded[name], state[name]) for name in fit.loaded)


def test_a_decorrelating_stem_takes_the_state_of_a_batch_norm():
    state = torchvision_resnet18_state()
    model = build("resnet18", 1000, norm=normalisation("dbn", group_size=16))
    fit = load_weights(model, state)
    assert set(fit.mismatched) == {"conv1.weight"}
    assert (fit.missing, fit.unexpected) == ((), ())
    diagonal = torch.diagonal(model.bn1.running_covariance, dim1=-2, dim2=-1).flatten()
    assert torch.equal(diagonal, state["bn1.running_var"])


def test_what_does_not_fit_stays_and_is_named():
    state = torchvision_resnet18_state()
    del state["layer1.0.conv1.weight"]
    state["extra.weight"] = torch.zeros(1)
    model = build("resnet18", 10, norm=normalisation("dbn", group_size=8), stem_width=32)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fit = load_weights(model, state)
    assert set(fit.mismatched) == {
        "conv1.weight",
        *(f"bn1.{key}" for key in ("weight", "bias", "running_mean", "running_var")),
        "fc.weight",
        "fc.bias",
    }
    assert fit.mismatched["fc.weight"] == "(1000, 512) for (10, 512)"
    # torch does not miss num_batches_tracked: batch norms once had none.
    shortcut = [f"layer1.0.downsample.1.{key}" for key in ("weight", "bias", "running_mean", "running_var")]
    others = ["bn1.running_covariance", "layer1.0.conv1.weight", "layer1.0.downsample.0.weight"]
    assert list(fit.missing) == others + shortcut
    assert fit.unexpected == ("extra.weight",)
    after = model.state_dict()
    for name in (*fit.missing, "fc.weight", "bn1.weight"):
        assert torch.equal(after[name], before[name]), name
    text = str(fit)
    assert "not in the model: extra.weight" in text
    assert "other shape: fc.weight, (1000, 512) for (10, 512)" in text


def test_alexnet_takes_torchvisions_names():
    state = torchvision_alexnet_state()
    assert sum(v.numel() for v in state.values()) == 61_100_840
    whole = build("alexnet", 1000, norm=normalisation("none"), pooling="average", image_size=224)
    fit = load_weights(whole, state)
    assert (set(fit.loaded), fit.missing, fit.unexpected, fit.mismatched) == (set(state), (), (), {})
    pooled = build("alexnet", 10, norm=normalisation("none"), pooling="exact", image_size=256)
    fit = load_weights(pooled, state)
    assert set(fit.loaded) == {name for name in state if name.startswith("features")}
    assert fit.missing == ("pool.reduction.weight", "classifier.weight", "classifier.bias")
    assert set(fit.unexpected) == {name for name in state if name.startswith("classifier")}


def test_a_state_of_something_else_is_refused():
    with pytest.raises(ValueError, match=r"none of its 2 names fits the model; got weight, bias"):
        load_weights(build("convnet", 10, norm=BATCHNORM), nn.Linear(3, 3).state_dict())


def test_a_checkpoint_is_refused_with_the_remedy():
    state = {"epoch": 3, "state_dict": nn.Linear(3, 3).state_dict()}
    with pytest.raises(TypeError, match=r"state: 'epoch' holds a int; expected tensors by name.*under 'state_dict'"):
        load_weights(build("convnet", 10, norm=BATCHNORM), state)
