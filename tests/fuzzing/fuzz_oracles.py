"""What gradients must be, in float64 and by formulas of their own: the oracles of ``fuzz.py``.

An oracle takes matrices A (s, m, n) of some type, the outputs and incoming gradients of a function of them, and the
gradient gA that the library found. It returns for each matrix how far gA is from the truth, in the Frobenius norm,
and how far it may be: a multiple ``SLACK`` of the first-order effect of round-off n · finfo.eps in A and in the
products. Where a function is ill-conditioned the second is large, and the check says little; ``fuzz.py`` counts the
checks that were sharp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import eigengrad as eg

SLACK = 4.0  # times n · finfo.eps; how much of it was needed stands in benchmarks/results/fuzz.md
ORACLE = 1e-9  # relative accuracy of the oracles themselves, which compute in float64 too

#: From A, outputs, incoming gradients and gA to the errors and what they may be, (s,) each.
Oracle = Callable[[Tensor, Sequence[Tensor], Sequence[Tensor], Tensor], tuple[Tensor, Tensor]]


def norm(X: Tensor) -> Tensor:
    """Frobenius norm of matrices, (s, m, n) to (s,)."""
    return torch.linalg.matrix_norm(X)


def round_off(A: Tensor) -> float:
    """n · finfo.eps of the matrices' own type, times the slack."""
    return SLACK * max(A.shape[-2:]) * torch.finfo(A.dtype).eps


def _denormal(A: Tensor) -> float:
    """What is lost where every entry of a product is rounded to a denormal number."""
    limits = torch.finfo(A.dtype)
    return SLACK * A.shape[-1] ** 1.5 * limits.smallest_normal * limits.eps


def in_range(X: Tensor, A: Tensor) -> Tensor:
    """X as the type of A can hold it: its largest number stands for what overflows, as in ``eigh`` and ``svd``."""
    limits = torch.finfo(A.dtype)
    return X.clamp(limits.min, limits.max)


# Decompositions -----------------------------------------------------------------------------------------------------


