"""Encoders and decoders without gradient descent: layer by layer, in closed form, from samples of patches.

A layer of the encoder looks at patches of 3×3 positions of what comes in. Most of its directions are those from which
the pixels below can be told best, so that the decoder can (reduced-rank regression); the others are those in which
the rest varies most. Within this space it turns to independent components, which for pictures are edges, bars and
textures of one orientation. Each component gives two channels, for its positive and its negative part.

A layer of the decoder is the linear regression from what it gets onto what the encoder's layer got.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

import eigengrad

from .codec import Chain

__all__ = ["fit_decoder", "fit_encoder"]

SAMPLES = 24_000  # patches, for at most 1296 dimensions
TELLING = 0.8  # share of the components that are there to tell the pixels
RIDGE = 1e-5  # of the average variance


@torch.no_grad()
def fit_encoder(encoder: Chain, images: Tensor, generator: torch.Generator) -> None:
    """Give an encoder its weights.

    Args:
        encoder: each of its convolutions has an even number of output channels, at least 10.
        images: (N, 3, H, W), to take patches from.
        generator: for what is random: which patches, and where the search for independent components starts.
    """
    maps, stride = images, 1
    for step in encoder.steps:
        if step.kind == "convolution":
            convolution = encoder.convolution(step.name)
            where = _sample(maps, generator)
            patches, pixels = _patches(maps, where), _pixels(images, where, stride)
            mean = patches.mean(0)
            filters = _components(patches - mean, pixels - pixels.mean(0), convolution.out_channels // 2, generator)
            both = torch.cat([filters, -filters])
            _assign(convolution, both, -both @ mean)
        else:
            stride *= 2
        maps = encoder.advance(step, maps)


@torch.no_grad()
def fit_decoder(decoder: Chain, encoder: Chain, images: Tensor, generator: torch.Generator) -> None:
    """Give a decoder weights that undo the encoder as far as the layer it starts from, one layer after the other."""
    wanted: dict[str, Tensor] = {}
    maps = images
    for step in encoder.steps:
        wanted[step.name] = maps
        maps = encoder.advance(step, maps)
        if step.name == decoder.steps[0].name:
            break
    for step in decoder.steps:
        if step.kind == "convolution":
            image, row, column = where = _sample(maps, generator)
            filters, offsets = _regression(_patches(maps, where), wanted[step.name][image, :, row, column])
            _assign(decoder.convolution(step.name), filters, offsets)
        maps = decoder.advance(step, maps)


def _regression(points: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Matrix (E, D) and offset (E,) of the best affine map from points (M, D) to targets (M, E)."""
    mean, target_mean = points.mean(0), targets.mean(0)
    centred = points - mean
    covariance = _covariance(centred)
    covariance.diagonal().add_(RIDGE * covariance.diagonal().mean())
    crossed = (centred.mT @ (targets - target_mean)).double() / len(points)
    matrix = torch.linalg.solve(covariance, crossed).mT.float()
    return matrix, target_mean - matrix @ mean


def _components(patches: Tensor, pixels: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Filters (count, D) for centred patches (M, D), whose outputs are uncorrelated, of variance 1, and independent."""
    covariance = _covariance(patches)
    eps = RIDGE * float(covariance.diagonal().mean())
    root, inverse = eigengrad.matrix_sqrt(covariance, eps=eps), eigengrad.matrix_inv_sqrt(covariance, eps=eps)
    # In whitened coordinates: those that tell the pixels, then those of the greatest variance among the rest.
    crossed = inverse @ (patches.mT @ pixels).double() / len(patches)
    telling = torch.linalg.eigh(crossed @ crossed.mT).eigenvectors[:, -round(TELLING * count) :]
    rest = torch.eye(len(covariance), dtype=torch.float64) - telling @ telling.mT
    varying = torch.linalg.eigh(root @ rest @ root).eigenvectors[:, telling.shape[1] - count :]
    directions = torch.cat([telling, torch.linalg.qr(rest @ root @ varying).Q], dim=1)
    filters = (directions.mT @ inverse).float()
    filters /= (patches @ filters.mT).std(0).unsqueeze(1)
    return _independent(patches @ filters.mT, generator) @ filters


def _independent(points: Tensor, generator: torch.Generator, iterations: int = 40) -> Tensor:
    """The rotation (k, k) to independent components of white points (M, k): FastICA (Hyvärinen, 1999)."""
    count = points.shape[1]
    rotation: Tensor = torch.linalg.qr(torch.randn(count, count, generator=generator)).Q
    for _ in range(iterations):
        bent = (points @ rotation.mT).tanh_()
        rotation = bent.mT @ points / len(points) - (1 - bent.square()).mean(0).unsqueeze(1) * rotation
        rotation = eigengrad.polar(rotation.double()).U.float()
    return rotation


def _covariance(centred: Tensor) -> Tensor:
    return (centred.mT @ centred).double() / len(centred)


def _assign(convolution: torch.nn.Conv2d, filters: Tensor, offsets: Tensor) -> None:
    """Assign weights (C', 9·C) and offsets (C',) to a convolution."""
    convolution.load_state_dict({"weight": filters.reshape(convolution.weight.shape), "bias": offsets})


def _sample(maps: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Draw random positions: image, row and column."""
    samples, _, height, width = maps.shape
    image, row, column = (torch.randint(n, (SAMPLES,), generator=generator) for n in (samples, height, width))
    return image, row, column


def _patches(maps: Tensor, where: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """The 3×3 positions around each sampled position, as a convolution sees them: (M, 9·C)."""
    return _windows(functional.pad(maps, (1, 1, 1, 1), mode="reflect"), where, 1, 3).flatten(1)


def _pixels(images: Tensor, where: tuple[Tensor, Tensor, Tensor], stride: int) -> Tensor:
    """The pixels that a position stands for, and with less weight those around: (M, 3·side²)."""
    margin = max(1, stride // 2)
    side = stride + 2 * margin
    padded = functional.pad(images, (margin,) * 4, mode="reflect")
    weights = torch.full((side,), 0.3)
    weights[margin:-margin] = 1
    return (_windows(padded, where, stride, side) * weights * weights.unsqueeze(1)).flatten(1)


def _windows(maps: Tensor, where: tuple[Tensor, Tensor, Tensor], stride: int, side: int) -> Tensor:
    """Windows (M, C, side, side) from rows and columns that are multiples of the stride."""
    image, row, column = (index.view(-1, 1, 1) for index in where)
    offsets = torch.arange(side)
    return maps[image, :, row * stride + offsets.view(-1, 1), column * stride + offsets].movedim(-1, 1)
