"""Single optimisations of the kernels, and what is asked of arguments, left out one at a time: what each is worth.

Machine code cannot be changed in a process that runs it, so each side is a process of its own; the two take turns.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import derivatives
from harness import write

_TURN = 0.03  # seconds of one side at a time
#: Seconds before a turn on several threads: those of the other side spin for a while yet, and calls that they make late
#: stay on one thread for 0.05 s.
_AWAKE = 0.08
_ROUNDS = 24
TEXT = """What a call takes without one optimisation over what it takes with it: ratios of medians of two processes that
take turns, each call straight after a matrix product of torch's. On one thread it is CPU time, which other processes
enter least; on more it is time. *spread*: the quartiles of the ratios of neighbouring turns. *layer* is
`DecorrelatedBatchNorm2d(64, group_size=d)`, forward + backward: the shape, d, and whether it is channels_last; *eigh*
and *vjp*: batch, n, type, and whether eigenvalues go down to 1e-36 of the largest.

An optimisation stays if some call of 10 µs or more takes at least 5 % longer without it. Gone: the prefetching of
matrices in batched QL (4096×8 0.98, 4096×16 1.02, 512×32 1.03, 64×64 1.01), and templates of results for
`torch.empty_like`, a close call: eigh 8×8 11.5 µs against 11.1 (1.04), 4×16 1.02, but the layer on 8×64×16×16, d = 4,
1.08 in twelve noisy turns; a first comparison, whose side without templates paid for a dictionary, had 1.06 for 8×8."""
CHECKS_TEXT = """What a call takes without something that is asked of its arguments over what it takes with it, measured
as in `ablation.md`. Checks make nothing faster; this is what they cost where the mathematics takes a few microseconds.

- *memory*: that every address is that of numbers, by type, device, layout and storage
- *Hermitian*: that a matrix function gets what it is for
- *call site*: whom a warning about a gradient would name
- *modes*: whether a transform, a tracer, autocast or forward mode is at work

