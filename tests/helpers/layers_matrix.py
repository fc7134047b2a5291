"""The test matrix of the whitening layers: a new layer or option is tested by one line in ``LAYERS``."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eigengrad import Lorentzian, Taylor
from eigengrad.nn import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d, DecorrelatedBatchNorm3d, IterativeNorm
from eigengrad.nn.whitening_norm import WhiteningNorm

F32, F64 = torch.float32, torch.float64
BY_NDIM = {2: DecorrelatedBatchNorm1d, 3: DecorrelatedBatchNorm1d, 4: DecorrelatedBatchNorm2d}
BY_NDIM[5] = DecorrelatedBatchNorm3d
BATCH_NORM = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


@dataclass(frozen=True)
class Layer:
    """A layer with options, and what it promises."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    kind: Callable[..., WhiteningNorm] | None = None
    """The class, where it is not a decorrelated batch norm."""
    whitens: bool = True
    """S (M + εI) Sᵀ = I."""
    differentiates: bool = True
    """Its gradient is that of its output, on spectra without ties."""
    regular: bool = True
    """Gradients are right at ties too."""
    deterministic: bool = True

    def __str__(self) -> str:
        return self.name

    def make(self, channels: int, ndim: int = 4, dtype: torch.dtype = F64, **more: Any) -> WhiteningNorm:
        return (self.kind or BY_NDIM[ndim])(channels, dtype=dtype, **{**self.options, **more})


def _dbn(name: str, promises: dict[str, bool] | None = None, **options: Any) -> Layer:
    return Layer(name, options, **(promises or {}))


_TIES = {"regular": False}
_ROUGH = {"differentiates": False, "regular": False}

LAYERS = [
    _dbn("zca"),
    _dbn("cholesky", whitening="cholesky"),
    _dbn("pca", _ROUGH, whitening="pca"),
    _dbn("pca-svd", _TIES, whitening="pca", gradient="svd"),
    _dbn("pca-mask", _TIES, whitening="pca", gradient="mask"),
    _dbn("zca-svd", _TIES, gradient="svd"),
    _dbn("zca-mask", _TIES, gradient="mask"),
    _dbn("zca-lorentzian", _TIES, gradient=Lorentzian(broadening=1e-18)),
    _dbn("zca-taylor-1000", _TIES, gradient=Taylor(degree=1000)),
    _dbn("zca-taylor", _ROUGH, gradient="taylor"),
    _dbn("zca-clip", _ROUGH, gradient="clip"),
    _dbn("zca-truncate", _ROUGH, gradient="truncate"),
    _dbn("zca-power_iteration", {**_ROUGH, "whitens": False}, gradient="power_iteration"),
    _dbn("zca-pi", {**_TIES, "whitens": False, "deterministic": False}, gradient="pi"),
    Layer("mpa", {"method": "pade"}, IterativeNorm, whitens=False, differentiates=False, regular=False),
    Layer("mtp", {"method": "taylor"}, IterativeNorm, whitens=False, differentiates=False, regular=False),
    Layer("iternorm", {"steps": 5}, IterativeNorm, whitens=False),
]
REGULAR = [layer for layer in LAYERS if layer.regular]
DIFFERENTIATES = [layer for layer in LAYERS if layer.differentiates]
DETERMINISTIC = [layer for layer in LAYERS if layer.deterministic]
WHITENINGS = [layer for layer in LAYERS if layer.name in ("zca", "pca", "cholesky")]
DEFAULTS = [*WHITENINGS, LAYERS[-1]]
ZCA, CHOLESKY, PCA = WHITENINGS


def over(layers: list[Layer]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("layer", layers, ids=str)


# Inputs ---------------------------------------------------------------------------------------------------------------

SHAPES = {2: (24, 8), 3: (4, 8, 7), 4: (3, 8, 4, 5), 5: (2, 8, 3, 2, 4)}


def features(*shape: int, dtype: torch.dtype = F64, mean: float = 1.0, seed: int = 0) -> Tensor:
    """Correlated channels with means of their own and variances between about 1 and 10."""
    generator = torch.Generator().manual_seed(seed)
    randn = partial(torch.randn, generator=generator, dtype=F64)
    channels = shape[1]
    mix = torch.diag(torch.linspace(1, 3, channels, dtype=F64)) + 0.3 * randn(channels, channels) / channels**0.5
    x = torch.einsum("cd,nd...->nc...", mix, randn(*shape))
    return (x + mean * (1 + 0.1 * randn(channels)).reshape(-1, *[1] * (len(shape) - 2))).to(dtype).contiguous()


def strided(x: Tensor) -> Tensor:
    """The same numbers with gaps between them."""
    wide = torch.zeros(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype)
    wide[..., ::2] = x
    return wide[..., ::2]


FORMATS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x.contiguous(),
    "channels_last": lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1),
    "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "strided": strided,
    "expanded": lambda x: x[:1].expand_as(x),
}


def randomize(layer: WhiteningNorm, seed: int = 1) -> WhiteningNorm:
    """Parameters and statistics that are not the initial ones."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) + 1)
        if layer.running_mean is not None:
            layer.running_mean.copy_(torch.randn(layer.running_mean.shape, generator=generator))
            F = torch.randn(layer.running_covariance.shape, generator=generator, dtype=F64)
            layer.running_covariance.copy_(F @ F.mT / layer.group_size + 0.1 * torch.eye(layer.group_size))
    return layer


def wavy(y: Tensor) -> Tensor:
    """A scalar loss to which every entry matters in its own way; not constant for whitened data."""
    weights = torch.sin(torch.arange(1, y.numel() + 1, dtype=F64)).reshape(y.shape).to(y.dtype)
    return (weights * (y + y**2 / 3)).sum()


# References -----------------------------------------------------------------------------------------------------------


def group_points(x: Tensor, groups: int) -> Tensor:
    """(groups, d, points) of a feature map, in float64."""
    return x.double().transpose(0, 1).reshape(groups, x.shape[1] // groups, -1)


def statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of each sample, in double precision."""
    points = x.double().flatten(2)
    centred = points - points.mean(-1, keepdim=True)
    return points.mean(-1), centred @ centred.mT / points.shape[-1]


def group_covariance(x: Tensor, groups: int) -> Tensor:
    points = group_points(x, groups)
    centred = points - points.mean(-1, keepdim=True)
    return centred @ centred.mT / points.shape[-1]


def textbook(x: Tensor, d: int, eps: float, whitening: str) -> Tensor:
    """Algorithm 2 without its affine map, group by group, in plain torch."""
    parts = []
    for part in x.split(d, 1):
        points = part.transpose(0, 1).reshape(d, -1)
        centred = points - points.mean(1, keepdim=True)
        M = centred @ centred.T / points.shape[1] + eps * torch.eye(d, dtype=x.dtype)
        L, V = torch.linalg.eigh(M)
        L = L.clamp(min=eps)
        if whitening == "zca":
            S = (V * L.rsqrt()) @ V.T
        elif whitening == "pca":
            S = ((V * L.rsqrt()).T).flip(0)
        else:
            S = torch.linalg.inv(torch.linalg.cholesky(M))
        parts.append((S @ centred).reshape(d, x.shape[0], *x.shape[2:]).transpose(0, 1))
    return torch.cat(parts, 1)
