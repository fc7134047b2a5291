"""No file crashes a reader: mutated files, by the hundred thousand, through every reader of the lab.

    python tests/fuzzing/fuzz_files.py                            # 9,000 files a reader, 117,000 in all (10 min)
    python tests/fuzzing/fuzz_files.py --seed 5 --reader zip      # other files, of one reader; nothing is written

The readers, and how their files are changed, are those of ``tests/fuzzing/mutated_files.py``. They run in processes of
their own, which have 2 GB more than they start with and 10 s for each file. The count is written to
``benchmarks/results/fuzz_files.md`` and ``.json``.

A file must be read, or refused with the error that the reader documents. Everything else is a failure: a crash, another
error, a refusal only because memory ran out, more than 2 GB at the peak of a process, more than 10 s.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import harness  # noqa: E402
import mutated_files  # noqa: E402

FILES = 9_000  # of each reader
PART = 1_000  # files of one process: a failure ends it, and the rest of its files are not read


def read_part(reader: str, seed: str, files: int) -> dict[str, object]:
    """What one process found (:func:`mutated_files.fuzz`), or how it ended."""
    command = [sys.executable, "-X", "faulthandler", mutated_files.__file__, reader, seed, str(files), str(20 * files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        where = next((line for line in lines if line.startswith(f"{reader}: the file of seed")), f"{reader}: {seed}")
        return {"failure": f"{where}: exit code {done.returncode}, {lines[-1] if lines else 'nothing said'}"}
    return json.loads(done.stdout.splitlines()[-1])


def read_files(reader: str, seed: int, files: int, failures: list[str]) -> dict[str, object]:
    """A row of the report: how many files were read and refused, the largest peak and the longest time."""
    total, refused, peak, longest = 0, 0, 0, 0.0
    for part in range(-(-files // PART)):
        found = read_part(reader, f"{seed}.{part}", min(PART, files - part * PART))
        if "failure" in found:
            failures.append(found["failure"])
            continue
        if found["peak"] >= 2 << 30:
            failures.append(f"{reader}: seed {seed}.{part}: {found['peak']:,} bytes at its peak")
        total, refused = total + found["files"], refused + found["refused"]
        peak, longest = max(peak, found["peak"]), max(longest, found["longest"])
    return {
        "reader": reader,
        "files": f"{total:,}",
        "read": f"{total - refused:,}",
        "refused": f"{refused:,}",
        "peak (MB)": f"{peak / 1e6:.0f}",
        "longest (s)": longest,
        "count": total,
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=FILES, help="of each reader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reader", choices=list(mutated_files.READERS), help="only this one; nothing is written")
    arguments = parser.parse_args(argv)
    rows, failures, began = [], [], time.monotonic()
    for reader in [arguments.reader] if arguments.reader else mutated_files.READERS:
        rows.append(read_files(reader, arguments.seed, arguments.files, failures))
        print(", ".join(f"{key}: {value}" for key, value in rows[-1].items() if key != "count"), flush=True)
    for failure in failures:
        print(f"FAILED {failure}")
    if not arguments.reader:
        minutes = (time.monotonic() - began) / 60
        total = sum(row.pop("count") for row in rows)
        text = f"""`make fuzz-files`, seed {arguments.seed}: **{total:,} mutated files,
{len(failures)} failures**, in {minutes:.0f} min.

{__doc__[__doc__.index("The readers,") :].strip()}

*Peak*: of a whole process, of which torch and the lab take 310 MB before the first file."""
        if failures:
            text += "\n\nFailures:\n\n" + "\n".join(f"- {failure}" for failure in failures[:50])
        print(f"written: {harness.write('fuzz_files', text, list(rows[0]), rows)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
