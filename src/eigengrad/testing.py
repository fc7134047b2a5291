"""What tests of a decomposition or its gradient need: spectra and matrices that break things, and one identity.

>>> import torch, eigengrad as eg
>>> from eigengrad.testing import SPECTRA, adjoint_defect, random_hermitian
>>> generator = torch.Generator().manual_seed(0)
>>> A = random_hermitian(SPECTRA["ties"]((5,), generator), generator)
>>> adjoint_defect(lambda A: eg.eigh(A, gradient="taylor"), A, generator) < 1e-10
True
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = [
    "MATRICES",
    "SPECTRA",
    "Spectrum",
    "adjoint_defect",
    "decomposition_errors",
    "hard_matrices",
    "random_cotangents",
    "random_hermitian",
    "random_matrix",
    "random_unitary",
]

#: From a shape (..., n) and a source of randomness to ascending float64 eigenvalues of that shape.
Spectrum = Callable[[Sequence[int], torch.Generator], Tensor]


def random_unitary(
    shape: Sequence[int], generator: torch.Generator, dtype: torch.dtype = torch.float64, columns: int | None = None
) -> Tensor:
    """Orthonormal columns from the uniform (Haar) distribution.

    Args:
        shape: (..., n).
        generator: source of randomness.
        dtype: float64 for orthogonal matrices, complex128 for unitary ones.
        columns: how many, n if ``None``.

    Returns:
        (..., n, columns).

    >>> from eigengrad.testing import random_unitary
    >>> Q = random_unitary((3,), torch.Generator().manual_seed(0))
    >>> torch.allclose(Q.mH @ Q, torch.eye(3, dtype=Q.dtype))
    True
    """
    Q, R = torch.linalg.qr(torch.randn(*shape, columns or shape[-1], generator=generator, dtype=dtype))
    diagonal = torch.diagonal(R, dim1=-2, dim2=-1)
    phases: Tensor = diagonal / diagonal.abs()
    unitary: Tensor = Q * phases.unsqueeze(-2)
    return unitary


def random_hermitian(
    eigenvalues: Tensor, generator: torch.Generator, dtype: torch.dtype = torch.float64, *, rotate: bool = True
) -> Tensor:
    """A Hermitian matrix with the given eigenvalues.

    Args:
        eigenvalues: (..., n).
        generator: source of randomness.
        dtype: of the result; everything before the last rounding is done in double precision.
        rotate: in a random basis, where ties hold up to round-off; without it diagonal, where they hold exactly.

    Returns:
        (..., n, n), equal to its adjoint to the last bit.

    >>> from eigengrad.testing import random_hermitian
    >>> A = random_hermitian(torch.tensor([1.0, 1.0, 2.0]), torch.Generator().manual_seed(0))
    >>> torch.linalg.eigvalsh(A).round(decimals=6)
    tensor([1., 1., 2.], dtype=torch.float64)
    """
    double = torch.complex128 if dtype.is_complex else torch.float64
    values = eigenvalues.to(double)
    if not rotate:
        return torch.diag_embed(values).to(dtype)
    V = random_unitary(values.shape, generator, double)
    A = (V * values.unsqueeze(-2)) @ V.mH
    return ((A + A.mH) * 0.5).to(dtype)


def random_matrix(
    singular_values: Tensor, m: int, n: int, generator: torch.Generator, dtype: torch.dtype = torch.float64
) -> Tensor:
    """A rectangular matrix with the given singular values: (..., min(m, n)) to (..., m, n).

    >>> from eigengrad.testing import random_matrix
    >>> A = random_matrix(torch.tensor([3.0, 3.0]), 4, 2, torch.Generator().manual_seed(0))
    >>> A.shape, torch.linalg.svdvals(A).round(decimals=6)
    (torch.Size([4, 2]), tensor([3., 3.], dtype=torch.float64))
    """
    double = torch.complex128 if dtype.is_complex else torch.float64
    batch, k = singular_values.shape[:-1], min(m, n)
    U, V = (random_unitary((*batch, size), generator, double, k) for size in (m, n))
    return ((U * singular_values.to(double).unsqueeze(-2)) @ V.mH).to(dtype)


def _uniform(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    return torch.rand(*shape, generator=generator, dtype=torch.float64).sort(-1).values


def _indefinite(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Eigenvalues of both signs, with one negative at least."""
    eigenvalues = _uniform(shape, generator) - 0.5
    return torch.cat([-eigenvalues[..., :1].abs(), eigenvalues[..., 1:]], -1)


