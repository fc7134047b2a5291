"""No gradient is ever NaN or infinite: adversarial matrices, by the million, through rules and functions.

    python tests/fuzz.py --matrices 1000000 --seed 0
    python tests/fuzz.py --seed 0 --batch 1234          # one batch again, as a failure says

Matrices come in batches of one size, type and scale; the batch number and the seed determine everything in it. Every
matrix is counted once and goes through every rule but the exact one, whose gradient is not finite at ties, and every
function but the iterations of Newton and Schulz, which need not converge; the count of each is printed at the end.
Functions of rectangular matrices (svd, polar, low_rank and others) take one with the same spectrum (its absolute
values).
"""

import argparse
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

import eigengrad as eg
from eigengrad.errors import GradientWarning
from eigengrad.matrix_functions import kabsch, logdet, low_rank, nuclear_norm, pinv, spectral_projector
from eigengrad.testing import SPECTRA, random_hermitian, random_matrix
from eigengrad.values import eigvalsh, svdvals

WORK = 300_000  # a batch of n × n matrices has about WORK / n^2.5 of them
LARGEST_BATCH = 8192

RULES = [
    eg.Saturate(),
    eg.Saturate(rtol=1e-12),
    eg.Taylor(),
    eg.Taylor(degree=1000),
    eg.Taylor(eps=1e-2),
    eg.Clip(),
    eg.Lorentzian(),
    eg.Mask(),
    eg.Truncate(),
    eg.Truncate(rank=2),
]


@dataclass(frozen=True)
class Batch:
    """Matrices that agree in n, type and scale, and differ in spectrum and basis."""

    number: int
    seed: int
    n: int
    dtype: torch.dtype
    scale: float
    names: list[str]
    """The spectrum of each."""
    hermitian: Tensor
    rectangular: Tensor
    generator: torch.Generator

    def __str__(self) -> str:
        return f"batch {self.number}: n = {self.n}, {self.dtype}, scale {self.scale:.3g}"

    @property
    def eps(self) -> float:
        """For the matrix functions: relative to the scale, or absolute; ε^(−2) must be a number of the type."""
        relative = (1e-2, 1e-4, 1e-6)[self.number % 3] * self.scale
        absolute = 1e-2 if self.number % 2 else relative
        return max(relative if self.scale < 1 else absolute, torch.finfo(self.dtype).tiny ** 0.5)


def shape(number: int) -> tuple[int, int]:
    """n, which takes every value from 2 to 64 in 63 batches, and how many matrices the batch has."""
    n = 2 + 37 * number % 63
    return n, max(4, min(LARGEST_BATCH, int(WORK / n**2.5)))


