"""The networks of the experiments, and the registry of their names.

To add one, write its file and name it in :data:`MODELS`.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from ...arguments import require_integer
from ...errors import unknown_choice
from .alexnet import AlexNet
from .alexnet_mpncov import MpnCovAlexNet
from .convnet import ConvNet
from .head import POOLINGS
from .normalisation import Normalisation, normalisation
from .resnet import resnet18, resnet50
from .weights import Fit, load_weights

__all__ = ["MODELS", "POOLINGS", "Fit", "build", "load_weights", "normalisation"]

#: Models by name: each takes the number of classes and the options of :func:`build`.
MODELS: dict[str, Callable[..., nn.Module]] = {
    "alexnet": AlexNet,
    "alexnet_mpncov": MpnCovAlexNet,
    "convnet": ConvNet,
    "resnet18": resnet18,
    "resnet50": resnet50,
}


def build(
    name: str,
    classes: int,
    *,
    norm: Normalisation,
    pooling: str = "average",
    pooling_eps: float | None = None,
    stem_width: int = 64,
    width: int = 64,
    in_channels: int = 3,
    image_size: int = 32,
) -> nn.Module:
    """A network with random weights, drawn from torch's global generator.

    Args:
        name: in :data:`MODELS`.
        classes: of the data.
        norm: the normalisation under test, from :func:`normalisation`: a function from channels to a layer.
        pooling: "average", or a method of :class:`eigengrad.nn.SecondOrderPool2d`.
        pooling_eps: ε of second-order pooling; ``None`` is the method's own.
        stem_width: channels of the first convolution, which the normalisation under test sees.
        width: scale of all other channels; 64 is the network as published, 16 a slim one.
        in_channels: of the images.
        image_size: height and width of the images.

    >>> model = build("resnet18", 10, norm=normalisation("dbn", group_size=16), width=16)
    >>> model.bn1.num_features, model.fc.in_features
    (64, 128)
    """
    if name not in MODELS:
        raise unknown_choice("model", name, MODELS)
    for argument, value in (
        ("classes", classes),
        ("stem_width", stem_width),
        ("width", width),
        ("in_channels", in_channels),
        ("image_size", image_size),
    ):
        require_integer(f"build({name!r})", argument, value, minimum=1)
    return MODELS[name](
        classes,
        norm=norm,
        pooling=pooling,
        pooling_eps=pooling_eps,
        stem_width=stem_width,
        width=width,
        in_channels=in_channels,
        image_size=image_size,
    )
