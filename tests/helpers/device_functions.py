"""Device cases of the functions: decompositions, matrix functions, gradient rules, transforms. See ``device_cases.py``.

A case is named after the public function that it calls, and what is special about the call.
"""

from __future__ import annotations

import torch
from torch import Tensor

import eigengrad as eg
from device_cases import Case, randn

__all__ = ["GROUPS"]

R = randn(4, 6, 6)
S = R @ R.mT + 0.1 * torch.eye(6)
S2 = (lambda r: r @ r.mT + torch.eye(6))(randn(4, 6, 6))
TALL, TALL2 = randn(3, 7, 4), randn(3, 7, 4)
LA = eg.linalg


def squares(result: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Without signs and phases, which are arbitrary."""
    return tuple(x.abs() ** 2 if x.ndim == 3 else x for x in result)


def hermitian(A: Tensor) -> Tensor:
    """A complex Hermitian matrix made of a real one."""
    return torch.complex(A + A.mT, A - A.mT)


def wide(A: Tensor) -> Tensor:
    """A complex matrix made of a real one."""
    return torch.complex(A, A.flip(-1))


decompositions = {
    "eigh": Case(lambda A: squares(eg.eigh(A)), (S,)),
    "eigh U": Case(lambda A: squares(eg.eigh(A, "U")), (S,)),
    "eigh k": Case(lambda A: squares(eg.eigh(A, k=2)), (S,)),
    "eigh k smallest": Case(lambda A: squares(eg.eigh(A, k=-2)), (S,)),
    "eigh B": Case(lambda A, B: squares(eg.eigh(A, B=B)), (S, S2), rtol=1e-3),
    "eigh B k": Case(lambda A, B: squares(eg.eigh(A, B=B, k=2)), (S, S2), rtol=1e-3),
    "eigh complex": Case(lambda A: squares(eg.eigh(hermitian(A))), (R.double(),)),
    "eigh bfloat16": Case(lambda A: eg.eigh(A).eigenvalues, (S.bfloat16(),), rtol=0.02),
    "eigh check_finite": Case(lambda A: squares(eg.eigh(A, check_finite=False)), (S,)),
    "eigvalsh": Case(lambda A: eg.eigvalsh(A), (S,)),
    "svd": Case(lambda A: squares(eg.svd(A, full_matrices=False)), (TALL,)),
    "svd wide": Case(lambda A: squares(eg.svd(A, full_matrices=False)), (TALL.mT.contiguous(),)),
    "svd full": Case(lambda A: eg.svd(A).S, (TALL,)),
    "svd k": Case(lambda A: squares(eg.svd(A, k=2)), (TALL,)),
    "svd k smallest": Case(lambda A: squares(eg.svd(A, k=-2)), (TALL,)),
    "svd complex": Case(lambda A: squares(eg.svd(wide(A), full_matrices=False)), (TALL.double(),)),
    "svdvals": Case(lambda A: eg.svdvals(A), (TALL,)),
    "power_iteration": Case(lambda A: squares(eg.power_iteration(A, 2, steps=300)), (S,), rtol=1e-3),
    "linalg.eigh": Case(lambda A: squares(LA.eigh(A)), (S,)),
    "linalg.eigvalsh": Case(lambda A: LA.eigvalsh(A), (S,)),
    "linalg.svd": Case(lambda A: squares(LA.svd(A, full_matrices=False)), (TALL,)),
    "linalg.svdvals": Case(lambda A: LA.svdvals(A), (TALL,)),
    "linalg.cond": Case(lambda A: LA.cond(A), (S,), rtol=1e-3),
    "linalg.matrix_norm": Case(lambda A: LA.matrix_norm(A, "nuc"), (TALL,)),
    "linalg.norm": Case(lambda A: LA.norm(A, 2, dim=(-2, -1)), (TALL,)),
    "patch_torch": Case(lambda A: _patched(A), (S,)),
}


def _patched(A: Tensor) -> tuple[Tensor, ...]:
    with eg.patch_torch():
        return squares(torch.linalg.eigh(A))


matrix_functions = {
    "polar": Case(lambda A: tuple(eg.polar(A)), (TALL,)),
    "polar special": Case(lambda A: eg.polar(A, special=True).U, (R,), rtol=1e-3),
    "procrustes": Case(lambda A, B: eg.procrustes(A, B), (TALL, TALL2), rtol=1e-3),
    "procrustes special": Case(lambda A, B: eg.procrustes(A, B, special=True), (TALL, TALL2), rtol=1e-3),
    "kabsch": Case(lambda P, Q: tuple(eg.kabsch(P, Q))[:2], (randn(3, 9, 3), randn(3, 9, 3)), rtol=1e-3),
    "kabsch weights scale": Case(
        lambda P, Q, w: tuple(eg.kabsch(P, Q, w, scale=True)),
        (randn(3, 9, 3), randn(3, 9, 3), randn(3, 9).abs()),
        rtol=1e-3,
    ),
    "pinv": Case(lambda A: eg.pinv(A), (TALL,)),
    "pinv hermitian": Case(lambda A: eg.pinv(A, hermitian=True), (S,), rtol=1e-3),
    "low_rank": Case(lambda A: eg.low_rank(A, 2), (TALL,), rtol=1e-3),
    "low_rank wide": Case(lambda A: eg.low_rank(A, 2), (TALL.mT.contiguous(),), rtol=1e-3),
    "logdet": Case(lambda A: eg.logdet(A), (S,)),
    "logdet eps": Case(lambda A: eg.logdet(A, eps=1e-2), (S,)),
    "nuclear_norm": Case(lambda A: eg.nuclear_norm(A), (TALL,)),
    "spectral_projector k": Case(lambda A: eg.spectral_projector(A, 2), (S,), rtol=1e-3),
    "spectral_projector interval": Case(lambda A: eg.spectral_projector(A, interval=(1.0, None)), (S,), rtol=1e-3),
    "matrix_function": Case(lambda A: eg.matrix_function(A, torch.sin, torch.cos), (S,), rtol=1e-3),
    "matrix_power": Case(lambda A: eg.matrix_power(A, 0.3), (S,)),
    "matrix_power whole": Case(lambda A: eg.matrix_power(A, -1), (S,), rtol=1e-3),
    "matrix_power complex": Case(lambda A: eg.matrix_power(hermitian(A), 2).abs(), (R.double(),)),
    "matrix_exp scaled": Case(lambda A: eg.matrix_exp(A * 0.1), (S,)),
    "newton_schulz_sqrt": Case(lambda A: eg.newton_schulz_sqrt(A), (S,)),
    "pade_sqrt": Case(lambda A: eg.pade_sqrt(A), (S,)),
    "pade_inv_sqrt": Case(lambda A: eg.pade_inv_sqrt(A), (S,)),
    "taylor_sqrt": Case(lambda A: eg.taylor_sqrt(A), (S,)),
    "taylor_inv_sqrt": Case(lambda A: eg.taylor_inv_sqrt(A), (S,)),
    "newton_schulz_inv_sqrt": Case(lambda A: eg.newton_schulz_inv_sqrt(A, normalize="frobenius"), (S,)),
    "nn.functional.covariance": Case(lambda x: eg.nn.functional.covariance(x), (TALL,)),
}
for f in (eg.matrix_sqrt, eg.matrix_inv_sqrt, eg.matrix_log, eg.matrix_exp):
    matrix_functions[f.__name__] = Case(lambda A, f=f: f(A), (S,))
for f in (eg.matrix_sqrt, eg.matrix_inv_sqrt, eg.matrix_log):
    matrix_functions[f"{f.__name__} eps"] = Case(lambda A, f=f: f(A, eps=1e-2), (S,))
for kind in ("zca", "pca", "cholesky"):
    matrix_functions[f"nn.functional.whitening_matrix {kind}"] = Case(
        lambda A, kind=kind: eg.nn.functional.whitening_matrix(A, whitening=kind) ** 2, (S,), rtol=1e-3
    )

#: Rules without parameters, or with those that they need.
RULES: tuple[eg.GradientRule, ...] = (
    eg.Saturate(),
    eg.Taylor(),
    eg.Exact(),
    eg.Clip(),
    eg.Lorentzian(),
    eg.Mask(),
    eg.UnitNormOrNaN(),
    eg.Truncate(energy=0.9),
    eg.Truncate(rank=2),
    eg.PowerIteration(),
)
rules = {}
for rule in RULES:
    differentiable = not isinstance(rule, eg.PowerIteration)
    rules[f"{type(rule).__name__} eigh {rule}"] = Case(
        lambda A, rule=rule: squares(eg.eigh(A, gradient=rule)), (S,), forward_mode=differentiable
    )
    rules[f"{type(rule).__name__} matrix_inv_sqrt {rule}"] = Case(
        lambda A, rule=rule: eg.matrix_inv_sqrt(A, eps=1e-2, gradient=rule), (S,), forward_mode=differentiable
    )
    if isinstance(rule, eg.Saturate | eg.Exact | eg.Mask):
        rules[f"{type(rule).__name__} svd"] = Case(
            lambda A, rule=rule: squares(eg.svd(A, full_matrices=False, gradient=rule)), (TALL,)
        )


def _second_derivative(A: Tensor) -> Tensor:
    (g,) = torch.autograd.grad(eg.matrix_inv_sqrt(A, eps=1e-2).sum(), A, create_graph=True)
    return g


transforms = {
    "second derivative": Case(_second_derivative, (S.double(),), forward_mode=False, autocast=False),
    "vmap": Case(lambda A: torch.func.vmap(lambda M: eg.matrix_inv_sqrt(M, eps=1e-2))(A), (S,), backward=False),
    "vmap eigh": Case(lambda A: torch.func.vmap(lambda M: eg.eigh(M)[0])(A), (S,), backward=False),
    "vmap domain": Case(lambda A: torch.func.vmap(lambda M: eg.matrix_sqrt(M))(A), (S,), backward=False),
    "grad": Case(lambda A: torch.func.grad(lambda M: eg.matrix_sqrt(M, eps=1e-2).sum())(A), (S,), backward=False),
    "grad kabsch": Case(
        lambda P, Q: torch.func.grad(lambda p: eg.kabsch(p, Q).rotation.sum())(P),
        (randn(3, 9, 3), randn(3, 9, 3)),
        rtol=1e-3,
        backward=False,
    ),
    "no_grad": Case(lambda A: squares(eg.eigh(A)), (S,), backward=False),
}

GROUPS = {
    "decompositions": decompositions,
    "matrix functions": matrix_functions,
    "rules": rules,
    "transforms": transforms,
}