def eigh_ratios(A: Tensor, L: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """‖AV − VΛ‖/(n ε ‖A‖) and ‖VᵀV − I‖/(n ε), (s,) each."""
    n, eps = A.shape[-1], torch.finfo(A.dtype).eps
    A, L, V = A.double(), L.double(), V.double()
    size = norm(A)
    residual = norm(A @ V - V * L.unsqueeze(-2)) / torch.where(size > 0, size, 1.0)
    return residual / (n * eps), norm(V.mT @ V - torch.eye(n, dtype=torch.float64)) / (n * eps)


def svd_ratios(A: Tensor, U: Tensor, S: Tensor, Vh: Tensor) -> tuple[Tensor, Tensor]:
    """‖A − UΣVᵀ‖/(m ε ‖A‖) and the larger of ‖UᵀU − I‖/(m ε) and that of V, (s,) each, for a thin decomposition."""
    scale = max(A.shape[-2:]) * torch.finfo(A.dtype).eps
    A, U, S, Vh = A.double(), U.double(), S.double(), Vh.double()
    identity, size = torch.eye(S.shape[-1], dtype=torch.float64), norm(A)
    residual = norm(A - (U * S.unsqueeze(-2)) @ Vh) / torch.where(size > 0, size, 1.0)
    defect = torch.maximum(norm(U.mT @ U - identity), norm(Vh @ Vh.mT - identity))
    return residual / scale, defect / scale


# Rules --------------------------------------------------------------------------------------------------------------


def reciprocals(rule: eg.PairRule, L: Tensor) -> Tensor:
    """What the rule's documentation says stands for 1/|λ_i − λ_j|, float64 (s, n, n), for ascending L of any type.

    Limits that separate two cases are compared in L's own type, so that a rounding does not decide differently.
    """
    n, limits = L.shape[-1], torch.finfo(L.dtype)
    size = torch.maximum(L[:, :1].abs(), L[:, -1:].abs())
    size = torch.where(size > 0, size, 1.0)
    roundoff = size * (n * limits.eps)
    spread = torch.where(L[:, -1:] - L[:, :1] > roundoff, L[:, -1:] - L[:, :1], size).double()
    narrow = (L.unsqueeze(-2) - L.unsqueeze(-1)).abs()
    gaps = (L.double().unsqueeze(-2) - L.double().unsqueeze(-1)).abs()
    apart = torch.where(gaps > 0, gaps, 1.0)
    size, spread = size.double().unsqueeze(-1), spread.unsqueeze(-1)
    match rule:
        case eg.Saturate(rtol=rtol):
            tau = torch.maximum(rtol * spread, limits.eps * size)
            return torch.where(gaps > 0, -torch.expm1(-gaps / tau) / apart, 1 / tau)
        case eg.Taylor(degree=degree, eps=eps):
            floor = roundoff.double() if eps is None else torch.full_like(roundoff.double(), eps)
            negative = L[:, :1] < -roundoff
            p = torch.where(negative, L.double() - L[:, :1].double() + floor, L.double())
            p = torch.maximum(p, floor)
            high, low = torch.maximum(p.unsqueeze(-1), p.unsqueeze(-2)), torch.minimum(p.unsqueeze(-1), p.unsqueeze(-2))
            q = low / high
            terms = torch.where(q < 1, torch.expm1((degree + 1) * q.log()) / torch.where(q < 1, q - 1, 1.0), degree + 1)
            return terms / high
        case eg.Clip(threshold=threshold):
            return torch.where(gaps * threshold > 1, 1 / apart, threshold)
        case eg.Lorentzian(broadening=broadening):
            gap = gaps / spread
            return gap / (gap**2 + broadening) / spread
        case eg.Mask(rtol=None):
            return torch.where(narrow > roundoff.unsqueeze(-1), 1 / apart, 0.0)
        case eg.Truncate(rank=int(rank)):
            kept = torch.arange(n) >= n - rank
            return torch.where((narrow > roundoff.unsqueeze(-1)) & kept & kept.unsqueeze(-1), 1 / apart, 0.0)
    raise NotImplementedError(repr(rule))


def _noise(R: Tensor, sizes: Tensor, bracket: Tensor, rule: eg.PairRule, A: Tensor) -> Tensor:
    """What round-off makes of a bracket, (s,).

    Entries of X − Xᵀ are known to √n · eps · sizes, below which they count as zero, and R multiplies them. The ratio of
    two eigenvalues is known to eps, and Taylor's rule raises it to a power.
    """
    n, eps = R.shape[-1], torch.finfo(A.dtype).eps
    between = norm((sizes.unsqueeze(-1) + sizes.unsqueeze(-2)) * R) * n**0.5
    degree = rule.degree if isinstance(rule, eg.Taylor) else 0
    return SLACK * eps * (between + (n + degree) * norm(bracket)) + ORACLE * norm(bracket)


def eigh_by(rule: eg.PairRule) -> Oracle:
    """gA = V [½ (X − Xᵀ) ∘ R + diag(gλ)] Vᵀ with the documented R, at the eigenpairs that were returned."""

    def oracle(A: Tensor, outputs: Sequence[Tensor], incoming: Sequence[Tensor], gA: Tensor) -> tuple[Tensor, Tensor]:
        V, gL, gV = outputs[1].double(), incoming[0].double(), incoming[1].double()
        X, R = V.mT @ gV, reciprocals(rule, outputs[0])
        upper = torch.triu(0.5 * (X - X.mT) * R, 1)
        bracket = upper + upper.mT + torch.diag_embed(gL)
        return norm(gA.double() - in_range(V @ bracket @ V.mT, A)), _noise(R, gV.abs().amax(-2), bracket, rule, A)

    return oracle


def svd_by(rule: eg.PairRule) -> Oracle:
    """The adjoint of the formula in ``svd``'s documentation, at the triples that were returned; A is tall."""

    def oracle(A: Tensor, outputs: Sequence[Tensor], incoming: Sequence[Tensor], gA: Tensor) -> tuple[Tensor, Tensor]:
        S, narrow = outputs[1].double(), outputs[1]
        U, Vh, gU, gS, gVh = (x.double() for x in (outputs[0], outputs[2], *incoming))
        gV = gVh.mT
        XU, XV = U.mT @ gU, Vh @ gV
        R = reciprocals(rule, narrow.flip(-1)).flip(-1, -2)
        descending = torch.triu(R, 1)
        E = descending.mT - descending  # 1/(σ_j − σ_i)
        floor = narrow[:, :1] * (max(A.shape[-2:]) * torch.finfo(A.dtype).eps)
        nonzero = (narrow > floor) & (narrow > torch.finfo(A.dtype).tiny)
        some = nonzero.unsqueeze(-1) | nonzero.unsqueeze(-2)
        sums = S.unsqueeze(-1) + S.unsqueeze(-2)
        H = torch.where(some, 1 / torch.where(some, sums, 1.0), 0.0)
        inverse = torch.where(nonzero, 1 / torch.where(nonzero, S, 1.0), 0.0)
        Y, Z = XU + XV, XU - XV
        bracket = 0.5 * ((Y - Y.mT) * E + (Z - Z.mT) * H) + torch.diag_embed(gS)
        outside = (gU - U @ XU) * inverse.unsqueeze(-2)
        expected = U @ bracket @ Vh + outside @ Vh
        sizes = gU.abs().amax(-2) + gV.abs().amax(-2)
        noise = _noise(R + H, sizes, bracket, rule, A)
        return norm(gA.double() - in_range(expected, A)), noise + round_off(A) * norm(gU * inverse.unsqueeze(-2))

    return oracle


# Functions of the spectrum ------------------------------------------------------------------------------------------

Scalar = Callable[[Tensor], Tensor]


def divided_differences(f: Scalar, slope: Scalar, L: Tensor, *, entire: bool) -> Tensor:
    """(f(λ_i) − f(λ_j))/(λ_i − λ_j), and f′ midway where the two are close: right to 1e-10, (s, n, n).

    Close is 1e-5 in units of the length on which f changes: 1 for ``entire`` functions, λ itself for powers and log.
    """
    x, y = L.unsqueeze(-1), L.unsqueeze(-2)
    length = torch.ones(()) if entire else torch.maximum(x.abs(), y.abs())
    apart = (x - y).abs() > 1e-5 * length
    middle = slope(0.5 * (x + y))
    return torch.where(apart, (f(x) - f(y)) / torch.where(apart, x - y, 1.0), middle)


def function_gradient(
    f: Scalar, slope: Scalar, L: Tensor, V: Tensor, G: Tensor, *, entire: bool
) -> tuple[Tensor, Tensor]:
    """V [F ∘ (VᵀGV)] Vᵀ for the symmetric part of G, and the largest |F|, (s,)."""
    F = divided_differences(f, slope, L, entire=entire)
    return V @ (F * (V.mT @ (0.5 * (G + G.mT)) @ V)) @ V.mT, F.abs().amax((-2, -1))


def function_of(
    f: Scalar, slope: Scalar, curvature: Scalar, *, eps: float = 0.0, unit: float = 1.0, power: float | None = None
) -> Oracle:
    """S = f(A·unit + eps I), with the spectrum clamped at eps if that is positive; |f″| is ``curvature``, of all λ.

    A ``power`` is computed through logarithms, of which round-off is relative to |log λ|: 69 for 1e30.
    """

    def oracle(A: Tensor, outputs: Sequence[Tensor], incoming: Sequence[Tensor], gA: Tensor) -> tuple[Tensor, Tensor]:
        G = incoming[0].double()
        L, V = torch.linalg.eigh(A.double() * unit)
        size = L.abs().amax(-1)
        lowest = L
        if eps:  # round-off decides how far above the clamp an eigenvalue is
            lowest = (L + eps - round_off(A) * size.unsqueeze(-1)).clamp(min=eps)
            L = (L + eps).clamp(min=eps)
        if G.ndim == 1:  # logdet: a function of the matrix, whose trace is taken
            expected, weight = V * (G.unsqueeze(-1) * slope(L)).unsqueeze(-2) @ V.mT, G.abs() * L.shape[-1] ** 0.5
            largest = slope(L).abs().amax(-1)
        else:
            expected, largest = function_gradient(f, slope, L, V, G, entire=not eps)
            weight = norm(G)
        largest = torch.maximum(largest, slope(lowest).abs().amax(-1))
        bends = torch.maximum(curvature(L), curvature(lowest)).amax(-1) * (size + eps)
        allowed = (round_off(A) * (bends + largest) + ORACLE * largest) * weight
        if power is not None:
            logarithm = torch.maximum(L.log().abs(), lowest.log().abs()).amax(-1)
            allowed = allowed + torch.finfo(A.dtype).eps * (1 + abs(power)) * logarithm * largest * weight
        return norm(gA.double() / unit - expected), allowed + _denormal(A) * (1 + weight) / unit

    return oracle


def projector(k: int) -> Oracle:
    """On the k largest eigenvalues, or the −k smallest."""

    def oracle(A: Tensor, outputs: Sequence[Tensor], incoming: Sequence[Tensor], gA: Tensor) -> tuple[Tensor, Tensor]:
        L, V = torch.linalg.eigh(A.double())
        n, G = L.shape[-1], incoming[0].double()
        cut = n - k if k > 0 else -k
        chosen = torch.arange(n) >= cut if k > 0 else torch.arange(n) < cut
        across = chosen.unsqueeze(-1) != chosen
        gaps = (L.unsqueeze(-1) - L.unsqueeze(-2)).abs()
        F = torch.where(across & (gaps > 0), (1.0 if k > 0 else -1.0) / torch.where(gaps > 0, gaps, 1.0), 0.0)
        expected = V @ (F * (V.mT @ (0.5 * (G + G.mT)) @ V)) @ V.mT
        gap = L[:, cut] - L[:, cut - 1]
        allowed = (round_off(A) * (L.abs().amax(-1) / gap**2 + 1 / gap) + ORACLE / gap) * norm(G)
        return norm(gA.double() - expected), allowed

    return oracle


def _odd_function(
    A: Tensor, G: Tensor, differences: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """The gradient of U f(Σ) Vᵀ for tall A, from (f_i − f_j)/(σ_i − σ_j), (f_i + f_j)/(σ_i + σ_j), f_i/σ_i; and σ."""
    U, S, Vh = torch.linalg.svd(A.double(), full_matrices=False)
    minus, plus, over = differences(S)
    P = U.mT @ G @ Vh.mT
    inside = 0.5 * ((P + P.mT) * minus + (P - P.mT) * plus)
    return U @ inside @ Vh + ((G @ Vh.mT - U @ P) * over.unsqueeze(-2)) @ Vh, S


def low_rank(k: int) -> Oracle:
    """U_k Σ_k V_kᵀ of tall matrices."""

    def differences(S: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, y, kept = S.unsqueeze(-1), S.unsqueeze(-2), torch.arange(S.shape[-1]) < k
        both = (kept.unsqueeze(-1) & kept).double().expand(*S.shape, S.shape[-1])
        across, high, low = kept.unsqueeze(-1) != kept, torch.maximum(x, y), torch.minimum(x, y)
        safe = torch.where(across & (high > low), high - low, 1.0)
        minus = torch.where(across, high / safe, both)
        plus = torch.where(across, high / torch.where(high > 0, high + low, 1.0), both)
        return minus, plus, kept.double().expand(S.shape)

    def oracle(A: Tensor, outputs: Sequence[Tensor], incoming: Sequence[Tensor], gA: Tensor) -> tuple[Tensor, Tensor]:
        G = incoming[0].double()
        expected, S = _odd_function(A, G, differences)
        gap = (S[:, k - 1] - S[:, k]) / S[:, 0]
        return norm(gA.double() - expected), (round_off(A) + ORACLE) * (1 / gap**2 + 1 / gap) * norm(G)

    return oracle


def polar(A: Tensor, outputs: Sequence[Tensor], incoming: Sequence[Tensor], gA: Tensor) -> tuple[Tensor, Tensor]:
    """Both factors of tall A = Q H, with H = QᵀA."""

    def differences(S: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        sums = S.unsqueeze(-1) + S.unsqueeze(-2)
        return torch.zeros_like(sums), 2 / sums, 1 / S

    gQ, gH, M = incoming[0].double(), incoming[1].double(), A.double()
    gH = 0.5 * (gH + gH.mT)
    U, _, Vh = torch.linalg.svd(M, full_matrices=False)
    G = gQ + M @ gH.mT
    expected, S = _odd_function(A, G, differences)
    smallest, size = S[:, -1], S[:, 0]
    allowed = (round_off(A) + ORACLE) * (size / smallest**2 + 1 / smallest) * (norm(gQ) + size * norm(gH))
    return norm(gA.double() - expected - U @ Vh @ gH), allowed


def pinv(rtol: float) -> Oracle:
    """Torch's, in float64; where a singular value lies at the cut there is nothing to compare with."""

    def oracle(A: Tensor, outputs: Sequence[Tensor], incoming: Sequence[Tensor], gA: Tensor) -> tuple[Tensor, Tensor]:
        M, G = A.detach().double().requires_grad_(), incoming[0].double()
        P = torch.linalg.pinv(M, rtol=rtol)
        (expected,) = torch.autograd.grad(P, M, G)
        S = torch.linalg.svdvals(M.detach())
        relative = S / torch.where(S[:, :1] > 0, S[:, :1], 1.0)
        undecided = ((relative > 0.9 * rtol) & (relative < 1.1 * rtol)).any(-1)
        size = torch.linalg.matrix_norm(P.detach(), 2)
        allowed = 3 * (round_off(A) + ORACLE) * (S[:, 0] * size**3 + size**2) * norm(G)  # dA⁺ has three terms
        return norm(gA.double() - expected), torch.where(undecided, torch.inf, allowed)

    return oracle


# Values alone, whose gradient at ties depends on the basis: what it has in every basis --------------------------------


def eigenvalues(A: Tensor, outputs: Sequence[Tensor], incoming: Sequence[Tensor], gA: Tensor) -> tuple[Tensor, Tensor]:
    """gA commutes with A, and has the trace, the norm and the product with A that V diag(g) Vᵀ has."""
    M, g, gA = A.double(), incoming[0].double(), gA.double()
    size, length, L = torch.linalg.matrix_norm(M, 2), g.norm(dim=-1), torch.linalg.eigvalsh(M)
    size = torch.where(size > 0, size, 1.0)
    commutator = norm(M @ gA - gA @ M) / size
    trace = (gA.diagonal(dim1=-2, dim2=-1).sum(-1) - g.sum(-1)).abs()
    product = ((gA * M).sum((-2, -1)) - (g * L).sum(-1)).abs() / size
    error = torch.stack([commutator, trace, product, (norm(gA) - length).abs()]).amax(0)
    return error, (round_off(A) + ORACLE) * length * A.shape[-1] ** 0.5


def singular_values(
    A: Tensor, outputs: Sequence[Tensor], incoming: Sequence[Tensor], gA: Tensor
) -> tuple[Tensor, Tensor]:
    """AᵀgA is symmetric, and gA has the norm and the product with A that U diag(g) Vᵀ has."""
    M, g, gA = A.double(), incoming[0].double(), gA.double()
    length, S = g.norm(dim=-1), torch.linalg.svdvals(M)
    size = torch.where(S[:, 0] > 0, S[:, 0], 1.0)
    product = M.mT @ gA
    skew = norm(product - product.mT) / size
    along = ((gA * M).sum((-2, -1)) - (g * S).sum(-1)).abs() / size
    error = torch.stack([skew, along, (norm(gA) - length).abs()]).amax(0)
    return error, (round_off(A) + ORACLE) * length * A.shape[-1] ** 0.5


def nuclear_norm(A: Tensor, outputs: Sequence[Tensor], incoming: Sequence[Tensor], gA: Tensor) -> tuple[Tensor, Tensor]:
    """gA/g is a subgradient: no singular value above one, and its product with A is the norm."""
    M, g, gA = A.double(), incoming[0].double(), gA.double()
    S = torch.linalg.svdvals(M)
    size = torch.where(S[:, 0] > 0, S[:, 0], 1.0)
    along = ((gA * M).sum((-2, -1)) - g * S.sum(-1)).abs() / size
    above = (torch.linalg.matrix_norm(gA, 2) - g.abs()).clamp(min=0)
    return torch.maximum(along, above), (round_off(A) + ORACLE) * g.abs() * A.shape[-1] ** 0.5


# Warnings -----------------------------------------------------------------------------------------------------------


def loss_through_vectors(rule: eg.PairRule, A: Tensor, G: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of ⟨G, V exp(λ/‖A‖) Vᵀ⟩ by ``eigh`` for one matrix, the true one, and how far round-off moves it.

    The true one has divided differences, which need no rule: this is the loss for which a regularised ``eigh`` is
    the wrong tool, so that it must warn where it removes much. What round-off does to a pair: it moves the numerator by
    √n · eps, and the gap by n · eps · ‖A‖.
    """
    n, eps = A.shape[-1], torch.finfo(A.dtype).eps
    B = A.detach().clone().requires_grad_()
    L, V = eg.eigh(B, gradient=rule)
    size = float(L.detach().abs().amax()) or 1.0
    (gA,) = torch.autograd.grad(((V * (L / size).exp().unsqueeze(-2)) @ V.mT * G).sum(), B)
    values, vectors = torch.linalg.eigh(A.double())
    true, _ = function_gradient(torch.exp, torch.exp, values[None] / size, vectors[None], G.double()[None], entire=True)
    true = true[0] / size
    sizes = ((G + G.mT).double() @ V.detach().double() * 3).abs().amax(-2)  # of gV: exp(λ/‖A‖) is at most e
    R = reciprocals(rule, L.detach()[None])[0].fill_diagonal_(0.0)
    numerators = norm((sizes.unsqueeze(-1) + sizes) * R) * n**0.5 * eps
    gaps = (values.unsqueeze(-1) - values).abs()
    unknown = (n * eps * size / torch.where(gaps > 0, gaps, torch.inf)).clamp(max=1.0)
    pairs = (vectors.mT @ (0.5 * (G + G.mT)).double() @ vectors) * unknown * 3 / size
    return gA.double(), true, SLACK * numerators + 2 * norm(pairs) + round_off(A) * norm(true)
