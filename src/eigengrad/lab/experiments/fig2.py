"""Figure 2: what PCA and ZCA whitening do to points, and what whitening and colouring does to a photograph."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import eigengrad

from ...nn.functional import color_transfer
from ..files import make_folder, write_atomically
from ..report import Finding, Outcome, Table, figures
from ..report.outcome import Figure
from ..report.tables import Cell
from ..style.color import Palette, transfer_colors
from ..style.images import Picture
from ..style.stylize import Style, stylize
from ..style.weights import load_codec
from .experiment import Context, Experiment, Plan, check_scale

__all__ = ["Fig2"]

POINTS = 1200
MIX = ((1.5, 0.0), (1.05, 0.55))  # of independent coordinates, into highly correlated ones
FOLLOWED = ((2.0, 0.0), (1.4, 1.4), (0.0, 2.0))  # after ZCA: the points nearest to these are marked
WIDTH = 300  # pixels of a photograph in the figure


class Fig2(Experiment):
    """The paper's illustration, with photographs that come with scikit-learn instead of its own."""

    name = "fig2"
    title = "Figure 2: PCA and ZCA whitening, colour transfer and style transfer"
    paper = "An illustration: points in the plane, and two pairs of photographs. It states no numbers."

    def plan(self, scale: str, context: Context) -> Plan:
        """Two covariances of a plane, and two of colours."""
        check_scale(scale)
        steps = [
            f"whiten {POINTS} points in two ways",
            "two photographs in the colours, and in the style, of each other",
        ]
        return Plan(steps, 20.0, "features of several levels take longest")

    def run(self, scale: str, context: Context) -> Outcome:
        """Compute the figure, which does not depend on the scale."""
        start = time.perf_counter()
        check_scale(scale)
        folder = context.directory(self.name, scale)
        X = _correlated()
        matrices = _whitening_matrices(X)
        pca, zca = (W @ (X - X.mean(1, keepdim=True)) for W in matrices.values())
        turns = {name: _rotation(W) for name, W in matrices.items()}
        rows: list[tuple[Cell, ...]] = [("X", *_covariance(X), None)]
        rows += [(name, *_covariance(Y), turns[name]) for name, Y in (("PCA", pca), ("ZCA", zca))]
        points = Table(
            "fig2_whitening",
            "Covariance before and after whitening, and the rotation in the whitening matrix",
            ("points", "variance 1", "variance 2", "covariance", "rotation °"),
            tuple(rows),
            {"points": str(POINTS), "arithmetic": "float64"},
        )
        china, flower = _photographs()
        exchanged = {
            "A in the colours of B": (color_transfer(china, flower, clamp=False), flower),
            "B in the colours of A": (color_transfer(flower, china, clamp=False), china),
        }
        errors = {name: _difference(made, wanted) for name, (made, wanted) in exchanged.items()}
        colours = Table(
            "fig2_colours",
            "Mean and covariance of the colours against those wanted, before values are clamped to what a screen shows",
            ("picture", "mean: largest difference", "covariance: relative difference"),
            tuple((name, *error) for name, error in errors.items()),
            {"eps": "1e-6", "arithmetic": "float32"},
        )
        styled = _in_style(china, flower)
        drawings = (
            Figure(
                _draw_points(folder, X, pca, zca),
                "Correlated points X; after PCA whitening, Λ^(−½)VᵀX; after ZCA whitening, VΛ^(−½)VᵀX. The same three "
                "points are marked in each.",
            ),
            Figure(
                _draw_photographs(folder, china, flower),
                "Images A and B, A in the colours of B, and B in the colours of A; colours that no screen has are "
                "brought back as `eigengrad color` does it. (Photographs by danielbuechele and vultilion, CC BY 2.0, "
                "from scikit-learn.)",
            ),
            Figure(
                _draw_styles(folder, china, flower, styled),
                "The same operations on deep features instead of pixels: images A and B, A in the style of B, and B in "
                "the style of A, by the encoders and decoders that come with eigengrad.",
            ),
        )
        white = max(abs(entry - one) for Y in (pca, zca) for entry, one in zip(_covariance(Y), (1, 1, 0), strict=True))
        findings = (
            Finding(
                "Both whitenings decorrelate; ZCA retains the orientation of the points, PCA does not",
                "confirmed" if white < 1e-6 and turns["ZCA"] < 1e-6 < 1 < turns["PCA"] else "refuted",
                f"Covariances are I to {white:.0e}. The rotation in the polar decomposition of the whitening matrix is "
                f"{turns['ZCA']:.0f}° for ZCA and {turns['PCA']:.0f}° for PCA.",
            ),
            Finding(
                "Whitening and colouring of raw pixels transfers the colours",
                "confirmed" if max(error for _, error in errors.values()) < 1e-3 else "refuted",
                f"Covariances are those of the other picture to {max(error for _, error in errors.values()):.0e}.",
            ),
        )
        conditions = {"photographs": "china.jpg and flower.jpg of scikit-learn"}
        notes = ("Without a rotation, ZCA still scales: of all whitenings it moves points least (Kessy et al., 2018).",)
        took = time.perf_counter() - start
        return Outcome(
            self.name, self.title, scale, conditions, self.paper, (points, colours), drawings, findings, notes, took
        )