*eigh* and *sqrt* (`matrix_sqrt`): batch, n; *and vjp*: with the gradient."""
COLUMNS = ["left out", "threads", "case", "with", "without", "without/with", "spread"]

Case = tuple[Any, ...]
LARGE, SMALL = (128, 64, 32, 32), (8, 64, 16, 16)


def layer(shape: tuple[int, ...], d: int, channels_last: bool = False) -> Case:
    return "layer", *shape, d, channels_last


def eigh(batch: int, n: int, dtype: str = "float32", graded: bool = False) -> Case:
    return "eigh", batch, n, dtype, graded


def without_huge_pages() -> None:
    from eigengrad.kernels import huge_pages, memory

    huge_pages.empty_like = memory.empty_like


def without_bmm() -> None:
    import eigengrad._inputs as inputs
    from eigengrad.gradients import rule
    from eigengrad.kernels import vjp

    for module in (inputs, rule, vjp):
        module.matmul = torch.matmul


def without_prefetch() -> None:
    from eigengrad.kernels.runtime.compile import device_function
    from eigengrad.kernels.simd import memory

    def nothing(array: Any, begin: int, end: int) -> None:
        pass

    memory.prefetch = device_function(nothing)


def without_streaming() -> None:
    from eigengrad.kernels import costs

    costs.STREAMED = 1 << 62


def without_half_registers() -> None:
    from eigengrad.kernels import eigensolvers

    eigensolvers._halves = lambda: False


def without_flushing() -> None:
    from numba import njit

    from eigengrad.kernels.simd import denormals

    denormals.suspend_denormals = njit(lambda: 0)
    denormals.restore_denormals = njit(lambda mode: None)


def without_memory_checks() -> None:
    import eigengrad.kernels.eigensolvers as eigensolvers
    from eigengrad.kernels import vjp

    for module in (eigensolvers, vjp):
        module.readable = lambda x, *expected: x
    vjp.readable_strided = lambda x, *expected: x


def without_hermitian_check() -> None:
    from eigengrad.matrix_functions import spectral

    spectral.require_hermitian = lambda *arguments: None


def without_call_site() -> None:
    import eigengrad.eigh  # noqa: F401 - the function hides the module of its name

    sys.modules["eigengrad.eigh"].call_site = lambda: None


def without_modes() -> None:
    import eigengrad.eigh  # noqa: F401
    from eigengrad import kernels
    from eigengrad.kernels import dispatch
    from eigengrad.matrix_functions import spectral

    for module in (sys.modules["eigengrad.eigh"], spectral, dispatch):
        module.is_fast_path = lambda A: True
    kernels.usable = lambda X, *others: True


def without_checks() -> None:
    for leave_out in (without_memory_checks, without_hermitian_check, without_call_site, without_modes):
        leave_out()


def without_backend(name: str) -> Callable[[], None]:
    def patch() -> None:
        from eigengrad.kernels.feature_maps import passes

        select = passes.select_backend
        passes.select_backend = lambda *sizes: "packed" if select(*sizes) == name else select(*sizes)

    return patch


_NCHW = [layer(LARGE, d) for d in (4, 16, 64)]
_HALF = [eigh(4, 16), eigh(8, 8), eigh(8, 32), eigh(2, 32, "float64"), eigh(4, 16, "float64")]
_GRADED = [eigh(512, 32), eigh(4096, 4), *(eigh(*sizes, "float32", True) for sizes in ((512, 32), (64, 64), (4096, 4)))]
_DIRECT = [layer(LARGE, 4), layer(LARGE, 8), layer(LARGE, 16), layer(SMALL, 4), layer(SMALL, 16)]
_SHUFFLE = [layer(LARGE, 4, True), layer(LARGE, 8, True), layer(SMALL, 4, True)]
_BROADCAST = [layer(LARGE, d, True) for d in (16, 32, 64)] + [layer(SMALL, d, True) for d in (16, 64)]
_CALLS = [(kind, *sizes) for sizes in ((16, 4), (4, 16), (1, 64)) for kind in ("eigh", "eigh and vjp")]
_ROOTS = [(kind, *sizes) for sizes in ((16, 4), (4, 16), (1, 64)) for kind in ("sqrt", "sqrt and vjp")]
Parts = dict[str, tuple[Callable[[], None], list[Case]]]
OPTIMISATIONS: Parts = {
    "huge pages": (without_huge_pages, _NCHW),
    "streaming stores": (without_streaming, [*_NCHW, layer(LARGE, 16, True)]),
    "prefetch": (without_prefetch, [layer(LARGE, 32), layer(LARGE, 64)]),
    "bmm for matmul": (without_bmm, [("eigenvalues vjp", 16, 4), ("eigenvalues vjp", 8, 8)]),
    "half registers": (without_half_registers, _HALF),
    "flushing of denormals": (without_flushing, _GRADED),
    "nchw_direct": (without_backend("nchw_direct"), _DIRECT),
    "nhwc_shuffle": (without_backend("nhwc_shuffle"), _SHUFFLE),
    "nhwc_broadcast": (without_backend("nhwc_broadcast"), _BROADCAST),
}
CHECKS: Parts = {
    "memory": (without_memory_checks, [*_CALLS, *_ROOTS]),
    "Hermitian": (without_hermitian_check, _ROOTS),
    "call site": (without_call_site, _CALLS),
    "modes": (without_modes, [*_CALLS, *_ROOTS]),
    "all of them": (without_checks, [*_CALLS, *_ROOTS]),
}


def run(threads: list[int]) -> Path:
    rows = [row for name in OPTIMISATIONS for count in threads for row in compare(name, count)]
    return write("ablation", TEXT, COLUMNS, rows)


def run_checks(threads: list[int]) -> Path:
    """On one thread: checks are work of Python's."""
    return write("checks", CHECKS_TEXT, COLUMNS, [row for name in CHECKS for row in compare(name, 1)])


def compare(name: str, threads: int) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        # Checks are no part of the machine code.
        cache = {} if name in CHECKS else {"NUMBA_CACHE_DIR": folder}
        sides = [Worker("", threads), Worker(name, threads, cache)]
        for case in {**OPTIMISATIONS, **CHECKS}[name][1]:
            turns = take_turns(sides, case)
            ours, other = (statistics.median(side) for side in zip(*turns, strict=True))
            lower, upper = spread(turns)
            times = f"{ours:,.1f} µs", f"{other:,.1f} µs", other / ours, f"{lower:.2f}–{upper:.2f}"
            rows.append(dict(zip(COLUMNS, (name, threads, " ".join(map(str, case)), *times), strict=True)))
        for side in sides:
            side.end()
    return rows