def make_batch(seed: int, number: int) -> Batch:
    """The matrices of a batch, the same for the same arguments."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + number)

    def uniform() -> float:
        return torch.rand((), generator=generator, dtype=torch.float64).item()

    n, count = shape(number)
    dtype = torch.float32 if uniform() < 0.5 else torch.float64
    scale = 1.0 if uniform() < 0.25 else 10 ** (60 * uniform() - 30)
    choices = torch.randint(len(SPECTRA), (count,), generator=generator)
    values, names = torch.empty(count, n, dtype=torch.float64), [""] * count
    for index, (name, spectrum) in enumerate(SPECTRA.items()):
        (chosen,) = torch.where(choices == index)
        values[chosen] = spectrum((len(chosen), n), generator)
        for i in chosen.tolist():
            names[i] = name
    size = values.abs().amax(-1, keepdim=True)
    values *= scale / torch.where(size > 0, size, torch.ones_like(size))
    hermitian = random_hermitian(values, generator, dtype)
    # A quarter in the standard basis, where ties and zeros are exact; the rest up to round-off.
    standard = torch.arange(count) % 4 == 0
    hermitian[standard] = torch.diag_embed(values[standard]).to(dtype)
    sigma = values.abs().sort(descending=True).values
    rectangular = random_matrix(sigma, n + 1, n, generator, dtype)
    rectangular[standard, :n] = torch.diag_embed(sigma[standard]).to(dtype)
    rectangular[standard, n:] = 0
    return Batch(number, seed, n, dtype, scale, names, hermitian, rectangular, generator)


def _vector_jacobian(function: Callable[[Tensor], tuple[Tensor, ...]], A: Tensor, generator: torch.Generator) -> Tensor:
    """gA for incoming gradients from the normal distribution."""
    A = A.detach().requires_grad_()
    outputs = function(A)
    incoming = [torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in outputs]
    return torch.autograd.grad(outputs, A, incoming)[0]


def subjects(batch: Batch) -> Iterator[tuple[str, Tensor, Callable[[Tensor], tuple[Tensor, ...]]]]:
    """Name, matrices and function of everything that the batch goes through."""
    square, tall, eps = batch.hermitian, batch.rectangular, batch.eps
    for rule in (*RULES, eg.PowerIteration()):
        yield f"eigh, {rule}", square, lambda A, rule=rule: tuple(eg.eigh(A, gradient=rule))
    for rule in RULES:
        yield f"svd, {rule}", tall, lambda A, rule=rule: tuple(eg.svd(A, full_matrices=False, gradient=rule))
    yield "matrix_sqrt", square, lambda A: (eg.matrix_sqrt(A, eps=eps),)
    yield "matrix_inv_sqrt", square, lambda A: (eg.matrix_inv_sqrt(A, eps=eps),)
    yield "matrix_power 0.3", square, lambda A: (eg.matrix_power(A, 0.3, eps=eps),)
    yield "matrix_power -0.7", square, lambda A: (eg.matrix_power(A, -0.7, eps=eps),)
    yield "matrix_power 3 of A/‖A‖", square, lambda A: (eg.matrix_power(A / batch.scale, 3),)
    yield "matrix_log", square, lambda A: (eg.matrix_log(A, eps=eps),)
    yield "matrix_exp of 10 A/‖A‖", square, lambda A: (eg.matrix_exp(A / batch.scale * 10),)
    yield "matrix_function sin of A/‖A‖", square, lambda A: (eg.matrix_function(A / batch.scale, torch.sin, torch.cos),)
    yield "logdet", square, lambda A: (logdet(A, eps=eps),)
    # Cut wherever the number of the batch says, ties or not; sizes of gradients are in units of the scale.
    k = 1 + batch.number % (batch.n - 1)
    unit = square / batch.scale
    yield "spectral_projector", unit, lambda A: (spectral_projector(A, k),)
    yield "spectral_projector, smallest", unit, lambda A: (spectral_projector(A, -k),)
    yield "spectral_projector, interval", unit, lambda A: (spectral_projector(A, interval=(-0.5, 0.5)),)
    yield "low_rank", tall, lambda A: (low_rank(A, k),)
    yield "nuclear_norm", tall, lambda A: (nuclear_norm(A),)
    yield "pinv of A/‖A‖", tall / batch.scale, lambda A: (pinv(A, rtol=1e-3),)
    yield "eigvalsh", square, lambda A: (eigvalsh(A),)
    yield "svdvals", tall, lambda A: (svdvals(A),)
    yield "polar", tall, lambda A: tuple(eg.polar(A))
    yield "kabsch", tall, lambda A: tuple(kabsch(A, tall.flip(-1), scale=True))
    yield "procrustes", tall, lambda A: (eg.procrustes(A, tall.flip(-1)),)


def run_batch(seed: int, number: int) -> tuple[Counter[str], list[str]]:
    """How many matrices went through each subject, and what failed."""
    batch = make_batch(seed, number)
    counts: Counter[str] = Counter({"matrices": len(batch.names)})
    failures = []
    for name, matrices, function in subjects(batch):
        counts[name] += len(matrices)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", GradientWarning)  # that there is none: it is to be finite all the same
                finite = _vector_jacobian(function, matrices, batch.generator).isfinite().flatten(1).all(1)
        except Exception as error:
            failures.append(f"{name}: {batch}: {type(error).__name__}: {error}")
            continue
        for i in torch.where(~finite)[0].tolist()[:3]:
            failures.append(f"{name}: {batch}, matrix {i}, spectrum “{batch.names[i]}”: the gradient is not finite")
    return counts, failures


def _job(arguments: tuple[int, int]) -> tuple[Counter[str], list[str]]:
    torch.set_num_threads(1)
    return run_batch(*arguments)


def batches_for(matrices: int) -> int:
    """How many batches hold at least that many matrices."""
    total = number = 0
    while total < matrices:
        total += shape(number)[1]
        number += 1
    return number


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--matrices", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, help="only this one")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    numbers = range(batches_for(arguments.matrices)) if arguments.batch is None else [arguments.batch]
    print(f"fuzz: seed {arguments.seed}, {len(numbers)} batches, {arguments.workers} workers", flush=True)
    counts: Counter[str] = Counter()
    failures: list[str] = []
    start = shown = time.monotonic()
    with ProcessPoolExecutor(arguments.workers) as pool:
        for done, (count, failed) in enumerate(pool.map(_job, ((arguments.seed, n) for n in numbers)), 1):
            counts += count
            for failure in failed:
                print(f"FAILED {failure}", flush=True)
            failures += failed
            if time.monotonic() - shown > 10 or done == len(numbers):
                shown = time.monotonic()
                print(
                    f"{counts['matrices']:>9,} matrices, {done}/{len(numbers)} batches, "
                    f"{len(failures)} failures, {shown - start:.0f} s",
                    flush=True,
                )
    for name, count in counts.items():
        print(f"{count:>9,}  {name}")
    if failures:
        print(f"{len(failures)} failures. To repeat one: python tests/fuzz.py --seed {arguments.seed} --batch <number>")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
