"""Run the benchmarks and write their results: ``python benchmarks/run.py [subject ...] [--threads 1 2]``."""

from __future__ import annotations

import argparse

import ablation
import block
import contention
import derivatives
import dispatch
import eigh
import first_use
import plots
import pooling
import style
import training
import whitening

SUBJECTS = {
    "eigh": eigh.run,
    "dispatch": dispatch.run,
    "derivatives": derivatives.run,
    "whitening": whitening.run,
    "block": block.run,
    "pooling": pooling.run,
    "style": style.run,
    "training": training.run,
    "contention": contention.run,
    "first_use": first_use.run,
    "ablation": ablation.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("subjects", nargs="*", default=list(SUBJECTS), help=f"of: {', '.join(SUBJECTS)}")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], help="thread counts to measure with")
    arguments = parser.parse_args()
    for subject in arguments.subjects:
        if subject not in SUBJECTS:
            parser.error(f"no subject {subject!r}; there are: {', '.join(SUBJECTS)}")
        print(f"==> {subject}: this takes a few minutes; leave the machine alone", flush=True)
        path = SUBJECTS[subject](arguments.threads)
        print(path.read_text())
        for written in (path, path.with_suffix(".json"), *plots.draw(subject)):
            print(f"written: {written}")


if __name__ == "__main__":
    main()
