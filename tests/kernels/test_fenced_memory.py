"""Kernels touch no byte outside the memory they are given: every block ends, or begins, at a page that faults.

The cases run in processes of their own, with the allocator of ``fenced_memory.c`` in front of glibc's. It fences the
tensors that torch makes (inputs, results, gradients, packed weights) and the scratch arrays that kernels make. A case
is written to a log before it runs, so that after a crash the last line names the shape.

By hand: ``LD_PRELOAD=<library> python test_fenced_memory.py <library> <log> <threads> quick|slow [part of a case]``.
"""

import contextlib
import ctypes
import functools
import importlib
import inspect
import itertools
import json
import math
import mmap
import os
import pkgutil
import platform
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import eigengrad as eg
from eigengrad import kernels
from eigengrad.nn import functional
from eigengrad.nn.group_whitening import group_whiten
from eigengrad.nn.second_order_pool import METHODS
from layers_matrix import LAYERS

F32, F64 = torch.float32, torch.float64
DTYPES = (F32, F64)
SOURCE = Path(__file__).with_name("fenced_memory.c")
MODES = {"END": 1, "TIGHT": 2, "BEGIN": 3}  # as in the C file
IN_TURN = ("TIGHT", "BEGIN", "TIGHT", "BEGIN", "END")  # TIGHT sees all that END sees, but alignment is as asked in END
KINDS = ("tensors", "malloc", "scratch")
COMPILER = shutil.which("cc")

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pages are fenced by Linux's mprotect"),
    pytest.mark.skipif(mmap.PAGESIZE != 4096, reason="counts in pages of 4 KiB"),
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="stands in front of glibc's allocator"),
    pytest.mark.skipif(COMPILER is None, reason="there is no C compiler (cc)"),
    pytest.mark.skipif(not kernels.available(), reason="the extra `fast` is not installed"),
]


# Cases --------------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """Something to run, and a line that says all of its sizes."""

    text: str
    run: Callable[[], Iterable[Tensor | None]]


def case(function: Callable[..., Iterable[Tensor | None]], *arguments: object) -> Case:
    named = zip(inspect.signature(function).parameters, arguments, strict=True)
    text = " ".join(f"{name}={argument}" for name, argument in named)
    return Case(f"{function.__name__} {text}", functools.partial(function, *arguments))


RULES = {
    repr(rule): rule
    for rule in (
        eg.Saturate(),
        eg.Taylor(),
        eg.Taylor(eps=1e-2),
        eg.Clip(),
        eg.Lorentzian(),
        eg.Mask(),
        eg.Truncate(),
        eg.Truncate(rank=1),
        eg.Exact(),
    )
}


def _spaced(x: Tensor) -> Tensor:
    return torch.zeros(*x.shape, 2, dtype=x.dtype)[..., 1].copy_(x)


def _shifted(x: Tensor) -> Tensor:
    """A view that is dense, begins one number into its memory, and ends where that ends."""
    return torch.empty(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape).copy_(x)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x.contiguous(),
    "transposed": lambda x: x.mT.contiguous().mT,
    "spaced": _spaced,
    "shifted": _shifted,
    "expanded": lambda x: x[:1].expand_as(x),
    "batch_last": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0),
}
MAP_LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "NCHW": lambda x: x.contiguous(),
    "channels_last": lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1),
    "shifted": _shifted,
    "shifted channels_last": lambda x: _shifted(x.movedim(1, -1)).movedim(-1, 1),
    "spaced": _spaced,
    "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "expanded": lambda x: x[:1].expand_as(x),
}


def symmetric(batch: int, n: int, dtype: torch.dtype) -> Tensor:
    X = torch.randn(batch, n, n, dtype=dtype)
    return X + X.mT


def positive(batch: int, n: int, dtype: torch.dtype) -> Tensor:
    X = torch.randn(batch, n, n, dtype=dtype)
    return X @ X.mT / n + 0.5 * torch.eye(n, dtype=dtype)


