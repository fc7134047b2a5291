"""Tones in the order of a photograph."""

from __future__ import annotations

import torch

from eigengrad.lab.style.tones import in_order_of


def test_tones_are_those_of_the_painting_in_the_order_of_the_photograph() -> None:
    generator = torch.Generator().manual_seed(0)
    content = torch.randperm(256, generator=generator).view(16, 16) / 255  # every level once
    made = torch.rand(16, 16, generator=generator)
    tones = in_order_of(content, made)
    torch.testing.assert_close(tones.flatten().sort().values, made.flatten().sort().values)
    assert (tones.flatten()[content.flatten().argsort()].diff() >= 0).all()


def test_places_of_one_level_have_one_tone() -> None:
    """Else a white sky would get darker from one corner to the other."""
    content = torch.zeros(8, 8)
    content[:, 4:] = 1
    made = torch.rand(8, 8, generator=torch.Generator().manual_seed(0))
    tones = in_order_of(content, made)
    for half in (tones[:, :4], tones[:, 4:]):
        assert (half == half[0, 0]).all()
    torch.testing.assert_close(tones.mean(), made.mean())
    assert tones[0, 0] < tones[0, 7]


def test_a_painting_in_that_order_stays_as_it_is() -> None:
    content = torch.linspace(0, 1, 256).view(16, 16)
    torch.testing.assert_close(in_order_of(content, content**2), content**2)
