"""The problem, the remedy, and a figure: gradient error against eigenvalue gap, for every rule.

Run with ``make demo``; writes ``out/demo/gradient_error.png``.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import eigengrad as eg

OUT = Path("out/demo")
MATRICES = 64
RULES = {
    "exact": ("Exact: what torch does", "#c7c7c7", "-", 7.0),  # broad, because others lie on top of it
    "mask": ("Mask", "#9467bd", "-", 2.0),
    "truncate": ("Truncate, 99.99 % of the energy", "#5c3a2e", (0, (1, 3)), 2.0),
    "lorentzian": ("Lorentzian, 1e-12", "#2ca02c", "-", 1.5),
    "clip": ("Clip at 100", "#1f77b4", "-", 1.5),
    "power_iteration": ("Power iteration, 19 steps", "#ff7f0e", ":", 1.8),
    "taylor": ("Taylor, degree 9", "#e7a500", "-", 1.5),
    "saturate": ("Saturate: the default", "#d62728", "-", 3.2),
}


def whitened(A: torch.Tensor, eigh) -> torch.Tensor:
    """ZCA whitening as it is usually written."""
    L, V = eigh(A)
    return (V * L.rsqrt().unsqueeze(-2)) @ V.mT


def the_nan() -> None:
    """Whitening that fails in plain torch, survives with one import changed, and is right with the matrix function."""
    data = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    data = torch.cat([data, data * 0], dim=1)  # four dead channels: four eigenvalues tied at eps
    covariance, eps = data.T @ data / 100, 0.01 * torch.eye(8)
    ways = {
        "through torch.linalg.eigh": lambda A: whitened(A + eps, torch.linalg.eigh),
        "through eigengrad.eigh": lambda A: whitened(A + eps, eg.eigh),
        "eigengrad.matrix_inv_sqrt": lambda A: eg.matrix_inv_sqrt(A, eps=0.01),
    }
    G = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
    truth = gradient(lambda A: eg.matrix_inv_sqrt(A, eps=0.01), covariance.double(), G)
    for name, way in ways.items():
        g = gradient(way, covariance, G)
        print(f"  {name:<26} |gradient| = {g.norm():<6.4g} relative error {(g - truth).norm() / truth.norm():.1e}")


def matrices(gap: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Random matrices with eigenvalues (1, 1 + gap, 3), and a gradient to bring back through each, in float64."""
    generator = torch.Generator().manual_seed(0)
    Q = torch.linalg.qr(torch.randn(MATRICES, 3, 3, generator=generator, dtype=torch.float64)).Q
    G = torch.randn(MATRICES, 3, 3, generator=generator, dtype=torch.float64)
    return (Q * torch.tensor([1, 1 + gap, 3], dtype=torch.float64)) @ Q.mT, G


def gradient(function, A: torch.Tensor, G: torch.Tensor) -> torch.Tensor:
    """The gradient of ⟨function(A), G⟩, in the precision of ``A``."""
    A = A.detach().requires_grad_()
    (g,) = torch.autograd.grad(function(A), A, G.to(A.dtype))
    return g.double()


def norm(g: torch.Tensor) -> torch.Tensor:
    """Frobenius norm of each matrix."""
    return torch.linalg.matrix_norm(g)


def eigenvector_gradients(gaps: torch.Tensor) -> dict[str, list[float]]:
    """Median norm of the gradient of the eigenvectors, in float64."""
    sizes: dict[str, list[float]] = {name: [] for name in RULES}
    for A, G in map(matrices, gaps.tolist()):
        for name in RULES:
            g = gradient(lambda A, name=name: eg.eigh(A, gradient=name).eigenvectors, A, G)
            sizes[name].append(norm(g).median().item())
    return sizes


def whitening_errors(gaps: torch.Tensor) -> dict[str, list[float]]:
    """Median relative error of the gradient of A^(−½) in float32, through each rule and by divided differences."""
    errors: dict[str, list[float]] = {name: [] for name in (*RULES, "divided differences")}
    for A, G in map(matrices, gaps.tolist()):
        truth = gradient(eg.matrix_inv_sqrt, A, G)
        for name in errors:
            function = (
                eg.matrix_inv_sqrt
                if name == "divided differences"
                else lambda A, name=name: whitened(A, lambda A: eg.eigh(A, gradient=name))
            )
            error = norm(gradient(function, A.float(), G) - truth) / norm(truth)
            errors[name].append(error.median().item())
    return errors


def draw() -> Path:
    """The figure: two panels over the gap between two eigenvalues."""
    wide, narrow = torch.logspace(-16, 0, 65, dtype=torch.float64), torch.logspace(-7, 0, 43, dtype=torch.float64)
    with warnings.catch_warnings():  # that rules remove much is what the figure shows
        warnings.simplefilter("ignore", eg.GradientWarning)
        sizes, errors = eigenvector_gradients(wide), whitening_errors(narrow)
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, right) = plt.subplots(1, 2, figsize=(11.5, 5.2), layout="constrained")
    for name, (label, colour, style, width) in RULES.items():
        left.loglog(wide, sizes[name], linestyle=style, color=colour, label=label, lw=width)
        right.loglog(narrow, errors[name], linestyle=style, color=colour, lw=width)
    right.loglog(narrow, errors["divided differences"], color="black", lw=2.6, label="matrix_inv_sqrt: no rule")
    left.set(xlabel="gap between two eigenvalues", ylabel="norm of the gradient", ylim=(0.3, 1e16))
    left.set_title("Gradient through the eigenvectors (float64)", fontsize=11)
    right.set(xlabel="gap between two eigenvalues", ylabel="relative error of the gradient", ylim=(1e-7, 5))
    right.set_title("Error of the gradient through $A^{-1/2}$ (float32)", fontsize=11)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.suptitle("Eigenvalues 1, 1 + gap, 3", fontsize=10, color="#555555")
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / "gradient_error.png"
    figure.savefig(path, dpi=160)
    return path


def main() -> None:
    """All of it."""
    print("Whitening a batch with dead channels, and its gradient:")
    the_nan()
    print("\nHow close eigenvalues are, and what each rule makes of it (λ = 0.02, 0.01, 0.01, the paper's example):")
    print(eg.spectrum_report(torch.diag(torch.tensor([0.02, 0.01, 0.01])), gradient=eg.Taylor(degree=9, eps=0.01)))
    path = draw()
    print(f"\nThe figure, gradient error against eigenvalue gap for every rule: {path.resolve()}")


if __name__ == "__main__":
    main()
