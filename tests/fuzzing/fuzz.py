"""No gradient is NaN, infinite or silently wrong: adversarial matrices, by the million, through rules and functions.

    python tests/fuzzing/fuzz.py                                  # 10,000,000 matrices; goes on where it was stopped
    python tests/fuzzing/fuzz.py --fresh                          # from the beginning
    python tests/fuzzing/fuzz.py --batch 1234                     # one batch again, as a failure says

Matrices come in batches of one size, type and scale; the batch number and the seed determine everything in it. What
has been done is kept in ``--state`` after every batch, so that a run may be stopped at any time, and goes on when the
same command is given again. When all is done, the result is written to ``benchmarks/results/fuzz.md`` and ``.json``.

What a matrix goes through:

- *Every matrix*: every rule but the exact one in ``eigh``; in ``svd`` the default and half of the other rules, the rest
  being tried in the next batch of that size; every matrix function but the iterations of Newton and Schulz, which need
  not converge. (Power iteration takes every fourth batch.) Functions of rectangular matrices (svd, polar, low_rank and
  others) take one with the same spectrum (its absolute values). Results and gradients must be finite. The residual of
  ``eigh`` and ``svd``, the orthogonality of their vectors and the order of their values are checked for every matrix.
- *One of 200, and two of each batch at least*: gradients against ``fuzz_oracles.py``, in float64 and by formulas of
  their own. Rules must give what their documentation says, functions the exact gradient. (kabsch, procrustes, the
  projector on an interval, power iteration and truncation by energy have no oracle here.)
- *The same ones, one by one*: a loss V f(λ) Vᵀ through ``eigh`` and each rule, and a cut through a tie. Where the
  gradient is off by more than half, or there is none, a ``GradientWarning`` must have been given. (Not of Taylor's rule
  with an absolute ε above the spectrum: that is the paper's gradient, and may be several times too large.)
"""

import argparse
import hashlib
import json
import os
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

import eigengrad as eg
import fuzz_oracles as oracles
from eigengrad.errors import GradientWarning
from eigengrad.matrix_functions import kabsch, logdet, low_rank, nuclear_norm, pinv, spectral_projector
from eigengrad.testing import SPECTRA, random_hermitian, random_matrix
from eigengrad.values import eigvalsh, svdvals

ROOT = Path(__file__).resolve().parents[2]
WORK = 300_000  # a batch of n × n matrices has about WORK / n^2.5 of them
LARGEST_BATCH = 8192
SAMPLE = 200  # one of so many matrices is compared with the oracles
# The largest residual and loss of orthogonality, in units of n · finfo.eps: for eigh those of test_eigh_ratios.py, for
# svd, which is torch's, the limit that LAPACK's own tests have.
RATIOS = {"eigh": (4.0, 4.0), "svd": (30.0, 30.0)}
MISSING = 0.55  # share of a gradient that may be missing without a warning: a half, as documented, and round-off
SHARP = 0.1  # a check is sharp if what it allows is less than this share of the gradient

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
# Those that give a warning where half of a gradient is missing. Truncation by energy has no formula in the oracles, and
# Taylor's absolute ε may make a gradient too large, as in the paper, which is not warned of.
WARNING = [rule for rule in RULES if rule not in (eg.Truncate(), eg.Taylor(eps=1e-2))]