def take_turns(sides: list[Worker], case: Case) -> list[tuple[float, ...]]:
    """Measure a case; returns what each of the sides took in each turn, in microseconds a call."""
    for side in sides:
        side.ask(case)
    return [tuple(side.ask(None) for side in sides) for _ in range(_ROUNDS)]


def spread(turns: list[tuple[float, ...]]) -> tuple[float, float]:
    """Quartiles of the second side's time over the first's, turn by turn."""
    lower, _, upper = statistics.quantiles([turn[1] / turn[0] for turn in turns], n=4)
    return lower, upper


class Worker:
    """A process that measures with one part left out, or with none; in an environment that may have another library."""

    def __init__(self, without: str, threads: int, environment: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, __file__, without, str(threads)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            text=True,
        )

    def ask(self, case: Case | None) -> Any:
        """Prepare a case; or, without one, take a turn with it and return the median in microseconds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(case) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        """Let the process end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def work(without: str, threads: int) -> None:
    """Answer what :meth:`Worker.ask` asks."""
    if without:
        {**OPTIMISATIONS, **CHECKS}[without][0]()
    torch.set_num_threads(threads)
    clock = time.thread_time if threads == 1 else time.perf_counter
    square = torch.randn(256, 256)
    call: Callable[[], object] | None = None
    for line in sys.stdin:
        case = json.loads(line)
        if case is not None:
            call = prepared(*case)
            call()
            call()
            print("null", flush=True)
            continue
        assert call is not None
        times: list[float] = []
        begin = time.perf_counter() + (_AWAKE if threads > 1 else 0.0)
        while time.perf_counter() < begin:
            call()
        end = time.perf_counter() + _TURN
        while time.perf_counter() < end or len(times) < 3:
            torch.mm(square, square)
            begun = clock()
            call()
            times.append(clock() - begun)
        print(json.dumps(statistics.median(times) * 1e6), flush=True)


def prepared(kind: str, *sizes: Any) -> Callable[[], object]:
    import eigengrad as eg
    from eigengrad.nn import DecorrelatedBatchNorm2d

    torch.manual_seed(0)
    if kind == "layer":
        *shape, d, channels_last = sizes
        layout = torch.channels_last if channels_last else torch.contiguous_format
        x = torch.randn(shape).contiguous(memory_format=layout).requires_grad_()
        gy = torch.randn(shape).contiguous(memory_format=layout)
        norm = DecorrelatedBatchNorm2d(shape[1], group_size=d)

        def both() -> None:
            norm(x).backward(gy)
            x.grad = None

        return both
    if kind == "derivatives":
        name, batch, n = sizes
        case = derivatives.CASES[name]
        return derivatives.pass_through(case.ours, case.inputs(batch, n))
    batch, n, *more = sizes
    dtype, graded = more or ("float32", False)
    X = torch.randn(batch, n, 4 * n)
    if graded:  # eigenvalues from 1 to 1e-36: nearly all of what is computed is tiny
        X = X * torch.logspace(0, -18, n).unsqueeze(-1)
    A = (X @ X.mT / (4 * n)).to(getattr(torch, dtype))
    if kind == "eigh":
        return lambda: eg.eigh(A)
    if kind == "sqrt":
        return lambda: eg.matrix_sqrt(A)
    A.requires_grad_()
    L, V = eg.eigh(A)
    gL, gV = torch.randn(L.shape, dtype=L.dtype), torch.randn(V.shape, dtype=V.dtype)
    if kind == "eigh and vjp":
        return lambda: torch.autograd.grad(tuple(eg.eigh(A)), A, (gL, gV))
    if kind == "sqrt and vjp":
        return lambda: torch.autograd.grad(eg.matrix_sqrt(A), A, gV)
    if kind == "vjp":
        return lambda: torch.autograd.grad((L, V), A, (gL, gV), retain_graph=True)
    return lambda: torch.autograd.grad(L, A, gL, retain_graph=True)


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]))