def _separated(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """1/n, 2/n, … 1, moved by at most a quarter of their distance."""
    n = shape[-1]
    steps = torch.arange(1, n + 1, dtype=torch.float64)
    return (steps + 0.5 * torch.rand(*shape, generator=generator, dtype=torch.float64) - 0.25) / n


def _ties(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Small integers over 8, about two eigenvalues to each."""
    values = torch.randint(1, max(2, shape[-1] // 2 + 1), tuple(shape), generator=generator)
    return (values.double() / 8).sort(-1).values


def _cluster(gap: float) -> Spectrum:
    """Ties pulled apart by random distances of at most ``gap``."""

    def spectrum(shape: Sequence[int], generator: torch.Generator) -> Tensor:
        return (_ties(shape, generator) + gap * _uniform(shape, generator)).sort(-1).values

    return spectrum


def _rank(share: float) -> Spectrum:
    """Zeros, but for the ``share`` of the eigenvalues (at least one) that is separated."""

    def spectrum(shape: Sequence[int], generator: torch.Generator) -> Tensor:
        values = _separated(shape, generator)
        zeros = shape[-1] - max(1, int(share * shape[-1]))
        return torch.where(torch.arange(shape[-1]) < zeros, torch.zeros_like(values), values)

    return spectrum


def _graded(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """1, and the others anywhere between 1e-14 and 1 on a logarithmic scale."""
    exponents = -14 * _uniform(shape, generator)
    return (10.0 ** (exponents - exponents.amax(-1, keepdim=True))).sort(-1).values


def _constant(value: float) -> Spectrum:
    return lambda shape, generator: torch.full(tuple(shape), value, dtype=torch.float64)


def _scaled(factor: float, spectrum: Spectrum) -> Spectrum:
    return lambda shape, generator: (factor * spectrum(shape, generator)).sort(-1).values


#: Spectra by name, of unit scale unless they say otherwise. All but the first are adversarial.
SPECTRA: dict[str, Spectrum] = {
    "separated": _separated,
    "ties": _ties,
    **{f"cluster {gap:g}": _cluster(gap) for gap in (1e-16, 1e-14, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-3)},
    "rank one": _rank(0.0),
    "half rank": _rank(0.5),
    "zeros": _constant(0.0),
    "identity": _constant(1.0),
    "clamped": lambda shape, generator: _uniform(shape, generator).pow(4).clamp(min=1e-2),
    "negative": _scaled(-1.0, _cluster(1e-8)),
    "indefinite": _indefinite,
    "mirrored": lambda shape, generator: torch.linspace(-1, 1, shape[-1], dtype=torch.float64).expand(*shape).clone(),
    "graded": _graded,
    **{f"{s:g} cluster": _scaled(s, _cluster(1e-6)) for s in (1e-30, 1e30)},
    **{f"{s:g} half rank": _scaled(s, _rank(0.5)) for s in (1e-30, 1e30)},
    **{f"{s:g} indefinite": _scaled(s, _indefinite) for s in (1e-30, 1e30)},
}


def _identity(n: int) -> Tensor:
    return torch.eye(n, dtype=torch.float64)


def _neighbours(n: int) -> Tensor:
    """Ones beside the diagonal."""
    ones = torch.ones(max(0, n - 1), dtype=torch.float64)
    return (torch.diag(ones, 1) + torch.diag(ones, -1))[:n, :n]


def _wilkinson(n: int) -> Tensor:
    """Tridiagonal; its large eigenvalues come in pairs that agree to ever more digits."""
    return torch.diag((torch.arange(n, dtype=torch.float64) - n // 2).abs()) + _neighbours(n)


def _glued(n: int) -> Tensor:
    """Wilkinson's matrices of 8 rows in a row, held together by 1e-8: clusters in which nothing deflates."""
    A: Tensor = torch.block_diag(*[_wilkinson(8)] * (n // 8 + 1))[:n, :n]
    for i in range(8, n, 8):
        A[i, i - 1] = A[i - 1, i] = 1e-8
    return A


def _gaussian(n: int, generator: torch.Generator) -> Tensor:
    A = torch.randn(n, n, generator=generator, dtype=torch.float64)
    return (A + A.mT) * 0.5


def _by_rows(n: int, generator: torch.Generator, ends: tuple[float, float]) -> Tensor:
    """Random entries, multiplied from 10^ends[0] in the first row and column to 10^ends[1] in the last."""
    scale = torch.logspace(*ends, n, dtype=torch.float64)
    factors: Tensor = scale * scale.unsqueeze(-1)
    return _gaussian(n, generator) * factors


def _arrow(n: int) -> Tensor:
    A = torch.diag(torch.linspace(1, 2, n, dtype=torch.float64))
    A[0, 1:] = A[1:, 0] = 1e-3
    return A


def _bipartite(n: int, generator: torch.Generator) -> Tensor:
    """[[0, B], [Bᵀ, 0]]: a zero diagonal, and eigenvalues in pairs ±σ."""
    A = _gaussian(n, generator)
    A[: n // 2, : n // 2] = 0
    A[n // 2 :, n // 2 :] = 0
    return A


def _twin_blocks(n: int, generator: torch.Generator) -> Tensor:
    """One block twice: every eigenvalue is double, with nothing between the blocks."""
    A: Tensor = torch.block_diag(*[_gaussian((n + 1) // 2, generator)] * 2)[:n, :n]
    return A


def _corner(n: int) -> Tensor:
    """Zero, but for the entries at (n, 1) and (1, n)."""
    A = torch.zeros(n, n, dtype=torch.float64)
    A[0, -1] = A[-1, 0] = 1
    return A


def _distances(n: int) -> Tensor:
    i = torch.arange(n, dtype=torch.float64)
    return torch.abs(i.unsqueeze(-1) - i)


#: Symmetric float64 matrices of any size by name, whose trouble is not the spectrum but where the entries are.
MATRICES: dict[str, Callable[[int, torch.Generator], Tensor]] = {
    "gaussian": _gaussian,
    "ones": lambda n, generator: torch.ones(n, n, dtype=torch.float64),
    "descending diagonal with ties": lambda n, generator: torch.diag(torch.arange(n, 0, -1).div(3).floor().double()),
    "almost diagonal": lambda n, generator: (
        torch.diag(torch.arange(n, dtype=torch.float64)) + 1e-9 * _gaussian(n, generator)
    ),
    "almost the identity": lambda n, generator: _identity(n) + 1e-7 * torch.ones(n, n).double(),
    "identity and a rank one": lambda n, generator: (
        1e-2 * _identity(n) + random_hermitian(_rank(0.0)((n,), generator), generator)
    ),
    "reversal": lambda n, generator: _identity(n).flip(0),
    "Wilkinson": lambda n, generator: _wilkinson(n),
    "glued Wilkinson": lambda n, generator: _glued(n),
    "second difference": lambda n, generator: 2 * _identity(n) - _neighbours(n),
    "Toeplitz": lambda n, generator: 0.5 ** _distances(n),
    "Hilbert": lambda n, generator: 1 / (torch.arange(n).unsqueeze(-1) + torch.arange(n) + 1).double(),
    "arrow": lambda n, generator: _arrow(n),
    "bipartite": _bipartite,
    "twin blocks": _twin_blocks,
    "rows from 1 to 1e-6": lambda n, generator: _by_rows(n, generator, (0, -6)),
    "rows from 1e-6 to 1": lambda n, generator: _by_rows(n, generator, (-6, 0)),
    "corner": lambda n, generator: _corner(n),
}


def hard_matrices(n: int, dtype: torch.dtype, generator: torch.Generator) -> dict[str, Tensor]:
    """Symmetric matrices on which eigensolvers fail, by name: (n, n) each, real.

    :data:`SPECTRA` in a random basis and as diagonal matrices, :data:`MATRICES`, and random ones at the ends of the
    range of ``dtype``.

    >>> from eigengrad.testing import hard_matrices
    >>> matrices = hard_matrices(4, torch.float32, torch.Generator().manual_seed(0))
    >>> matrices["Hilbert"].shape, len(matrices) > 40
    (torch.Size([4, 4]), True)
    """
    double = {name: random_hermitian(spectrum((n,), generator), generator) for name, spectrum in SPECTRA.items()}
    for name, spectrum in SPECTRA.items():
        double[f"{name}, diagonal"] = torch.diag(spectrum((n,), generator))
    double |= {name: matrix(n, generator) for name, matrix in MATRICES.items()}
    limits = torch.finfo(dtype)
    for name, scale in (("smallest", 4 * limits.tiny), ("largest", limits.max / 4)):
        double[f"{name} numbers"] = random_hermitian(scale * _indefinite((n,), generator), generator)
    return {name: A.to(dtype) for name, A in double.items()}


_BITS = 22  # of a slice: products of two and sums of 512 such are integers that float64 holds


def _sliced_product(X: Tensor, Y: Tensor) -> list[Tensor]:
    """X Y for |X|, |Y| ≤ 1 as a sum of parts, largest first, each without round-off (but for terms below 2⁻⁸⁸)."""
    slices = []
    for rest in (X, Y):
        parts = []
        for _ in range(3):
            rest = rest * 2.0**_BITS
            parts.append(rest.round())
            rest = rest - parts[-1]
        slices.append(parts)
    left, right = slices
    pairs = [[(i, k - i) for i in range(3) if 0 <= k - i < 3] for k in range(4)]
    return [torch.stack([left[i] @ right[j] for i, j in pairs[k]]).sum(0) * 2.0 ** (-_BITS * (k + 2)) for k in range(4)]


def decomposition_errors(A: Tensor, L: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """‖AV − VΛ‖/‖A‖ and ‖VᵀV − I‖ in the Frobenius norm, of each matrix: (..., n, n), real, to (...), n ≤ 512.

    What float64 rounds when it measures would be as large as what is measured, so the products are exact.

    >>> from eigengrad.testing import decomposition_errors
    >>> A = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    >>> residual, defect = decomposition_errors(A, *torch.linalg.eigh(A))
    >>> bool(residual < 1e-6), bool(defect < 1e-6)
    (True, True)
    """
    A, L, V = A.double(), L.double(), V.double() * 0.5  # entries of unit vectors may exceed 1 by a rounding
    identity = torch.eye(A.shape[-1], dtype=torch.float64)
    largest = A.abs().amax((-2, -1), keepdim=True)
    # By powers of two to size 1, in two steps because one could overflow.
    down = -torch.frexp(largest).exponent
    A, L = (torch.ldexp(torch.ldexp(x, down // 2), down - down // 2) for x in (A, L.unsqueeze(-2)))
    above = torch.frexp(L.abs().amax((-2, -1), keepdim=True)).exponent
    applied = _sliced_product(A, V)
    scaled = _sliced_product(V, torch.ldexp(L, -above) * identity)
    residual = sum(2 * (x - torch.ldexp(y, above)) for x, y in zip(applied, scaled, strict=True))
    gram = _sliced_product(V.mT, V)
    defect = sum((4 * x for x in gram[1:]), 4 * gram[0] - identity)
    size = torch.linalg.matrix_norm(A)
    norm = torch.linalg.matrix_norm
    return norm(residual) / torch.where(size > 0, size, torch.ones_like(size)), norm(defect)


def random_cotangents(outputs: Sequence[Tensor], scale: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Random gradients for the outputs of ``eigh`` (λ, V) or ``svd`` (U, σ, Vᴴ).

    Those of the values are divided by ``scale`` (broadcast against them), so that values and vectors weigh the same
    whatever the scale of the matrix. For complex vectors the part that only the arbitrary phase could feel is left out.

    >>> from eigengrad.testing import random_cotangents
    >>> outputs = torch.linalg.eigh(torch.eye(3))
    >>> [g.shape for g in random_cotangents(outputs, torch.ones(1), torch.Generator().manual_seed(0))]
    [torch.Size([3]), torch.Size([3, 3])]
    """
    cotangents = [torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in outputs]
    values = 0 if len(outputs) == 2 else 1
    cotangents[values] = cotangents[values] / scale
    V, gV = (outputs[1], cotangents[1]) if len(outputs) == 2 else (outputs[0], cotangents[0])
    if V.dtype.is_complex:
        k = outputs[values].shape[-1]
        felt = torch.diagonal(V.mH @ gV, dim1=-2, dim2=-1).imag[..., :k]
        if len(outputs) == 3:
            felt = felt + torch.diagonal(outputs[2] @ cotangents[2].mH, dim1=-2, dim2=-1).imag[..., :k]
        gV[..., :k] -= 1j * V[..., :k] * felt.unsqueeze(-2)
    return tuple(cotangents)


def adjoint_defect(
    function: Callable[[Tensor], tuple[Tensor, ...]], A: Tensor, generator: torch.Generator, *, hermitian: bool = True
) -> float:
    """How far reverse mode is from the adjoint of forward mode: |⟨gA, dA⟩ − ⟨(gλ, gV), (dλ, dV)⟩| / (‖gA‖ ‖dA‖).

    Args:
        function: ``eigh`` or ``svd`` with its rule, from one matrix or a batch to its outputs.
        A: (..., m, n).
        generator: source of the random gA's and dA's.
        hermitian: whether dA is to be Hermitian.

    Returns:
        The largest over the batch; 0 where the gradient vanishes and the identity holds.

    >>> import eigengrad as eg
    >>> from eigengrad.testing import adjoint_defect
    >>> A = torch.diag(torch.tensor([1.0, 1.0, 2.0], dtype=torch.float64))     # a tie
    >>> adjoint_defect(eg.eigh, A, torch.Generator().manual_seed(0)) < 1e-12
    True
    """
    scale = A.abs().amax((-2, -1), keepdim=True)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    dA = torch.randn(A.shape, generator=generator, dtype=A.dtype) * scale
    dA = (dA + dA.mH) * 0.5 if hermitian else dA
    outputs, tangents, *_ = torch.func.jvp(lambda A: tuple(function(A)), (A,), (dA,))
    cotangents = random_cotangents(outputs, scale[..., 0], generator)
    B = A.detach().clone().requires_grad_()
    (gA,) = torch.autograd.grad(tuple(function(B)), B, cotangents)

    def inner(x: Tensor, y: Tensor) -> Tensor:
        dimensions = tuple(range(A.ndim - 2, x.ndim))
        return (x.conj() * y).real.sum(dimensions)

    forward = torch.stack([inner(g, d) for g, d in zip(cotangents, tangents, strict=True)]).sum(0)
    size = torch.sqrt(inner(gA, gA)) * torch.sqrt(inner(dA, dA))
    defect = (inner(gA, dA) - forward).abs() / torch.where(size > 0, size, torch.ones_like(size))
    return float(defect.max())