# Matrices -----------------------------------------------------------------------------------------------------------


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

    @property
    def sample(self) -> Tensor:
        """The numbers of the matrices that are compared with oracles, (s,)."""
        count = len(self.names)
        generator = torch.Generator().manual_seed(7_919 * self.seed + self.number)
        return torch.randperm(count, generator=generator)[: max(2, count // SAMPLE)].sort().values


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


# Subjects -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """A function that all matrices of a batch go through, and what is known about its gradient."""

    name: str
    matrices: Tensor
    function: Callable[[Tensor], tuple[Tensor, ...]]
    oracle: oracles.Oracle | None = None


def subjects(batch: Batch) -> Iterator[Subject]:
    """Everything that the batch goes through."""
    square, tall, eps, unit = batch.hermitian, batch.rectangular, batch.eps, 1 / batch.scale
    for rule in RULES:
        known = oracles.eigh_by(rule) if rule != eg.Truncate() and type(rule) is not eg.Exact else None
        yield Subject(f"eigh, {rule}", square, lambda A, rule=rule: tuple(eg.eigh(A, gradient=rule)), known)
    if batch.number % 4 == 0:
        rule = eg.PowerIteration()
        yield Subject(f"eigh, {rule}", square, lambda A, rule=rule: tuple(eg.eigh(A, gradient=rule)))
    for index, rule in enumerate(RULES):
        if index > 0 and (index + batch.number) % 2:  # 63 is odd: in the next batch of this n it is the others' turn
            continue
        known = oracles.svd_by(rule) if rule != eg.Truncate() and type(rule) is not eg.Exact else None
        yield Subject(
            f"svd, {rule}", tall, lambda A, rule=rule: tuple(eg.svd(A, full_matrices=False, gradient=rule)), known
        )
    for name, function, f, slope, curvature in (
        (
            "matrix_sqrt",
            lambda A: eg.matrix_sqrt(A, eps=eps),
            torch.sqrt,
            lambda x: 0.5 * x**-0.5,
            lambda x: 0.25 * x**-1.5,
        ),
        (
            "matrix_inv_sqrt",
            lambda A: eg.matrix_inv_sqrt(A, eps=eps),
            torch.rsqrt,
            lambda x: -0.5 * x**-1.5,
            lambda x: 0.75 * x**-2.5,
        ),
        (
            "matrix_power 0.3",
            lambda A: eg.matrix_power(A, 0.3, eps=eps),
            lambda x: x**0.3,
            lambda x: 0.3 * x**-0.7,
            lambda x: 0.21 * x**-1.7,
        ),
        (
            "matrix_power -0.7",
            lambda A: eg.matrix_power(A, -0.7, eps=eps),
            lambda x: x**-0.7,
            lambda x: -0.7 * x**-1.7,
            lambda x: 1.19 * x**-2.7,
        ),
        ("matrix_log", lambda A: eg.matrix_log(A, eps=eps), torch.log, torch.reciprocal, lambda x: x**-2),
        ("logdet", lambda A: logdet(A, eps=eps), torch.log, torch.reciprocal, lambda x: x**-2),
    ):
        power = float(name.split()[1]) if name.startswith("matrix_power") else None
        known = oracles.function_of(f, slope, curvature, eps=eps, power=power)
        yield Subject(name, square, lambda A, function=function: (function(A),), known)
    yield Subject(
        "matrix_power 3 of A/‖A‖",
        square,
        lambda A: (eg.matrix_power(A * unit, 3),),
        oracles.function_of(lambda x: x**3, lambda x: 3 * x**2, lambda x: 6 * x.abs(), unit=unit),
    )
    yield Subject(
        "matrix_exp of 10 A/‖A‖",
        square,
        lambda A: (eg.matrix_exp(A * unit * 10),),
        oracles.function_of(torch.exp, torch.exp, torch.exp, unit=10 * unit),
    )
    yield Subject(
        "matrix_function sin of A/‖A‖",
        square,
        lambda A: (eg.matrix_function(A * unit, torch.sin, torch.cos),),
        oracles.function_of(torch.sin, torch.cos, torch.ones_like, unit=unit),
    )
    # Cut wherever the number of the batch says, ties or not; sizes of gradients are in units of the scale.
    k, ones = 1 + batch.number % (batch.n - 1), square * unit
    yield Subject("spectral_projector", ones, lambda A: (spectral_projector(A, k),), oracles.projector(k))
    yield Subject("spectral_projector, smallest", ones, lambda A: (spectral_projector(A, -k),), oracles.projector(-k))
    yield Subject("spectral_projector, interval", ones, lambda A: (spectral_projector(A, interval=(-0.5, 0.5)),))
    yield Subject("low_rank", tall, lambda A: (low_rank(A, k),), oracles.low_rank(k))
    yield Subject("nuclear_norm", tall, lambda A: (nuclear_norm(A),), oracles.nuclear_norm)
    yield Subject("pinv of A/‖A‖", tall * unit, lambda A: (pinv(A, rtol=1e-3),), oracles.pinv(1e-3))
    yield Subject("eigvalsh", square, lambda A: (eigvalsh(A),), oracles.eigenvalues)
    yield Subject("svdvals", tall, lambda A: (svdvals(A),), oracles.singular_values)
    yield Subject("polar", tall, lambda A: tuple(eg.polar(A)), oracles.polar)
    yield Subject("kabsch", tall, lambda A: tuple(kabsch(A, tall.flip(-1), scale=True)))
    yield Subject("procrustes", tall, lambda A: (eg.procrustes(A, tall.flip(-1)),))


# Checks -------------------------------------------------------------------------------------------------------------


@dataclass
class Result:
    """What was found, in one batch or in all until now: by the name of a subject or a check."""

    matrices: int = 0
    through: Counter[str] = field(default_factory=Counter)
    """How many matrices went through each subject."""
    checked: Counter[str] = field(default_factory=Counter)
    sharp: Counter[str] = field(default_factory=Counter)
    warned: Counter[str] = field(default_factory=Counter)
    """Matrices for which a warning was due, and given."""
    worst: dict[str, float] = field(default_factory=dict)
    """The largest error, in units of what is allowed."""
    by: dict[str, Counter[str]] = field(
        default_factory=lambda: {"spectrum": Counter(), "n": Counter(), "type": Counter()}
    )
    failures: list[str] = field(default_factory=list)

    def add(self, other: "Result") -> None:
        self.matrices += other.matrices
        for mine, theirs in (
            (self.through, other.through),
            (self.checked, other.checked),
            (self.sharp, other.sharp),
            (self.warned, other.warned),
            *((self.by[key], other.by[key]) for key in self.by),
        ):
            mine.update(theirs)
        for name, value in other.worst.items():
            self.worst[name] = max(value, self.worst.get(name, 0.0))
        self.failures += other.failures

    @classmethod
    def load(cls, saved: dict[str, object]) -> "Result":
        result = cls(**saved)
        for name in ("through", "checked", "sharp", "warned"):
            setattr(result, name, Counter(getattr(result, name)))
        result.by = {key: Counter(counts) for key, counts in result.by.items()}
        return result

    def compare(self, batch: Batch, name: str, numbers: Tensor, error: Tensor, allowed: Tensor, size: Tensor) -> None:
        """Count checks and note failures: ``numbers`` of the matrices (s,), and what was measured of each (s,)."""
        useful = allowed.isfinite()
        self.checked[name] += int(useful.sum())
        self.sharp[name] += int((useful & (allowed <= SHARP * size)).sum())
        ratio = torch.where(useful, error / torch.where(allowed > 0, allowed, torch.finfo(torch.float64).tiny), 0.0)
        ratio = torch.where((error == 0) & useful, 0.0, ratio).nan_to_num(nan=torch.inf)
        self.worst[name] = max(self.worst.get(name, 0.0), float(ratio.max()))
        for i in torch.where(ratio > 1)[0].tolist()[:3]:
            where = f"matrix {int(numbers[i])}, spectrum “{batch.names[int(numbers[i])]}”"
            self.failures.append(
                f"{name}: {batch}, {where}: WRONG by {float(error[i]):.3g} where {float(allowed[i]):.3g} is allowed "
                f"and the size is {float(size[i]):.3g}"
            )


def run_batch(seed: int, number: int) -> Result:
    """Everything that a batch goes through."""
    batch = make_batch(seed, number)
    result = Result(matrices=len(batch.names))
    result.by["spectrum"].update(batch.names)
    result.by["n"][str(batch.n)] += len(batch.names)
    result.by["type"][str(batch.dtype).removeprefix("torch.")] += len(batch.names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GradientWarning)  # that there is none: it is to be finite all the same
        for subject in subjects(batch):
            _run_subject(batch, subject, result)
    _check_warnings(batch, result)
    return result


def _run_subject(batch: Batch, subject: Subject, result: Result) -> None:
    name, sample = subject.name, batch.sample
    result.through[name] += len(subject.matrices)
    try:
        A = subject.matrices.detach().requires_grad_()
        outputs = subject.function(A)
        incoming = [torch.randn(x.shape, generator=batch.generator, dtype=x.dtype) for x in outputs]
        (gA,) = torch.autograd.grad(outputs, A, incoming)
        A, outputs = A.detach(), [x.detach() for x in outputs]
        finite = gA.isfinite().flatten(1).all(1)
        for x in outputs:
            finite &= x.isfinite().reshape(len(A), -1).all(1)
        for i in torch.where(~finite)[0].tolist()[:3]:
            result.failures.append(f"{name}: {batch}, matrix {i}, spectrum “{batch.names[i]}”: not finite")
        if name == f"eigh, {RULES[0]}":
            _check_ratios(batch, "eigh", oracles.eigh_ratios(A, *outputs), outputs[0].diff(dim=-1) >= 0, result)
        if name == f"svd, {RULES[0]}":
            _check_ratios(batch, "svd", oracles.svd_ratios(A, *outputs), outputs[1].diff(dim=-1) <= 0, result)
        if subject.oracle is not None:
            sample = sample[finite[sample]]
            some = [x[sample] for x in outputs], [x[sample] for x in incoming]
            error, allowed = subject.oracle(A[sample], *some, gA[sample])
            result.compare(batch, name, sample, error, allowed, oracles.norm(gA[sample].double()))
    except Exception as error:
        result.failures.append(f"{name}: {batch}: {type(error).__name__}: {error}")


def _check_ratios(batch: Batch, name: str, ratios: tuple[Tensor, Tensor], ordered: Tensor, result: Result) -> None:
    everyone = torch.arange(len(batch.names))
    for what, ratio, limit in zip(("residual", "orthogonality"), ratios, RATIOS[name], strict=True):
        allowed = torch.full_like(ratio, limit)
        result.compare(batch, f"{name}: {what}", everyone, ratio, allowed, torch.full_like(ratio, torch.inf))
    for i in torch.where(~ordered.all(-1))[0].tolist()[:3]:
        result.failures.append(f"{name}: {batch}, matrix {i}, spectrum “{batch.names[i]}”: values out of order")


def _check_warnings(batch: Batch, result: Result) -> None:
    """Where much of a gradient is missing, or there is none, somebody was told."""
    k, eps = 1 + batch.number % (batch.n - 1), torch.finfo(batch.dtype).eps
    for i in batch.sample.tolist():
        A = batch.hermitian[i]
        G = torch.randn(A.shape, generator=batch.generator, dtype=A.dtype)
        for rule in WARNING:
            name = f"warning, {rule}"
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                actual, true, noise = oracles.loss_through_vectors(rule, A, G)
            error, size = oracles.norm(actual - true), oracles.norm(true)
            if any(issubclass(w.category, GradientWarning) for w in caught):
                result.warned[name] += int(error > MISSING * size)
                error = torch.zeros_like(error)
            allowed = MISSING * size + noise
            result.compare(
                batch, name, torch.tensor([i]), error[None], allowed[None], (size * (1 + MISSING) / SHARP)[None]
            )
        name = "warning, spectral_projector"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            spectral_projector(A / batch.scale, k)
        L = torch.linalg.eigvalsh(A.double())
        gap, size = L[batch.n - k] - L[batch.n - k - 1], L.abs().amax()
        result.checked[name] += 1
        if gap <= 0.01 * batch.n * eps * size:  # a tie for certain
            result.sharp[name] += 1
            result.warned[name] += bool(caught)
            if not caught:
                spectrum = batch.names[i]
                result.failures.append(f"{name}: {batch}, matrix {i}, spectrum “{spectrum}”: no warning of a tie")


# The run ------------------------------------------------------------------------------------------------------------


def digest() -> str:
    """A fingerprint of the library's sources: those of the lab take no part."""
    package = Path(eg.__file__).parent
    total = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        if not name.startswith("lab/"):
            total.update(name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:12]


@dataclass
class State:
    """How far a run has come: what the state file holds."""

    seed: int
    next: int = 0
    """The batch that is next."""
    seconds: float = 0.0
    sources: list[list[object]] = field(default_factory=list)
    """The library's fingerprint, with the batch from which on it was used."""
    result: Result = field(default_factory=Result)

    @classmethod
    def load(cls, path: Path) -> "State":
        saved = json.loads(path.read_text())
        return cls(**(saved | {"result": Result.load(saved["result"])}))

    def plain(self) -> dict[str, object]:
        """The same in dictionaries and lists."""
        return vars(self) | {"result": vars(self.result)}

    def save(self, path: Path) -> None:
        """Write the file as a whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        beside.write_text(json.dumps(self.plain(), indent=1, ensure_ascii=False) + "\n")
        os.replace(beside, path)


def _results(state: State, matrices: int, workers: int) -> Iterator[Result]:
    """The batches from where the state is, in order, until there are so many matrices."""
    number, total, left = state.next, state.result.matrices, []
    while total < matrices:
        left.append(number)
        total += shape(number)[1]
        number += 1
    if workers == 1:
        torch.set_num_threads(1)
        yield from (run_batch(state.seed, number) for number in left)
        return
    pool = ProcessPoolExecutor(workers, initializer=_start_worker)
    try:
        yield from pool.map(run_batch, [state.seed] * len(left), left)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    torch.set_num_threads(1)


def run(state: State, path: Path, matrices: int, workers: int) -> bool:
    """Go on from a state until there are so many matrices, keeping it after each batch. False if interrupted."""
    fingerprint = digest()
    if not state.sources or state.sources[-1][0] != fingerprint:
        state.sources.append([fingerprint, state.next])
    before, first = state.seconds, state.result.matrices
    start = shown = time.monotonic()
    interactive = sys.stdout.isatty()
    try:
        for found in _results(state, matrices, workers):
            for failure in found.failures:
                print(f"\rFAILED {failure}", flush=True)
            state.result.add(found)
            state.next += 1
            now = time.monotonic()
            state.seconds = before + now - start
            state.save(path)
            done = state.result.matrices
            if now - shown > (1 if interactive else 30) or done >= matrices:
                shown = now
                rate = (done - first) / (now - start)
                left = _span(max(0, matrices - done) / rate)
                failures = len(state.result.failures)
                line = f"{done:>10,} of {matrices:,} matrices, {rate:,.0f}/s, {left} left, {failures} failures"
                print(f"\r{line}  " if interactive else line, end="" if interactive else "\n", flush=True)
    except KeyboardInterrupt:
        print(f"\nstopped after {state.result.matrices:,} matrices; the same command goes on from {path}")
        return False
    if interactive:
        print()
    return True


def _span(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min" if seconds >= 90 else f"{seconds:.0f} s"


def report(state: State, folder: Path) -> Path:
    """Write ``fuzz.md`` and ``fuzz.json``, with the machine as all results have it."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import harness

    result = state.result
    names = dict.fromkeys([*result.through, *result.checked])
    rows = [
        {
            "subject": name,
            "matrices": f"{result.through[name] or result.checked[name]:,}",
            "compared": f"{result.checked[name]:,}",
            "sharply": f"{result.sharp[name]:,}",
            "warned": f"{result.warned[name]:,}",
            "worst": result.worst.get(name, 0.0) if result.checked[name] else "–",
        }
        for name in names
    ]
    kinds = ", ".join(f"{name}: {count:,}" for name, count in sorted(result.by["type"].items()))
    spectra = ", ".join(f"{name}: {count:,}" for name, count in sorted(result.by["spectrum"].items()))
    sizes = {
        "2–4": range(2, 5),
        "5–8": range(5, 9),
        "9–16": range(9, 17),
        "17–32": range(17, 33),
        "33–64": range(33, 65),
    }
    by_size = ", ".join(f"{key}: {sum(result.by['n'][str(n)] for n in span):,}" for key, span in sizes.items())
    sources = ", ".join(f"{name} from batch {first}" for name, first in state.sources)
    limits = "; ".join(f"{name} {residual:g} and {defect:g}" for name, (residual, defect) in RATIOS.items())
    text = f"""`make fuzz`, seed {state.seed}: **{result.matrices:,} adversarial matrices,
{len(result.failures)} failures**, in {_span(state.seconds)} ({state.next:,} batches; sources: {sources}).

{__doc__[__doc__.index("What a matrix goes through:") :].strip()}

- *matrices*: that went through; *compared*: with an oracle; *sharply*: of those, where round-off allows an error of
  less than {SHARP:.0%} of the gradient (of a warning: less than all of it); *warned*: a warning was due, and given;
  *worst*: the largest error, in units of what is allowed (more than 1 is a failure). What is allowed for residuals and
  for orthogonality, in units of n ε: {limits}.
- Types: {kinds}. Sizes: {by_size}.
- Spectra: {spectra}."""
    if result.failures:
        text += "\n\nFailures:\n\n" + "\n".join(f"- {failure}" for failure in result.failures[:50])
    harness.RESULTS = folder
    path = harness.write("fuzz", text, ["subject", "matrices", "compared", "sharply", "warned", "worst"], rows)
    saved = json.loads((folder / "fuzz.json").read_text())
    (folder / "fuzz.json").write_text(json.dumps(saved | {"state": state.plain()}, indent=1, ensure_ascii=False) + "\n")
    return path


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--matrices", type=int, default=10_000_000, help="in all, with those of earlier runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, help="only this one; nothing is kept")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes, of one thread each")
    parser.add_argument("--state", type=Path, default=ROOT / "out" / "fuzz.json", help="where the run is kept")
    parser.add_argument("--fresh", action="store_true", help="forget an earlier run")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results", help="where the report goes")
    arguments = parser.parse_args(argv)
    if arguments.batch is not None:
        torch.set_num_threads(1)
        failures = run_batch(arguments.seed, arguments.batch).failures
        print("\n".join(failures) or f"batch {arguments.batch}: nothing failed")
        return 1 if failures else 0
    state = State(arguments.seed)
    if arguments.state.exists() and not arguments.fresh:
        state = State.load(arguments.state)
        if state.seed != arguments.seed:
            parser.error(
                f"{arguments.state} is a run of seed {state.seed}: give --seed {state.seed}, --fresh or --state"
            )
        print(
            f"fuzz: going on from {arguments.state}: {state.result.matrices:,} matrices, batch {state.next}", flush=True
        )
        if state.result.matrices >= arguments.matrices:
            print("all is done: --fresh starts again, a larger --matrices goes on", flush=True)
    print(f"fuzz: seed {state.seed}, {arguments.matrices:,} matrices, {arguments.workers} workers", flush=True)
    if not run(state, arguments.state, arguments.matrices, arguments.workers):
        return 130
    print(f"written: {report(state, arguments.results)}")
    failures = state.result.failures
    print(
        f"{len(failures)} failures" + ("" if not failures else f". To repeat one: --seed {state.seed} --batch <number>")
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
