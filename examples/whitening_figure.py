"""The paper's Figure 2: what PCA and ZCA whitening do to points, and what colouring does to a photograph.

Needs the extra ``lab`` (matplotlib, scikit-learn). Writes ``out/whitening/figure2.png``.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from sklearn.datasets import load_sample_images
from torch import Tensor

import eigengrad as eg
from eigengrad.nn.whiten_color import color_transfer

OUT = Path("out/whitening")
POINTS, RED, GREY, DARK = "#4c78a8", "#d62728", "#6b6b6b", "#222222"


def correlated(count: int = 1200) -> Tensor:
    """Points in the plane whose two coordinates are highly correlated: (2, count)."""
    mix = torch.tensor([[1.5, 0.0], [1.05, 0.55]])
    return mix @ torch.randn(2, count, generator=torch.Generator().manual_seed(3))


def whitened(X: Tensor) -> tuple[Tensor, Tensor]:
    """X after PCA whitening, Λ^(−½) Vᵀ X, and after ZCA whitening, V Λ^(−½) Vᵀ X."""
    covariance = X.cov(correction=0)
    L, V = eg.eigh(covariance)
    # Largest first, and a rotation rather than a reflection: signs and order of eigenvectors are free.
    L, V = L.flip(-1), V.flip(-1)
    V = V * torch.sign(torch.stack([V[0, 0], V[0, 0] * torch.linalg.det(V)]))
    centred = X - X.mean(1, keepdim=True)
    return L.rsqrt()[:, None] * (V.mT @ centred), eg.matrix_inv_sqrt(covariance) @ centred


def marked(X: Tensor) -> list[int]:
    """Points along the upper end of the cloud, to be followed through both transformations."""
    zca = whitened(X)[1]
    wanted = torch.tensor([[2.0, 0.0], [1.4, 1.4], [0.0, 2.0]])
    return [int((zca.mT - point).norm(dim=1).argmin()) for point in wanted]


def scatter(axes: Axes, X: Tensor, followed: list[int], title: str, formula: str, limit: float) -> None:
    """One cloud; the followed points in red with their numbers, joined to the origin."""
    axes.axhline(0, color="#dddddd", lw=0.8, zorder=0)
    axes.axvline(0, color="#dddddd", lw=0.8, zorder=0)
    axes.scatter(*X, s=7, color=POINTS, alpha=0.35, linewidths=0)
    for number, index in enumerate(followed, 1):
        x, y = X[:, index].tolist()
        axes.plot([0, x], [0, y], color=RED, lw=1.1, alpha=0.8)
        axes.scatter(x, y, s=42, color=RED, edgecolors="white", linewidths=0.9, zorder=3)
        reach = 1 + 0.12 * limit / (x * x + y * y) ** 0.5
        axes.text(x * reach, y * reach, str(number), color=RED, fontsize=11, weight="bold", ha="center", va="center")
    axes.set(xlim=(-limit, limit), ylim=(-limit, limit), aspect="equal", xticks=[], yticks=[])
    axes.set_title(title, fontsize=12, color=DARK, pad=8)
    axes.set_xlabel(formula, fontsize=10.5, color=GREY, labelpad=7)
    for spine in axes.spines.values():
        spine.set_color("#bbbbbb")


def show(axes: Axes, image: Tensor, title: str, note: str) -> None:
    """One photograph."""
    axes.imshow(image.movedim(0, -1).numpy(), interpolation="antialiased")
    axes.set(xticks=[], yticks=[])
    axes.set_title(title, fontsize=12, color=DARK, pad=6)
    axes.set_xlabel(note, fontsize=10.5, color=GREY, labelpad=6)
    for spine in axes.spines.values():
        spine.set_visible(False)


def photographs() -> tuple[Tensor, Tensor]:
    """The two that ship with scikit-learn, as (3, H, W) from 0 to 1."""
    china, flower = (torch.tensor(image).movedim(-1, 0) / 255 for image in load_sample_images().images)
    return china, flower


def draw() -> Path:
    """Clouds above, photographs below."""
    X = correlated()
    pca, zca = whitened(X)
    followed = marked(X)
    china, flower = photographs()
    plt.rcParams.update({"font.size": 10, "mathtext.fontset": "cm"})
    figure = plt.figure(figsize=(13.2, 7.7))
    above = figure.add_gridspec(1, 3, left=0.045, right=0.955, top=0.95, bottom=0.435, wspace=0.08)
    below = figure.add_gridspec(1, 4, left=0.015, right=0.985, top=0.345, bottom=0.06, wspace=0.04)

    clouds = [figure.add_subplot(cell) for cell in above]
    scatter(clouds[0], X, followed, "(a) Correlated points", r"$X$", 5.0)
    scatter(clouds[1], pca, followed, "(b) PCA whitening rotates", r"$\Lambda^{-1/2} V^{\top} X$", 3.9)
    scatter(clouds[2], zca, followed, "(c) ZCA whitening does not", r"$V \Lambda^{-1/2} V^{\top} X$", 3.9)

    images = [figure.add_subplot(cell) for cell in below]
    show(images[0], china, "(d) Image A", r"$X_A$")
    show(images[1], flower, "Image B", r"$X_B$")
    map_a = r"$\Sigma_B^{1/2}\, \Sigma_A^{-1/2} (X_A - \mu_A) + \mu_B$"
    map_b = r"$\Sigma_A^{1/2}\, \Sigma_B^{-1/2} (X_B - \mu_B) + \mu_A$"
    show(images[2], color_transfer(china, flower), "A in the colours of B", map_a)
    show(images[3], color_transfer(flower, china), "B in the colours of A", map_b)
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / "figure2.png"
    figure.savefig(path, dpi=160, facecolor="white")
    return path


if __name__ == "__main__":
    print(f"Figure: {draw()}")
