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


def colours(axes: Axes, images: dict[str, tuple[Tensor, str]]) -> None:
    """Pixels of each image in the red–blue plane with the ellipse of two standard deviations."""
    angle = torch.linspace(0, 2 * torch.pi, 200)
    circle = 2 * torch.stack([angle.cos(), angle.sin()])
    for label, (image, colour) in images.items():
        pixels = image.flatten(1)[[0, 2]]
        sample = torch.randperm(pixels.shape[1], generator=torch.Generator().manual_seed(0))[:1500]
        axes.scatter(*pixels[:, sample], s=3, color=colour, alpha=0.18, linewidths=0)
        ellipse = pixels.mean(1, keepdim=True) + eg.matrix_sqrt(pixels.cov()) @ circle
        axes.plot(*ellipse, color=colour, lw=2, ls="--" if "A in" in label else "-", label=label)
    axes.legend(frameon=False, fontsize=9.5, loc="upper left", handlelength=1.6)
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.42), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    axes.set_xlabel("red", fontsize=10.5, color=GREY)
    axes.set_ylabel("blue", fontsize=10.5, color=GREY)
    axes.spines[["top", "right"]].set_visible(False)


def draw() -> Path:
    """Both rows."""
    X = correlated()
    pca, zca = whitened(X)
    followed = marked(X)
    china, flower = photographs()
    plt.rcParams.update({"font.size": 10, "mathtext.fontset": "cm"})
    figure = plt.figure(figsize=(12.6, 10.4), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=[1, 1.3], hspace=0.03)

    clouds = top.subplots(1, 3)
    scatter(clouds[0], X, followed, "(a) Correlated points", r"$X$", 4.6)
    scatter(clouds[1], pca, followed, "(b) PCA whitening: rotated", r"$\Lambda^{-1/2} V^{\top} X$", 3.6)
    scatter(clouds[2], zca, followed, "(c) ZCA whitening: orientation kept", r"$V \Lambda^{-1/2} V^{\top} X$", 3.6)

    images = bottom.subplots(2, 2)
    show(images[0, 0], china, "(d) Image A", "")
    show(images[0, 1], flower, "Image B", "")
    coloured = r"$V_B \Lambda_B^{1/2} V_B^{\top} \; V_A \Lambda_A^{-1/2} V_A^{\top} (X_A - \mu_A) + \mu_B$"
    back = r"$V_A \Lambda_A^{1/2} V_A^{\top} \; V_B \Lambda_B^{-1/2} V_B^{\top} (X_B - \mu_B) + \mu_A$"
    show(images[1, 0], color_transfer(china, flower), "A in the colours of B", coloured)
    show(images[1, 1], color_transfer(flower, china), "B in the colours of A", back)
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / "figure2.png"
    figure.savefig(path, dpi=150, facecolor="white")
    return path


if __name__ == "__main__":
    print(f"Figure: {draw()}")
