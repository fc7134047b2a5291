"""Colour transfer: pixels get the mean and covariance of another image's."""

import pytest
import torch

from eigengrad.nn.functional import color_transfer
from layers_matrix import statistics


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def test_color_transfer_gives_the_pixels_the_colours_of_the_other_image():
    a, b = torch.rand(3, 20, 30), 0.3 + 0.4 * torch.rand(3, 15, 10).pow(2)
    b[1] = 0.5 * b[0] + 0.5 * b[1]
    mean, covariance = statistics(color_transfer(a, b, clamp=False)[None])
    want_mean, want_covariance = statistics(b[None])
    torch.testing.assert_close(mean, want_mean, rtol=1e-4, atol=1e-4)
    assert (covariance - want_covariance).norm() / want_covariance.norm() < 1e-3
    torch.testing.assert_close(color_transfer(a, a), a, rtol=1e-5, atol=1e-5)


def test_color_transfer_clamps_if_asked_and_takes_batches():
    a, b = torch.rand(2, 3, 8, 9), torch.randint(0, 2, (3, 7, 7)).float()
    free, clamped = color_transfer(a, b, clamp=False), color_transfer(a, b)
    assert free.min() < 0
    assert free.max() > 1
    assert torch.equal(clamped, free.clamp(0, 1))
    torch.testing.assert_close(clamped[1], color_transfer(a[1], b), rtol=1e-5, atol=1e-5)
    assert color_transfer(a[:1], b[None]).shape == (1, 3, 8, 9)
    assert color_transfer(a[0], b[None]).shape == (3, 8, 9)


def test_a_grey_image_takes_the_main_colours_without_noise():
    grey = torch.rand(1, 10, 10).expand(3, 10, 10)
    b = torch.rand(3, 10, 10)
    y = color_transfer(grey, b, clamp=False)
    torch.testing.assert_close(y.mean((1, 2)), b.mean((1, 2)), rtol=1e-4, atol=1e-4)
    spectrum = torch.linalg.eigvalsh(statistics(y[None])[1][0])
    assert spectrum[1] < 1e-6 * spectrum[2]  # one line of colours stays one line


IMAGE = torch.zeros(3, 4, 4)
MISUSE = {
    "bytes": (
        lambda: color_transfer(IMAGE.byte(), IMAGE),
        TypeError,
        "image_a must be of a floating-point type .* got torch.uint8. Divide by 255: image_a / 255",
    ),
    "channels last": (
        lambda: color_transfer(IMAGE, torch.zeros(4, 4, 3)),
        ValueError,
        r"image_b must have shape \(3, H, W\) .* got \(4, 4, 3\). Bring the channels to the front",
    ),
    "0 to 255": (
        lambda: color_transfer(IMAGE, IMAGE + 255),
        ValueError,
        "image_b must have values from 0 to 1; got 255. Divide by 255",
    ),
    "images": (
        lambda: color_transfer(IMAGE, torch.zeros(2, 3, 4, 4)),
        ValueError,
        r"image_b must be one image, or one for each of image_a; got \(2, 3, 4, 4\) for \(3, 4, 4\)",
    ),
    "not an image": (lambda: color_transfer(IMAGE, None), TypeError, "image_b must be a torch.Tensor; got NoneType"),
}


@pytest.mark.parametrize("case", MISUSE)
def test_misuse_is_named(case):
    call, error, message = MISUSE[case]
    with pytest.raises(error, match=message):
        call()
