"""Loading the weights of another network, such as torchvision's, as far as they fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

__all__ = ["Fit", "load_weights"]


@dataclass(frozen=True)
class Fit:
    """What became of the weights: names in the model's (or the given) state.

    Args:
        loaded: given and taken over.
        missing: in the model and not given; they stay as they were.
        unexpected: given and not in the model.
        mismatched: given in another shape than the model's; they stay as they were. "(64, 3, 7, 7) for (64, 3, 3, 3)".
    """

    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: dict[str, str]

    def __str__(self) -> str:
        lines = [f"{len(self.loaded)} weights loaded"]
        lines += [f"not given: {name}" for name in self.missing]
        lines += [f"not in the model: {name}" for name in self.unexpected]
        lines += [f"other shape: {name}, {shapes}" for name, shapes in self.mismatched.items()]
        return "\n".join(lines)


def load_weights(model: nn.Module, state: Mapping[str, Tensor]) -> Fit:
    """Put a state into a model as far as names and shapes agree, and say what did not fit.

    The models here have torchvision's names, so its pretrained weights fit, but for the first convolution of a ResNet
    (3×3 here, 7×7 there) and a last layer for other classes:

        weights = torchvision.models.resnet18(weights="DEFAULT").state_dict()
        print(load_weights(build("resnet18", 10, norm=normalisation("dbn")), weights))

    A whitening layer takes the state of a batch norm: the running variance becomes the diagonal of its covariance.

    Args:
        model: the model, which is changed.
        state: tensors by name, as ``state_dict()`` gives them.
    """
    wrong = next((name for name, value in state.items() if not isinstance(value, Tensor)), None)
    if wrong is not None:
        raise TypeError(
            f"state: {wrong!r} holds a {type(state[wrong]).__name__}; expected tensors by name, as state_dict() "
            "gives them. A checkpoint often has them under 'state_dict' or 'model'."
        )
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    for name in list(shapes):  # a batch norm's variance, which a whitening layer takes for its covariance
        if name.endswith(".running_covariance"):
            owner = name.removesuffix("running_covariance")
            shapes.setdefault(f"{owner}running_var", shapes[f"{owner}running_mean"])
    mismatched = {
        name: f"{tuple(value.shape)} for {shapes[name]}"
        for name, value in state.items()
        if name in shapes and tuple(value.shape) != shapes[name]
    }
    fitting = {name: value for name, value in state.items() if name in shapes and name not in mismatched}
    if not fitting:
        raise ValueError(
            f"state: none of its {len(state)} names fits the model; got {', '.join(list(state)[:3])}, …; "
            f"expected {', '.join(list(shapes)[:3])}, …"
        )
    missing = model.load_state_dict(fitting, strict=False).missing_keys
    return Fit(
        loaded=tuple(fitting),
        missing=tuple(name for name in missing if name not in mismatched),
        unexpected=tuple(name for name in state if name not in shapes),
        mismatched=mismatched,
    )
