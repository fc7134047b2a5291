"""Small calls of the library against those of another revision: ``benchmarks/revisions.py REVISION``.

Each revision is a process of its own, with its own compiled kernels; they take turns, as in `ablation.py`. A third
process is today's library without what it asks of its arguments, which shows how much of a difference that is.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ablation import Case, Worker, spread, take_turns
from harness import write

TEXT = """Time of a call in this revision over that in {revision} ({date}): ratios of medians of processes that take
turns, each call straight after a matrix product of torch's, one thread, CPU time. *without checks*: the same where
this revision leaves out what `checks.md` lists. *spread*: the quartiles of the ratios of neighbouring turns.

*eigh* and *sqrt* (`matrix_sqrt`) alone: batch, n; *derivatives*: forward and backward, as in `derivatives.md`."""
COLUMNS = ["case", "then", "now", "now/then", "spread", "without checks/then"]

_SIZES = [(16, 4), (8, 8), (4, 16), (2, 32), (1, 64)]
_LARGER = [(128, 64), (1024, 16), (8, 256)]
CASES: list[Case] = [
    *(("eigh", *sizes) for sizes in [*_SIZES, (4096, 4), *_LARGER]),
    *(("sqrt", *sizes) for sizes in _SIZES),
    *(("derivatives", "eigh", *sizes) for sizes in [*_SIZES, (4096, 4), *_LARGER]),
    *(("derivatives", "matrix_sqrt", *sizes) for sizes in [*_SIZES, *_LARGER]),
    *(("derivatives", name, *sizes) for name in ("svd", "polar") for sizes in ((16, 4), (4, 16), (128, 64))),
]


def run(revision: str) -> Path:
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(tree), revision], check=True)
        try:
            then = {"PYTHONPATH": str(tree / "src"), "NUMBA_CACHE_DIR": folder, "XDG_CACHE_HOME": folder}
            rows = measure([Worker("", 1, then), Worker("", 1), Worker("all of them", 1)])
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], check=True)
    date, name = git("show", "-s", "--format=%cs", revision), git("rev-parse", "--short", revision)
    return write("revisions", TEXT.format(revision=name, date=date), COLUMNS, rows)


def measure(sides: list[Worker]) -> list[dict[str, Any]]:
    rows = []
    for case in CASES:
        turns = take_turns(sides, case)
        then, now, without = (statistics.median(side) for side in zip(*turns, strict=True))
        lower, upper = spread(turns)
        values = (" ".join(map(str, case)), f"{then:,.1f} µs", f"{now:,.1f} µs", now / then)
        rows.append(dict(zip(COLUMNS, (*values, f"{lower:.2f}–{upper:.2f}", without / then), strict=True)))
        print(*rows[-1].values(), sep="  ", flush=True)
    for side in sides:
        side.end()
    return rows


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    print(f"written: {run(sys.argv[1])}")
