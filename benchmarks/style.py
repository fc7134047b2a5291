"""Whitening and colouring of features against the same in plain torch operations; colour transfer of a photograph."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eigengrad.lab.style.color import Palette, transfer_colors
from eigengrad.lab.style.images import Picture, read_picture, write_picture
from eigengrad.nn.functional import whiten_color
from harness import Timing, interleave, write

CHANNELS, SIDE = 256, 128
GROUPS = [8, 1]
PHOTO = (3000, 4000)
SPACES = ["rgb", "lab"]
TEXT = f"""*whiten_color*: content and style (1, {CHANNELS}, {SIDE}, {SIDE}), forward + backward to both, float32,
against the same in plain torch around `torch.linalg.eigh`, taking turns; the ratio is of medians. 8 groups of 32
channels are the paper's. *products*: what the products of d×d with d×{SIDE * SIDE} matrices alone would take, six for
ours (a covariance is half a product) and twelve for plain, at the time of one product of torch measured in the same
run. With one group they are nearly all there is to do, so that plain/ours is little
more than 2: as far as ours are quicker than the library's.

*colour*: a photograph of 12 megapixels in the colours of another picture, statistics and gamut included: from memory to
memory, and from a JPEG file to a PNG file."""


def run(threads: list[int]) -> Path:
    rows: list[dict[str, Any]] = []
    for count in threads:
        torch.set_num_threads(count)
        rows += [transform(groups, count) for groups in GROUPS]
        for space in SPACES:
            rows += colour(space, count)
    return write("style", TEXT, ["threads", "what", "ours", "plain", "plain/ours", "products"], rows)


def transform(groups: int, threads: int) -> dict[str, Any]:
    torch.manual_seed(0)
    content, style = (torch.randn(1, CHANNELS, SIDE, SIDE, requires_grad=True) for _ in range(2))
    gradient = torch.randn(1, CHANNELS, SIDE, SIDE)

    def both(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], object]:
        def call() -> None:
            function(content, style).backward(gradient)
            content.grad = style.grad = None

        return call

    size = CHANNELS // groups
    square, points = torch.randn(groups, size, size), torch.randn(groups, size, SIDE * SIDE)
    times = interleave(
        {
            "ours": both(lambda c, s: whiten_color(c, s, groups=groups)),
            "plain": both(lambda c, s: plain(c, s, groups)),
            "product": lambda: square @ points,
        },
        seconds=4,
    )
    one = times["product"].median / 1e3
    return row(threads, f"whiten_color, {groups} group{'s' * (groups > 1)}", times) | {
        "products": f"{6 * one:,.0f} of {12 * one:,.0f} ms"
    }


def plain(content: Tensor, style: Tensor, groups: int, eps: float = 1e-5) -> Tensor:
    """As it is usually written."""
    size = content.shape[1] // groups
    x, s = (t.reshape(groups, size, -1) for t in (content, style))
    x_mean, s_mean = x.mean(-1, keepdim=True), s.mean(-1, keepdim=True)
    x, s = x - x_mean, s - s_mean
    identity = eps * torch.eye(size)
    x_values, x_vectors = torch.linalg.eigh(x @ x.mT / x.shape[-1] + identity)
    s_values, s_vectors = torch.linalg.eigh(s @ s.mT / s.shape[-1] + identity)
    whitened = (x_vectors * x_values.rsqrt().unsqueeze(-2)) @ x_vectors.mT @ x
    coloured = (s_vectors * s_values.sqrt().unsqueeze(-2)) @ s_vectors.mT @ whitened + s_mean
    return coloured.view_as(content)


def colour(space: str, threads: int) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    height, width = PHOTO
    coarse = torch.rand(1, 3, height // 50, width // 50)
    smooth = torch.nn.functional.interpolate(coarse, size=PHOTO, mode="bilinear")[0]
    photo = Picture((smooth + 0.02 * torch.randn(3, height, width)).clamp(0, 1))
    palette = Palette.of(Picture(torch.rand(3, 400, 600).pow(torch.tensor([0.5, 1.0, 2.0]).view(3, 1, 1))), space=space)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "photo.jpg", Path(folder) / "out.png"
        write_picture(photo, source)
        ways = {
            "in memory": lambda: transfer_colors(photo, palette),
            "file to file": lambda: write_picture(transfer_colors(read_picture(source), palette), target),
        }
        times = interleave(ways, seconds=6)
    return [row(threads, f"colour, 12 megapixels, {space}, {name}", {"ours": times[name]}) for name in ways]


def row(threads: int, what: str, times: dict[str, Timing]) -> dict[str, Any]:
    other = times.get("plain")
    return {
        "threads": threads,
        "what": what,
        "ours": times["ours"],
        "plain": other or "",
        "plain/ours": other.median / times["ours"].median if other else "",
        "products": "",
    }