def gradients(outputs: Iterable[Tensor], inputs: Iterable[Tensor], layout: str = "contiguous") -> list[Tensor | None]:
    """Gradients of all inputs for random ones of all outputs, in a layout of matrices."""
    outputs, inputs = list(outputs), list(inputs)
    seeds = [torch.randn_like(y) for y in outputs]
    seeds = [LAYOUTS[layout](g) if g.ndim > 2 else g for g in seeds]
    return [*outputs, *torch.autograd.grad(outputs, inputs, seeds, allow_unused=True)]


def eigh(batch: int, n: int, dtype: torch.dtype, layout: str, rule: str, uplo: str, wanted: str) -> list[Tensor | None]:
    A = LAYOUTS[layout](symmetric(batch, n, dtype)).requires_grad_()
    L, V = eg.eigh(A, uplo, gradient=RULES[rule])
    return gradients({"both": (L, V), "values": (L,), "vectors": (V,)}[wanted], (A,), layout)


def eigvalsh(batch: int, n: int, dtype: torch.dtype, layout: str) -> list[Tensor | None]:
    A = LAYOUTS[layout](symmetric(batch, n, dtype)).requires_grad_()
    return gradients((eg.eigvalsh(A),), (A,))


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "matrix_sqrt": eg.matrix_sqrt,
    "matrix_inv_sqrt": eg.matrix_inv_sqrt,
    "matrix_log": eg.matrix_log,
    "matrix_exp": eg.matrix_exp,
    "matrix_power": lambda A: eg.matrix_power(A, 0.3),
    "logdet": eg.logdet,
    "spectral_projector": lambda A: eg.spectral_projector(A, k=1),
    "nuclear_norm": eg.nuclear_norm,
    "newton_schulz_sqrt": eg.newton_schulz_sqrt,
    "newton_schulz_inv_sqrt": eg.newton_schulz_inv_sqrt,
    "polar": lambda A: eg.polar(A)[0],
    "pinv": eg.pinv,
}
WITH_KERNELS = ("matrix_sqrt", "matrix_inv_sqrt")


def matrix_function(name: str, batch: int, n: int, dtype: torch.dtype, layout: str) -> list[Tensor | None]:
    A = LAYOUTS[layout](positive(batch, n, dtype)).requires_grad_()
    return gradients((FUNCTIONS[name](A),), (A,), layout)


def feature_maps(shape: tuple[int, ...], dtype: torch.dtype, layout: str) -> Tensor:
    return MAP_LAYOUTS[layout](torch.randn(shape, dtype=dtype) + 0.5)


def whitening_layer(
    kind: str, shape: tuple[int, ...], d: int, dtype: torch.dtype, layout: str, affine: str, wanted: str
) -> list[Tensor | None]:
    """A layer of ``layers_matrix`` in training, with the gradients of x, of its parameters or of both; then in eval."""
    options = {"affine": affine != "none", "bias": affine == "both", "group_size": d}
    layer = next(layer for layer in LAYERS if layer.name == kind).make(shape[1], len(shape), dtype, **options)
    x = feature_maps(shape, dtype, layout)
    parameters = list(layer.parameters()) if wanted != "x" else []
    inputs = [*([x.requires_grad_()] if wanted != "parameters" or not parameters else []), *parameters]
    for p in layer.parameters():
        p.requires_grad_(wanted != "x")
    results = []
    if wanted == "nothing":
        with torch.no_grad():
            results.append(layer(x))
    else:
        results += gradients((layer(x),), inputs)
    layer.eval()
    return [*results, *gradients((layer(x),), inputs), layer.running_covariance]


