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
_VERSIONS = """
import platform, torch, numpy, numba
print(platform.python_version(), torch.__version__, numpy.__version__, numba.__version__)
"""


def environment(folder: Path, name: str) -> Path:
    """The interpreter of an environment, which is made if it does not exist."""
    python = folder / name / "bin" / "python"
    if not python.exists():
        interpreter, packages = MATRIX[name]
        subprocess.run([interpreter, "-m", "venv", folder / name], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-cache-dir", *packages, *TOOLS], check=True)
    return python


def _processor() -> str:
    """The name of the CPU, as the system gives it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def main() -> int:
    folder, options = Path(sys.argv[1]).resolve(), sys.argv[2:]
    rows, failed = [], False
    for name in MATRIX:
        python = environment(folder, name)
        versions = subprocess.run([python, "-c", _VERSIONS], capture_output=True, text=True, check=True).stdout.split()
        command = [python, "-m", "pytest", "-q", "-m", "not slow", "-rfE", "--tb=no", "-p", "no:cacheprovider"]
        run = subprocess.run(
            [*command, *CORE, *options],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        )
        print(run.stdout[-3000:])
        summary = re.findall(r"(\d+) (passed|failed|skipped|error)", run.stdout.splitlines()[-1])
        found = {kind: number for number, kind in summary}
        rows.append([name, *versions, *(found.get(kind, "0") for kind in ("passed", "failed", "error", "skipped"))])
        failed |= run.returncode != 0
    header = ["environment", "Python", "torch", "numpy", "numba", "passed", "failed", "errors", "skipped"]
    when = f"{date.today().isoformat()}, {_processor()}, {os.cpu_count()} cores."
    lines = ["# Versions", "", f"The core tests without `slow` (`make test-versions`). {when}", ""]
    lines += ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows)]
    RESULT.write_text("\n".join(lines) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
