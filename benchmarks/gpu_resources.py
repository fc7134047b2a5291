"""Compile the GPU kernels for A100, H100 and MI300 without a GPU: registers, memory, instructions, and predicted times.

Needs triton, whose wheel brings ptxas and cuobjdump. Writes ``benchmarks/results/gpu_resources.md``.

    python benchmarks/gpu_resources.py
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from eigengrad.kernels.gpu import launch
from eigengrad.kernels.gpu.feature_maps import affine, moments
from eigengrad.kernels.gpu.jacobi_lanes import jacobi_lanes
from eigengrad.kernels.gpu.jacobi_program import jacobi_program
from eigengrad.kernels.gpu.vjp import FUNCTIONS, RULES, function_vjp, rule_vjp

RESULTS = Path(__file__).parent / "results" / "gpu_resources.md"
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
TYPES = ("fp32", "fp64")

# A100 (SXM): multiprocessors, clock in Hz, bytes a second; warps and registers of each; a launch in seconds.
MULTIPROCESSORS, HERTZ, BANDWIDTH, WARPS, REGISTERS, LAUNCH = 108, 1.41e9, 1.555e12, 64, 65536, 4e-6
# Guesses, which a measurement is to replace: warp instructions that a multiprocessor issues in a cycle, of 4, in code
# that waits for shuffles and roots; cycles between an instruction of a warp and its next; cycles that a step waits for
# its roots and exchanges on top of that.
ISSUED, PACE, STEP_LATENCY = 2.2, 1.8, 250
# Sweeps until convergence of random symmetric float32 matrices (mean of 16; for n = 3 of the slowest of 32 lanes),
# counted with the kernels' steps in torch. Clusters take up to twice as many.
SWEEPS = {3: 4.0, 16: 5.6, 32: 6.3, 64: 7.2}
CASES = ((4096, 16), (512, 32), (512, 3), (500, 64))
SIZES = (2, 3, 4, 8, 16, 32, 64)
# The whitening layer: a feature map, and how many times each pass reads or writes one of its size, by a kernel and in
# torch operations in its place (nn/passes.py). Statistics begin with a sum of torch's, in both. In torch operations
# alone the points are centred once in each direction, and the passes are 16 in all.
MAP, WIDTHS = (128, 64, 32, 32), (16, 32)
PASSES = {"covariance": (2, 4), "apply": (2, 4), "backward sums": (2, 5), "backward apply": (3, 5)}


class Build(NamedTuple):
    """What the compiler says about one kernel."""

    registers: int
    stack: int  # bytes a thread: spills
    shared: int  # bytes a program
    instructions: int
    loops: tuple[
        int, ...
    ]  # instructions of the innermost loops, longest first: a Jacobi step (n ≤ 4: a sweep), products
    seconds: float


def compile_kernel(kernel: Any, pointers: dict[str, str], integers: Iterable[str], constants: dict[str, Any],
                   target: GPUTarget, warps: int) -> Build:  # fmt: skip
    signature = pointers | dict.fromkeys(integers, "i32") | dict.fromkeys(constants, "constexpr")
    ordered = {name: signature[name] for name in kernel.arg_names}
    begin = time.perf_counter()
    source = ASTSource(kernel, signature=ordered, constexprs=constants)
    built = triton.compile(source, target=target, options={"num_warps": warps, **launch.OPTIONS})
    seconds = time.perf_counter() - begin
    read = _read_sass if target.backend == "cuda" else _read_gcn
    registers, stack, listing = read(built)
    return Build(registers, stack, built.metadata.shared, len(listing), _innermost_loops(listing), seconds)


def _read_sass(built: Any) -> tuple[int, int, list[tuple[int, str]]]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        tool = [str(TOOLS / "cuobjdump")]
        usage = subprocess.run([*tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
        sass = subprocess.run([*tool, "-sass", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", usage.stdout)
    assert found is not None
    listing = re.findall(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", sass, re.M)
    return int(found[1]), int(found[2]) + int(found[3]), [(int(place, 16), text) for place, text in listing]


def _read_gcn(built: Any) -> tuple[int, int, list[tuple[int, str]]]:
    text = built.asm["amdgcn"]
    values = {
        key: int(re.search(rf"\.{key}:\s+(\d+)", text)[1]) for key in ("vgpr_count", "private_segment_fixed_size")
    }
    body = text[: text.index(".section", text.index("s_endpgm"))]
    lines = [
        line.strip() for line in body.splitlines() if re.match(r"\s+[sv]_|\s+(ds|global|flat|buffer|scratch)_", line)
    ]
    return values["vgpr_count"], values["private_segment_fixed_size"], list(enumerate(lines))


def _innermost_loops(listing: list[tuple[int, str]]) -> tuple[int, ...]:
    """The lengths of the loops that have no loop inside, from the backward branches of SASS, longest first."""
    loops = []
    for place, text in listing:
        found = re.search(r"\bBRA\b.*0x([0-9a-f]+)", text)
        if found and int(found[1], 16) < place:
            loops.append((int(found[1], 16), place))
    inner = [a for a in loops if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    return tuple(sorted((sum(begin <= place <= end for place, _ in listing) for begin, end in inner), reverse=True))


def solver(n: int, kind: str, target: GPUTarget) -> Build:
    how = launch.SolverLaunch.of(n)
    constants = {"n": n, "LANES": how.block} if how.lanes else {"N": how.block}
    integers = ("stride_matrix", "stride_row", "stride_column", "batch" if how.lanes else "n")
    pointers = {"A": f"*{kind}", "L": f"*{kind}", "V": f"*{kind}", "STATUS": "*i32"}
    kernel = jacobi_lanes if how.lanes else jacobi_program
    return compile_kernel(kernel, pointers, integers, constants, target, how.warps)


def rule(n: int, kind: str, target: GPUTarget, name: str, first: float) -> Build:
    how = launch.VjpLaunch.of(n)
    pointers = dict.fromkeys(("L", "V", "GL", "GV", "OUT"), f"*{kind}")
    integers = ("n", *(f"{t}_{axis}" for t in ("v", "g") for axis in ("matrix", "row", "column")))
    constants = {"RULE": RULES[name], "first": first, "second": -1.0, "LIFT": 75, "HAS_GL": True, "N": how.block}
    return compile_kernel(rule_vjp, pointers, integers, constants, target, how.warps)


def function(n: int, kind: str, target: GPUTarget, name: str) -> Build:
    how = launch.VjpLaunch.of(n)
    pointers = dict.fromkeys(("L", "V", "G", "OUT"), f"*{kind}")
    integers = ("n", *(f"{t}_{axis}" for t in ("v", "g") for axis in ("matrix", "row", "column")))
    constants = {"FUNCTION": FUNCTIONS[name], "N": how.block}
    return compile_kernel(function_vjp, pointers, integers, constants, target, how.warps)


def feature_map_pass(name: str, d: int, kind: str, target: GPUTarget, channels_last: bool) -> Build:
    """A pass of whitening over maps in groups of d channels."""
    sums, two = name in ("covariance", "backward sums"), name.startswith("backward")
    how = launch.MapLaunch.of(MAP[1], d, sums)
    kernel, flag, maps = (moments, {"SAME": not two}, ("X", "Y", "CENTRE", "PRODUCTS", "SUMS")) if sums else (
        affine, {"TWO": two}, ("X", "Y", "CENTRE", "B", "A", "OFFSET", "OUT")
    )  # fmt: skip
    unit = "stride_channel" if channels_last else "stride_position"  # triton makes a constant of a stride of one
    integers = [a for a in kernel.arg_names if a not in (*maps, *flag, "D", "P", unit)]
    constants = flag | {"D": how.block, "P": how.points, unit: 1}
    return compile_kernel(kernel, dict.fromkeys(maps, f"*{kind}"), integers, constants, target, how.warps)


def predict_pass(name: str, build: Build, d: int) -> tuple[float, float, float, float]:
    """Seconds of a pass over MAP in float32: predicted, issue of instructions, its memory traffic, that of torch."""
    sums = name in ("covariance", "backward sums")
    how = launch.MapLaunch.of(MAP[1], d, sums)
    elements = MAP[0] * MAP[1] * MAP[2] * MAP[3]
    tiles = elements / (how.width * how.points)
    instructions = build.loops[0] if sums else build.instructions
    issue = tiles * how.warps * instructions / (MULTIPROCESSORS * ISSUED * HERTZ)
    own, torchs = (times * elements * 4 / BANDWIDTH for times in PASSES[name])
    own_kernel = (PASSES[name][0] - (1 if name == "covariance" else 0)) * elements * 4 / BANDWIDTH
    return LAUNCH + max(issue, own_kernel) + (own - own_kernel), issue, own, torchs


def predict(build: Build, batch: int, n: int) -> tuple[float, float, float]:
    """Seconds on an A100 in all, and the two bounds: issue of instructions, latency of a program times waves."""
    how = launch.SolverLaunch.of(n)
    programs = -(-batch // how.block) if how.lanes else batch
    steps = SWEEPS[n] if how.lanes else SWEEPS[n] * (how.block - 1)
    step, rest = build.loops[0], build.loops[1:]
    straight = build.instructions - sum(build.loops)
    # The second phase's steps are among the loops too: it is the same code, counted by ``steps``.
    products = 0 if how.lanes else sum(sorted(rest)[:6]) * how.block
    instructions = steps * step + products + straight
    issue = programs * how.warps * instructions / (MULTIPROCESSORS * ISSUED * HERTZ)
    resident = min(WARPS // how.warps, REGISTERS // (build.registers * 32 * how.warps))
    waves = -(-programs // (MULTIPROCESSORS * resident))
    latency = waves * (instructions * PACE + steps * STEP_LATENCY) / HERTZ
    memory = batch * (2 * n * n + n) * 4 / BANDWIDTH
    return LAUNCH + max(issue, latency, memory), issue, latency


def main() -> None:
    lines = [
        "# GPU kernels, compiled without a GPU",
        "",
        f"By `benchmarks/gpu_resources.py` with triton {triton.__version__}. Nothing here has run on a GPU: registers,",
        "memory and instructions are what the compilers say (ptxas, LLVM), times are predictions of the model below.",
        "",
        "## Resources",
        "",
        "Registers and spilled bytes a thread, shared memory a program, machine instructions in all and in the longest",
        "innermost loop (a Jacobi step; for n ≤ 4 a sweep; unrolled by ptxas for n = 8; not counted on AMD).",
        "",
        "| kernel | n | type | target | warps | registers | spilled | shared | instructions | loop |",
        "|---|--:|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    builds: dict[int, Build] = {}
    for name, target in TARGETS.items():
        for kind in TYPES:
            for n in SIZES:
                made = {
                    "eigh": (launch.SolverLaunch.of(n).warps, solver(n, kind, target)),
                    "backward, Saturate": (launch.VjpLaunch.of(n).warps, rule(n, kind, target, "saturate", 1e-5)),
                    "backward, Taylor": (launch.VjpLaunch.of(n).warps, rule(n, kind, target, "taylor", 10.0)),
                    "backward, A^−½": (launch.VjpLaunch.of(n).warps, function(n, kind, target, "inv_sqrt")),
                }
                if (name, kind) == ("sm_80", "fp32"):
                    builds[n] = made["eigh"][1]
                for kernel, (warps, b) in made.items():
                    loop = b.loops[0] if b.loops and kernel == "eigh" else ""
                    cells = (kernel, n, kind, name, warps, b.registers, b.stack, b.shared, b.instructions, loop)
                    lines.append(f"| {' | '.join(map(str, cells))} |")
                    print(lines[-1], flush=True)
    lines += [
        "",
        "## Predicted times of `eigh`, float32, A100",
        "",
        "A program executes sweeps × steps × instructions of a step, its products, and the rest once. Two bounds:",
        f"**issue**, all warps' instructions over {MULTIPROCESSORS} multiprocessors × {ISSUED} a cycle (a guess, 4 at",
        f"most) × {HERTZ / 1e9} GHz; and **latency**, one warp's instructions × {PACE} cycles + {STEP_LATENCY} a step",
        "(guesses), times the waves that registers leave. The larger counts, or the memory traffic if that is larger",
        f"still, and {LAUNCH * 1e6:.0f} µs for the launch. Sweeps: {SWEEPS}, of random matrices.",
        "",
        "| batch × n | predicted | issue | latency |",
        "|---|--:|--:|--:|",
    ]
    for batch, n in CASES:
        seconds = predict(builds[n], batch, n)
        lines.append(f"| {batch} × {n} | {' | '.join(f'{t * 1e3:.3f} ms' for t in seconds)} |")
        print(lines[-1])
    lines += [
        "",
        "Published for torch on CUDA: 478 ms for 512 × 3 (pytorch #183806); a loop above n = 32 (#175585).",
        "",
    ]
    lines += layer_lines()
    RESULTS.write_text("\n".join(lines))


def layer_lines() -> list[str]:
    """The whitening layer's passes: resources, and predicted times."""
    lines = [
        "## The whitening layer's passes",
        "",
        "Resources as above; *instructions a number* are those of all warps for a tile over the numbers in it.",
        "",
        "| pass | d | type | layout | target | warps | registers | spilled | shared | instructions a number |",
        "|---|--:|---|---|---|--:|--:|--:|--:|--:|",
    ]
    builds: dict[tuple[str, int], Build] = {}
    for target_name, target in TARGETS.items():
        for kind in TYPES:
            for d in WIDTHS:
                for name in PASSES:
                    for layout in ("NCHW", "channels_last"):
                        b = feature_map_pass(name, d, kind, target, layout == "channels_last")
                        if (target_name, kind, layout) == ("sm_80", "fp32", "NCHW"):
                            builds[name, d] = b
                        how = launch.MapLaunch.of(MAP[1], d, name in ("covariance", "backward sums"))
                        count = b.loops[0] if b.loops else b.instructions
                        a_number = f"{count * how.warps / (how.width * how.points):.2f}"
                        if target.backend != "cuda":
                            a_number = ""
                        cells = (
                            name,
                            d,
                            kind,
                            layout,
                            target_name,
                            how.warps,
                            b.registers,
                            b.stack,
                            b.shared,
                            a_number,
                        )
                        lines.append(f"| {' | '.join(map(str, cells))} |")
                        print(lines[-1], flush=True)
    lines += [
        "",
        f"Predicted for {'×'.join(map(str, MAP))}, float32, NCHW, on an A100: the larger of the kernel's issue bound",
        "and its memory traffic, which for the covariance comes after a sum of torch's. *torch* is the traffic of the",
        "same pass in torch operations, a lower bound of its time. Passes over the map are counted in brackets.",
        "",
        "| pass | d | predicted | issue | memory | torch |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for (name, d), build in builds.items():
        seconds, issue, own, torchs = predict_pass(name, build, d)
        counts = PASSES[name]
        cells = (name, d, f"{seconds * 1e3:.3f} ms", f"{issue * 1e3:.3f} ms", f"{own * 1e3:.3f} ms ({counts[0]})",
                 f"{torchs * 1e3:.3f} ms ({counts[1]})")  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
        print(lines[-1])
    return [*lines, ""]


if __name__ == "__main__":
    main()