def group_of_processes(shape: tuple[int, ...], d: int, dtype: torch.dtype, layout: str) -> list[Tensor | None]:
    """Whitening with the statistics of all processes (one, here), whose backward pass goes step by step."""
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    x, weight, bias = feature_maps(shape, dtype, layout), *torch.ones(2, shape[1], dtype=dtype)
    x, weight, bias = (t.detach().requires_grad_() for t in (x, weight, bias))
    root = functools.partial(eg.matrix_inv_sqrt, eps=1e-2)
    found = group_whiten(x, weight, bias, shape[1] // d, root, torch.distributed.group.WORLD, 1e-2)
    return gradients((found.output,), (x, weight, bias))


def whiten_color(
    shape: tuple[int, ...], style: tuple[int, ...], d: int, dtype: torch.dtype, layouts: tuple[str, str], alpha: object,
    per_sample: bool, gradient: str,
) -> list[Tensor | None]:  # fmt: skip
    x, s = (
        feature_maps(size, dtype, layout).requires_grad_() for size, layout in zip((shape, style), layouts, strict=True)
    )
    blend = torch.tensor(0.7, dtype=dtype, requires_grad=True) if alpha == "tensor" else alpha
    options = {"groups": shape[1] // d, "alpha": blend, "per_sample": per_sample, "eps": 1e-2, "gradient": gradient}
    y = functional.whiten_color(x, s, **options)
    return gradients((y,), (x, s, *([blend] if alpha == "tensor" else [])))


def second_order_pool(method: str, shape: tuple[int, ...], dtype: torch.dtype, layout: str) -> list[Tensor | None]:
    x = feature_maps(shape, dtype, layout).requires_grad_()
    return gradients((functional.second_order_pool(x, method=method),), (x,))


# Which cases --------------------------------------------------------------------------------------------------------


def every_kernel() -> Iterator[Case]:
    """Cases that reach every kernel in both types, as far as vectors of this width have one."""
    for dtype, (batch, n) in itertools.product(DTYPES, [(9, 3), (33, 12), (3, 12), (1, 40), (2, 70), (1, 90), (5, 33)]):
        for rule in (repr(eg.Saturate()), repr(eg.Taylor())):
            yield case(eigh, batch, n, dtype, "contiguous", rule, "L", "both")
        for name in WITH_KERNELS:
            yield case(matrix_function, name, batch, n, dtype, "contiguous")
    maps = [((5, 32, 3, 3), 8), ((5, 32, 3, 3), 4), ((3, 32, 5, 5), 16), ((2, 64, 3, 7), 32), ((3, 9, 5, 3), 3)]
    maps += [((2, 16, 4, 8), 8), ((2, 16, 4, 8), 16), ((2, 40, 4, 8), 20)]
    for dtype, layout, (shape, d) in itertools.product(DTYPES, ("NCHW", "channels_last"), maps):
        for kind, wanted in (("zca", "both"), ("zca", "parameters"), ("pca", "both"), ("iternorm", "both")):
            yield case(whitening_layer, kind, shape, d, dtype, layout, "both", wanted)
        yield case(group_of_processes, shape, d, dtype, layout)
        for per_sample in (True, False):
            yield case(whiten_color, shape, shape, d, dtype, (layout, layout), 0.5, per_sample, "exact")


def large_maps() -> Iterator[Case]:
    """Maps whose results are streamed past the caches, on huge pages, and summed by several threads."""
    for layout, (shape, d) in itertools.product(
        ("NCHW", "channels_last"), [((8, 64, 64, 64), 8), ((9, 64, 63, 61), 16), ((8, 64, 64, 64), 64)]
    ):
        yield case(whitening_layer, "zca", shape, d, F32, layout, "both", "both")


def _map_shape(choose: random.Random) -> tuple[tuple[int, ...], int]:
    """The shape of a feature map with more than one point, and the size of a group of its channels."""
    d = choose.choice([*range(1, 13), 15, 16, 17, 20, 24, 31, 32, 33, 48, 64, 80, 96])
    groups = choose.choice([1, 2, 3, 4, 5, 7, 8, 16][: max(1, min(8, 160 // d))])
    samples = choose.choice([1, 2, 3, 4, 5, 7, 8, 9, 16, 33])
    spatial = (choose.choice([1, 2, 3, 4, 5, 7, 8, 9, 11, 13, 16, 17]), choose.choice([1, 3, 4, 5, 8, 9, 15, 16, 17]))
    ndim = choose.choice([2, 3, 4, 4, 4, 4, 4, 5])
    shape = (samples, groups * d, *{2: (), 3: spatial[:1], 4: spatial, 5: (2, *spatial)}[ndim])
    return (shape, d) if samples * math.prod(shape[2:]) > 1 else ((2, *shape[1:]), d)


def sampled_matrices(choose: random.Random, sizes: Iterable[tuple[int, int]]) -> Iterator[Case]:
    """Cases for matrices of each (batch, n) in both types: eigh, and perhaps a function of them; the rest by chance."""
    layouts, others = list(LAYOUTS), [name for name in FUNCTIONS if name not in WITH_KERNELS]
    for (batch, n), dtype in itertools.product(sizes, DTYPES):
        rule, wanted = choose.choice(list(RULES)), choose.choice(["both", "both", "values", "vectors"])
        yield case(eigh, batch, n, dtype, choose.choice(layouts), rule, choose.choice("LU"), wanted)
        roll = choose.random()
        if roll < 0.5:
            yield case(matrix_function, choose.choice(WITH_KERNELS), batch, n, dtype, choose.choice(layouts))
        elif roll < 0.7:
            yield case(eigvalsh, batch, n, dtype, choose.choice(layouts))
        elif roll < 0.8 and n <= 70:
            yield case(matrix_function, choose.choice(others), batch, n, dtype, choose.choice(layouts))


def sampled_maps(choose: random.Random, count: int) -> Iterator[Case]:
    """Cases for so many feature maps, most of them whitening layers."""
    # Power iteration is left out: it is thousands of torch's products, and no kernel.
    kinds = [layer.name for layer in LAYERS if layer.name not in ("zca-power_iteration", "zca-pi")]
    methods = [name for name in METHODS if name != "svd_pi"]
    for _ in range(count):
        (shape, d), dtype = _map_shape(choose), choose.choice(DTYPES)
        layout, roll = choose.choice([*MAP_LAYOUTS, "NCHW", "channels_last", "channels_last"]), choose.random()
        if roll < 0.6:
            kind = choose.choice([*kinds, *["zca"] * 15, "iternorm"])
            affine = choose.choice(["both", "both", "weight", "none"])
            wanted = choose.choice(["both"] * 6 + ["x"] * 3 + ["parameters"] * 3 + ["nothing"] * 3)
            yield case(whitening_layer, kind, shape, d, dtype, layout, affine, wanted)
        elif roll < 0.7:
            yield case(group_of_processes, shape, d, dtype, layout)
        elif roll < 0.9:
            shape = (*shape[:2], *_positions(shape[2:]))
            style = (choose.choice([1, shape[0]]), shape[1], *_positions(_map_shape(choose)[0][2:]))
            layouts, alpha = (layout, choose.choice(list(MAP_LAYOUTS))), choose.choice([1.0, 0.4, "tensor"])
            gradient = choose.choice(["exact", "exact", "exact", "taylor"])
            yield case(whiten_color, shape, style, d, dtype, layouts, alpha, choose.random() < 0.5, gradient)
        else:
            spatial = (*shape[2:], 3, 3)[:2]
            yield case(second_order_pool, choose.choice(methods), (*shape[:2], *spatial), dtype, layout)


def _positions(spatial: tuple[int, ...]) -> tuple[int, ...]:
    """``spatial`` if there is more than one position, which colouring needs."""
    return spatial if math.prod(spatial) > 1 else (3, 2)


def quick_cases(threads: int) -> list[Case]:
    """All n to 70 and some to 200, with batches by chance, and feature maps; for several threads a part of that."""
    choose = random.Random(threads)
    matrices = [(choose.randint(1, 35), n) for n in range(threads, 71, threads)]
    matrices += [(choose.randint(1, 3), choose.randint(71, 200)) for _ in range(5)]
    return [*sampled_matrices(choose, matrices), *sampled_maps(choose, 250 // threads), *list(large_maps())[threads::3]]


def slow_cases(threads: int) -> list[Case]:
    """All n to 70 with all batches to 35, some n to 200, every rule and root at every n, thousands of feature maps.

    For several threads a part of the batches and of the maps: on a busy machine they wait for each other.
    """
    choose = random.Random(threads)
    matrices = [(batch, n) for n in range(1, 71) for batch in range(threads, 36, threads)]
    matrices += [(choose.randint(1, 5), n) for n in range(71, 201)]
    found = [*sampled_matrices(choose, matrices), *sampled_maps(choose, 8000 // threads**2), *large_maps()]
    for rule, n, dtype in itertools.product(RULES, range(1, 71), DTYPES):
        found.append(case(eigh, choose.randint(1, 35), n, dtype, choose.choice(list(LAYOUTS)), rule, "L", "both"))
    for name, n, dtype in itertools.product(WITH_KERNELS, range(1, 71), DTYPES):
        found.append(case(matrix_function, name, choose.randint(1, 35), n, dtype, choose.choice(list(LAYOUTS))))
    return found


# The process that runs them -----------------------------------------------------------------------------------------


class Fence:
    """The preloaded allocator; it must also get the requests of numba's kernels."""

    def __init__(self, library: str) -> None:
        import resource

        from llvmlite import binding
        from numba.core.registry import cpu_target
        from numba.core.runtime import _nrt_python, rtsys

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # crashes are expected, and a core would have all pages
        self.library = ctypes.CDLL(library)
        self.library.fenced_count.restype = ctypes.c_long
        rtsys.initialize(cpu_target.target_context)  # registers numba's own function, which is replaced below
        helpers = _nrt_python.c_helpers
        api = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p))(helpers["get_api"])()
        manage_memory = api[2]  # the third member of NRT_api_functions, in nrt_external.h
        self.library.fenced_numba(ctypes.c_void_p(manage_memory), ctypes.c_void_p(helpers["MemInfo_alloc_aligned"]))
        place = ctypes.cast(self.library.fenced_numba_alloc, ctypes.c_void_p).value
        binding.add_symbol("NRT_MemInfo_alloc_aligned", place)

    @contextlib.contextmanager
    def on(self, mode: str) -> Iterator[None]:
        self.library.fenced_mode(MODES[mode])
        try:
            yield
        finally:
            self.library.fenced_mode(0)

    def counts(self) -> dict[str, int]:
        return {kind: self.library.fenced_count(number) for number, kind in enumerate(KINDS)}


def record_kernels() -> set[tuple[str, str, str]]:
    """A set to which every kernel that is loaded from now on is added: module, name, type of number."""
    from eigengrad.kernels.runtime.compile import Kernel

    loaded: set[tuple[str, str, str]] = set()
    original = Kernel.launcher

    def launcher(kernel: Kernel, number: str) -> object:
        loaded.add((kernel.function.__module__, kernel.function.__qualname__, number))
        return original(kernel, number)

    Kernel.launcher = launcher
    return loaded


def existing_kernels() -> set[tuple[str, str]]:
    """Module and name of all kernels."""
    from eigengrad.kernels.runtime.compile import Kernel

    names = [info.name for info in pkgutil.walk_packages(kernels.__path__, f"{kernels.__name__}.")]
    members = [member for name in names for member in vars(importlib.import_module(name)).values()]
    found = [member.function for member in members if isinstance(member, Kernel)]
    return {(function.__module__, function.__qualname__) for function in found}


def share_all_work() -> None:
    """Let threads share work however small it is, and however late one of them was."""
    from eigengrad.kernels import costs
    from eigengrad.kernels.runtime import launch

    for module, name, value in ((costs, "THREAD_COST", 1e-3), (launch, "_LATE_BY", math.inf)):
        assert hasattr(module, name)
        setattr(module, name, value)


def finite(results: Iterable[Tensor | None]) -> bool:
    return all(result is None or bool(torch.isfinite(result).all()) for result in results)


def run_cases(library: str, log: str, threads: str, size: str, part: str = "") -> None:
    """Run all cases behind fences, and print a report in JSON."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(int(threads))
    loaded = record_kernels()
    if int(threads) > 1:
        share_all_work()
    fence = Fence(library)
    known = list(every_kernel())
    with open(log, "w", buffering=1) as lines:

        def results(case: Case, mode: str, number: int) -> Iterable[Tensor | None]:
            torch.manual_seed(number)
            with contextlib.nullcontext() if mode == "OFF" else fence.on(mode):
                return case.run()

        def run(case: Case, mode: str, number: int) -> None:
            lines.write(f"{mode} {case.text}\n")
            # Fresh memory is NaN: numbers that nobody wrote would show. Some gradients are infinite in any memory.
            if not finite(results(case, mode, number)):
                assert not finite(results(case, "OFF", number)), f"not finite: {mode} {case.text}"

        for number, each in enumerate(known):  # compiles what is not compiled yet
            run(each, "OFF", number)
        chosen = {"quick": quick_cases, "slow": slow_cases}[size](int(threads))
        chosen = [each for each in [*known, *chosen] if part in each.text]
        seconds, runs = time.perf_counter(), 0
        for number, each in enumerate(chosen):
            alone = threads == "1" and (size == "slow" or number < len(known))
            for mode in MODES if alone else [IN_TURN[number % len(IN_TURN)]]:
                run(each, mode, number)
                runs += 1
    report = {
        "cases": len({each.text for each in chosen}),
        "runs": runs,
        "seconds": time.perf_counter() - seconds,
        "fenced": fence.counts(),
        "loaded": sorted(loaded),
        "exist": sorted(existing_kernels()),
    }
    print(json.dumps(report))


# Accesses that must be caught ---------------------------------------------------------------------------------------


def _touch(place: int, write: bool) -> None:
    byte = ctypes.c_ubyte.from_address(place)
    if write:
        byte.value = 0x5A
    else:
        _ = byte.value


def tensor_beyond(size: int, write: bool) -> None:
    x = torch.zeros(size)
    _touch(x.data_ptr() + 4 * size, write)


def tensor_before(size: int, write: bool) -> None:
    x = torch.zeros(size)
    _touch(x.data_ptr() - 1, write)


def tensor_freed(size: int, write: bool) -> None:
    x = torch.zeros(size)
    place = x.data_ptr()
    del x
    _touch(place, write)


@functools.cache
def _scratch_kernel() -> Callable[[int, int, bool], float]:
    """A kernel that reads or writes an entry of an array of its own, which need not be within."""
    import numpy as np
    from numba import njit

    @njit(boundscheck=False)
    def kernel(size, index, write):
        array = np.empty(size, np.float32)
        array[:] = 1
        place = np.uint64(index)  # of a signed type it would be counted from the end
        if write:
            array[place] = 2
        return array[place]

    return kernel


def scratch_beyond(size: int, write: bool) -> None:
    _scratch_kernel()(size, size, write)


def scratch_before(size: int, write: bool) -> None:
    _scratch_kernel()(size, -1, write)


def nothing(size: int, write: bool) -> None:
    torch.zeros(size).add_(1)
    _scratch_kernel()(size, size - 1, write)


#: An access, the mode, how many numbers of 4 bytes the block has (whole cache lines, or not), and whether it writes.
PROBES = list(
    itertools.product(
        (nothing, tensor_beyond, tensor_before, tensor_freed, scratch_beyond, scratch_before),
        MODES,
        (16, 37),
        (False, True),
    )
)


def expected_end(probe: Callable[[int, bool], None], mode: str, size: int, write: bool) -> int:
    """How a process ends that makes the access: by a fault at a fence, or by a pattern that is found changed."""
    if probe is nothing:
        return 0
    at_fence = {
        tensor_freed: True,
        tensor_beyond: mode == "TIGHT" or (mode == "END" and size == 16),
        tensor_before: mode == "BEGIN",
    }
    at_fence |= {scratch_beyond: at_fence[tensor_beyond], scratch_before: at_fence[tensor_before]}
    if at_fence[probe]:
        return -signal.SIGSEGV
    return -signal.SIGABRT if write else 0  # what is read next to a block, on its own pages, is not seen


def run_probes(library: str) -> None:
    """Make each access in a child of its own, and print in JSON how the children ended."""
    torch.set_num_threads(1)
    fence = Fence(library)
    _scratch_kernel()(5, 0, True)
    ends = []
    for probe, mode, size, write in PROBES:
        child = os.fork()
        if child == 0:
            with fence.on(mode):
                probe(size, write)
            os._exit(0)
        ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(json.dumps(ends))


# Tests --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("fence") / "fenced_memory.so"
    command = [COMPILER, "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", path, SOURCE]
    subprocess.run(command, check=True)
    return str(path)


def in_fenced_process(library: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    about = {"LD_PRELOAD": library, "PYTHONFAULTHANDLER": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    about["OMP_WAIT_POLICY"] = "PASSIVE"  # threads that spin would take the core from those they wait for
    command = [sys.executable, __file__, library, *arguments]
    return subprocess.run(command, env=os.environ | about, capture_output=True, text=True, timeout=3600)


def test_accesses_outside_of_a_block_are_caught(library):
    """The fence itself: one byte beyond, one before, and after free; by a fault, or by the pattern around a block."""
    done = in_fenced_process(library)
    assert done.returncode == 0, done.stderr[-3000:]
    ends = json.loads(done.stdout)
    for (probe, *how), end in zip(PROBES, ends, strict=True):
        assert end == expected_end(probe, *how), (probe.__name__, *how)


def assert_kernels_stay_inside(library: str, log: Path, threads: int, size: str) -> dict[str, object]:
    """No case crashes, every kernel is among those that ran, and tensors and scratch had fences; the report."""
    from eigengrad.kernels.simd.vectors import BYTES

    done = in_fenced_process(library, str(log), str(threads), size)
    if done.returncode != 0:
        lines = log.read_text().splitlines() or ["nothing"]
        how = f"by signal {-done.returncode}" if done.returncode < 0 else f"with code {done.returncode}"
        pytest.fail(f"ended {how} in case {len(lines)}: {lines[-1]}\n{done.stderr[-4000:]}", pytrace=False)
    report = json.loads(done.stdout.splitlines()[-1])
    exist = {(module, name) for module, name in report["exist"]}
    loaded = {(module, name, number) for module, name, number in report["loaded"]}
    assert len(exist) > 20
    if BYTES == 64:
        assert loaded == {(*kernel, number) for kernel in exist for number in ("float32", "float64")}
    else:  # there is no kernel for half vectors, and some need four numbers in one
        assert len(exist - {kernel[:2] for kernel in loaded}) <= 1
    for kind in ("tensors", "scratch"):
        assert report["fenced"][kind] > report["runs"]
    return report


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_kernels_stay_inside_their_memory(threads, library, tmp_path):
    report = assert_kernels_stay_inside(library, tmp_path / "log", threads, "quick")
    assert report["cases"] > 400


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_kernels_stay_inside_their_memory_at_every_size(threads, library, tmp_path):
    report = assert_kernels_stay_inside(library, tmp_path / "log", threads, "slow")
    assert report["cases"] > 5000


if __name__ == "__main__":
    (run_cases if len(sys.argv) > 2 else run_probes)(*sys.argv[1:])