def _in_style(china: Tensor, flower: Tensor) -> tuple[Tensor, Tensor]:
    """Each photograph in the style of the other, (3, H, W), at the size of the figure."""
    codec = load_codec()
    levels = sorted(codec.levels, reverse=True)
    a, b = (Picture(torch.from_numpy(_reduced(image)).movedim(-1, 0).contiguous()) for image in (china, flower))
    style_a, style_b = (Style.of(picture, codec, levels) for picture in (a, b))
    return stylize(a, [style_b], codec, levels).pixels, stylize(b, [style_a], codec, levels).pixels


def _correlated() -> Tensor:
    """Points in the plane whose two coordinates are highly correlated: (2, POINTS)."""
    noise = torch.randn(2, POINTS, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return torch.tensor(MIX, dtype=torch.float64) @ noise


def _whitening_matrices(X: Tensor) -> dict[str, Tensor]:
    """The matrices of PCA whitening, Λ^(−½) Vᵀ, and of ZCA whitening, V Λ^(−½) Vᵀ."""
    covariance = X.cov(correction=0)
    L, V = eigengrad.eigh(covariance)
    # Largest first, and a rotation rather than a reflection: signs and order of eigenvectors are free.
    L, V = L.flip(-1), V.flip(-1)
    V = V * torch.sign(torch.stack([V[0, 0], V[0, 0] * torch.linalg.det(V)]))
    return {"PCA": L.rsqrt()[:, None] * V.mT, "ZCA": eigengrad.matrix_inv_sqrt(covariance)}


def _covariance(X: Tensor) -> tuple[float, float, float]:
    """The two variances and the covariance of points (2, M): (first, second, both)."""
    (first, both), (_, second) = X.cov(correction=0).tolist()
    return first, second, both


def _rotation(W: Tensor) -> float:
    """The angle of U in W = U P, in degrees."""
    U = eigengrad.polar(W).U
    return abs(float(torch.rad2deg(torch.atan2(U[1, 0], U[0, 0]))))


def _photographs() -> tuple[Tensor, Tensor]:
    """The two photographs that come with scikit-learn, (3, H, W) from 0 to 1."""
    from sklearn.datasets import load_sample_images  # type: ignore[import-untyped]

    china, flower = (torch.tensor(image).movedim(-1, 0) / 255 for image in load_sample_images().images)
    return china, flower


def _difference(made: Tensor, wanted: Tensor) -> tuple[float, float]:
    """The largest difference of two means, and the relative difference of two covariances."""
    a, b = (image.flatten(1).double() for image in (made, wanted))
    mean = float((a.mean(1) - b.mean(1)).abs().max())
    return mean, float((a.cov(correction=0) - b.cov(correction=0)).norm() / b.cov(correction=0).norm())


def _draw_points(folder: Path, X: Tensor, pca: Tensor, zca: Tensor) -> str:
    marked = [int((zca.mT - torch.tensor(place, dtype=zca.dtype)).norm(dim=1).argmin()) for place in FOLLOWED]
    clouds = (
        (X, "(a) Correlated points", "$X$", 5.0),
        (pca, "(b) PCA whitening rotates", r"$\Lambda^{-1/2} V^{\top} X$", 3.9),
        (zca, "(c) ZCA whitening does not", r"$V \Lambda^{-1/2} V^{\top} X$", 3.9),
    )
    with figures.style() as plt:
        figure, axes = plt.subplots(1, 3, figsize=(11.4, 4.2))
        for axis, (Y, title, formula, limit) in zip(axes, clouds, strict=True):
            axis.scatter(*Y, s=7, color=figures.BLUE, alpha=0.35, linewidths=0, rasterized=True)
            for number, index in enumerate(marked, 1):
                x, y = Y[:, index].tolist()
                reach = 1 + 0.12 * limit / (x * x + y * y) ** 0.5
                axis.plot([0, x], [0, y], color=figures.RED, lw=1.1, alpha=0.8)
                axis.scatter(x, y, s=42, color=figures.RED, edgecolors="white", linewidths=0.9, zorder=3)
                axis.text(x * reach, y * reach, str(number), color=figures.RED, weight="bold", ha="center", va="center")
            axis.set(xlim=(-limit, limit), ylim=(-limit, limit), aspect="equal", xticks=[], yticks=[])
            axis.set(title=title, xlabel=formula)
            axis.axhline(0, color=figures.GREY, lw=0.6, zorder=0)
            axis.axvline(0, color=figures.GREY, lw=0.6, zorder=0)
        return figures.save(figure, folder, "fig2_whitening")


def _draw_photographs(folder: Path, china: Tensor, flower: Tensor) -> str:
    """Draw the photographs and their colours exchanged."""
    a, b = Picture(china), Picture(flower)
    made = (transfer_colors(a, Palette.of(b)).pixels, transfer_colors(b, Palette.of(a)).pixels)
    titles = ("(d) Image A", "Image B", "A in the colours of B", "B in the colours of A")
    formulas = ("$X_A$", "$X_B$", *(_map_formula(*pair) for pair in ("AB", "BA")))
    return _draw_row(folder, "fig2_colours", (china, flower, *made), titles, formulas)


def _draw_styles(folder: Path, china: Tensor, flower: Tensor, styled: tuple[Tensor, Tensor]) -> str:
    """Draw the photographs and their styles exchanged."""
    titles = ("(e) Image A", "Image B", "A in the style of B", "B in the style of A")
    formulas = ("", "", "features: A's whitened, B's colours", "features: B's whitened, A's colours")
    return _draw_row(folder, "fig2_style", (china, flower, *styled), titles, formulas)


def _draw_row(
    folder: Path, name: str, images: tuple[Tensor, ...], titles: tuple[str, ...], formulas: tuple[str, ...]
) -> str:
    """Draw pictures beside each other, as a PNG only: an SVG of pixels has no use."""
    with figures.style() as plt:
        figure, axes = plt.subplots(1, 4, figsize=(12.4, 2.75))
        for axis, image, title, formula in zip(axes, images, titles, formulas, strict=True):
            axis.imshow(_reduced(image), interpolation="antialiased")
            axis.set(xticks=[], yticks=[], title=title, xlabel=formula)
            for spine in axis.spines.values():
                spine.set_visible(False)
        pixels = io.BytesIO()
        figure.savefig(pixels, format="png", dpi=100, facecolor="white")
        plt.close(figure)
    make_folder(folder)
    write_atomically(folder / f"{name}.png", pixels.getbuffer())
    return name


def _map_formula(a: str, b: str) -> str:
    return rf"$\Sigma_{b}^{{1/2}}\, \Sigma_{a}^{{-1/2}} (X_{a} - \mu_{a}) + \mu_{b}$"


def _reduced(image: Tensor) -> Any:
    """A photograph scaled to the size that it is shown at, (H, W, 3)."""
    height = round(image.shape[1] * WIDTH / image.shape[2])
    small = torch.nn.functional.interpolate(image.unsqueeze(0), (height, WIDTH), mode="bicubic", antialias=True)[0]
    return small.clamp(0, 1).movedim(0, -1).numpy()
