"""The networks of two domains, and all the ways that pictures take through them in a step of training."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .blocks import initialise
from .config import TranslationConfig
from .content_encoder import ContentEncoder
from .discriminator import Discriminator
from .generator import Generator
from .style_encoder import StyleEncoder
from .wct import Transfer, transfer

__all__ = ["Critics", "DomainNetwork", "Passes", "Translator"]


class DomainNetwork(nn.Module):
    """Encoders and generator of one domain."""

    def __init__(self, config: TranslationConfig) -> None:
        super().__init__()
        make = partial(transfer, config.wct, group_size=config.group_size, eps=config.eps, degree=config.degree)
        make = partial(make, per_sample=not config.batch_covariance)
        self.style_loss = config.style_loss
        self.content = ContentEncoder(config.width, config.blocks)
        self.style = StyleEncoder(config.width, 4 * config.width // config.group_size, config.style_reductions)
        self.generator = Generator(config.width, config.blocks, make)
        initialise(self, partial(nn.init.kaiming_normal_, nonlinearity="relu"))

    def statistics(self, style: Tensor) -> list[Tensor]:
        """What two styles are compared by: mean and covariance, or what the generator can see of them."""
        first = self.generator.transfers[0]
        assert isinstance(first, Transfer)
        return first.statistics(style) if self.style_loss == "moments" else first.seen(style)


class Passes(NamedTuple):
    """What the networks make of pictures a and b.

    Attributes:
        ab, ba: a painted as b, and the other way round.
        aba, bab: those painted back.
        aa, bb: pictures from their own content and style.
        content: of a, b, and of them again from ab and ba.
        style: statistics of the style of a, b, and of them again from ba and ab.
        penalties: of learned whitening and colouring, (2,).
    """

    ab: Tensor
    ba: Tensor
    aba: Tensor
    bab: Tensor
    aa: Tensor
    bb: Tensor
    content: tuple[Tensor, Tensor, Tensor, Tensor]
    style: tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]
    penalties: Tensor


class Translator(nn.Module):
    """Domain A and domain B, each with its own networks."""

    def __init__(self, config: TranslationConfig) -> None:
        super().__init__()
        self.a, self.b = DomainNetwork(config), DomainNetwork(config)

    def forward(self, a: Tensor, b: Tensor) -> Passes:
        """Translate there, back, and each picture to itself; passes through one generator are one batch."""
        A, B = self.a, self.b
        count = len(a)
        content_a, content_b, style_a, style_b = A.content(a), B.content(b), A.style(a), B.style(b)
        content = torch.cat([content_a, content_b])
        made_b, penalties_b = B.generator(content, style_b.repeat(2, 1, 1, 1))
        made_a, penalties_a = A.generator(content, style_a.repeat(2, 1, 1, 1))
        ab, bb = made_b[:count], made_b[count:]
        aa, ba = made_a[:count], made_a[count:]
        content_ab, content_ba, style_ab, style_ba = B.content(ab), A.content(ba), B.style(ab), A.style(ba)
        aba, penalties_aba = A.generator(content_ab, style_ba)
        bab, penalties_bab = B.generator(content_ba, style_ab)
        return Passes(
            ab,
            ba,
            aba,
            bab,
            aa,
            bb,
            (content_a, content_b, content_ab, content_ba),
            (A.statistics(style_a), B.statistics(style_b), A.statistics(style_ba), B.statistics(style_ab)),
            torch.stack([penalties_a, penalties_b, penalties_aba, penalties_bab]).mean(0),
        )

    def translate(self, photos: Tensor, styles: Tensor, *, to: str = "b") -> Tensor:
        """Pictures of one domain with the style of pictures of the other, (N, 3, H, W) from −1 to 1."""
        source, target = (self.a, self.b) if to == "b" else (self.b, self.a)
        made: Tensor = target.generator(source.content(photos), target.style(styles))[0]
        return made


class Critics(nn.Module):
    """A discriminator for each domain."""

    def __init__(self, config: TranslationConfig) -> None:
        super().__init__()
        self.a = Discriminator(config.critic_width, config.critic_scales)
        self.b = Discriminator(config.critic_width, config.critic_scales)
        initialise(self, partial(nn.init.normal_, std=0.02))

    def forward(self, a: Tensor, b: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Scores of pictures of A and of pictures of B, scale by scale."""
        return self.a(a), self.b(b)
