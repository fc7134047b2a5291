"""Run the core tests on the oldest and the newest torch, and write the counts to results/versions.md.

Environments are made outside the repository, in the folder of the first argument, once; they are some GB each, because
the registry has CUDA builds (which run on the CPU). Repeat with ``make test-versions``; what follows the folder goes to
pytest, such as ``-n 2``. Names of tests that fail are printed, and the exit code is 1.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULT = Path(__file__).parent / "results" / "versions.md"
TOOLS = ["pytest", "pytest-xdist", "hypothesis", "mpmath", "scipy", "scikit-learn", "onnx", "onnxscript", "setuptools"]

#: Each environment: the interpreter, and the versions that make it the oldest or the newest.
MATRIX = {
    "oldest": ("python3.10", ["torch==2.6.0", "numpy==1.26.4", "numba==0.58.1"]),
    "newest": ("python3.13", ["torch", "numpy", "numba"]),
}
CORE = ["tests", "--ignore=tests/lab", "--ignore=tests/fuzzing", "--ignore=tests/docs"]
#: What pytest counts, and the column's name.
KINDS = {"passed": "passed", "failed": "failed", "error": "errors", "skipped": "skipped", "xfailed": "known limits"}
LIMITS = (
    "Known limits are tests that fail for an error of that version of torch, each with its reason in the test's mark."
)
_VERSIONS = """
import platform, torch, numpy, numba
print(platform.python_version(), torch.__version__, numpy.__version__, numba.__version__)
"""


def interpreter(name: str) -> Path:
    """The file of an interpreter such as ``python3.10``, from the PATH or among pyenv's versions.

    On the PATH may be a shim of pyenv, which runs only the versions that are chosen in the folder.
    """
    candidates = [Path(found)] if (found := shutil.which(name)) else []
    if pyenv := shutil.which("pyenv"):
        root = Path(subprocess.run([pyenv, "root"], capture_output=True, text=True, check=True).stdout.strip())
        candidates += sorted(root.glob(f"versions/*/bin/{name}"))
    for candidate in candidates:
        if subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
            return candidate
    tried = ", ".join(map(str, candidates)) or "nothing"
    sys.exit(f"versions.py: no {name} runs here: found {tried}. Install it, or add it to the PATH.")


def environment(folder: Path, name: str) -> Path:
    """The interpreter of an environment, which is made if it does not exist, and completed if that was interrupted."""
    python, ready = folder / name / "bin" / "python", folder / name / ".ready"
    if not ready.exists():
        executable, packages = MATRIX[name]
        if not python.exists():
            subprocess.run([interpreter(executable), "-m", "venv", folder / name], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-cache-dir", *packages, *TOOLS], check=True)
        ready.touch()
    return python


def counts(output: str) -> dict[str, int]:
    """How many tests passed, failed and so on, from what pytest printed; empty if it did not get to its summary."""
    lines = output.splitlines() or [""]
    return {kind: int(number) for number, kind in re.findall(r"(\d+) (passed|failed|skipped|error|xfailed)", lines[-1])}


def _processor() -> str:
    """The name of the CPU, as the system gives it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def main() -> int:
    folder, options = Path(sys.argv[1]).resolve(), sys.argv[2:]
    rows, remaining = [], []
    for name in MATRIX:
        python = environment(folder, name)
        versions = subprocess.run([python, "-c", _VERSIONS], capture_output=True, text=True, check=True).stdout.split()
        # Kernels are compiled before the tests, whose processes have limits of time; this is `make test`'s way, too.
        setting = {"cwd": ROOT, "env": os.environ | {"PYTHONPATH": str(ROOT / "src")}}
        warmup = "import sys, torch, eigengrad; eigengrad.kernels.warmup(getattr(torch, sys.argv[1]))"
        for dtype in ("float32", "float64"):
            subprocess.run([python, "-c", warmup, dtype], check=True, **setting)
        command = [python, "-m", "pytest", "-q", "-m", "not slow", "-rfE", "--tb=no", "-p", "no:cacheprovider"]
        run = subprocess.run([*command, *CORE, *options], capture_output=True, text=True, **setting)
        print(run.stdout[-3000:], run.stderr[-3000:])
        found = counts(run.stdout)
        rows.append([name, *versions, *(f"{found.get(kind, 0):,}" for kind in KINDS)])
        if run.returncode:
            tests = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", run.stdout, re.MULTILINE)
            remaining += [f"- {name}: `{test}`" for test in tests or [f"pytest ended with {run.returncode}"]]
    header = ["environment", "Python", "torch", "numpy", "numba", *KINDS.values()]
    when = f"{date.today().isoformat()}, {_processor()}, {os.cpu_count()} cores."
    lines = ["# Versions", "", f"The core tests without `slow` (`make test-versions`). {when}", ""]
    lines += ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows)]
    lines += ["", *(remaining or [LIMITS])]
    RESULT.write_text("\n".join(lines) + "\n")
    return int(bool(remaining))


if __name__ == "__main__":
    sys.exit(main())
