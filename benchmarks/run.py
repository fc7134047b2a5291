"""Run the benchmarks and write their results: ``python benchmarks/run.py [subject ...] [--threads 1 2]``."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import derivatives
import dispatch
import eigh
import plots
import pooling
import rtol
import style
import training
import whitening

SUBJECTS = {
    "eigh": eigh.run,
    "dispatch": dispatch.run,
    "derivatives": derivatives.run,
    "whitening": whitening.run,
    "pooling": pooling.run,
    "style": style.run,
    "training": training.run,
    "rtol": rtol.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("subjects", nargs="*", default=list(SUBJECTS), help=f"of: {', '.join(SUBJECTS)}")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], help="thread counts to measure with")
    parser.add_argument("--data-root", type=Path, help="folder of real images and weights, for rtol")
    arguments = parser.parse_args()
    subjects = SUBJECTS | {"rtol": partial(rtol.run, data_root=arguments.data_root)}
    for subject in arguments.subjects:
        if subject not in SUBJECTS:
            parser.error(f"no subject {subject!r}; there are: {', '.join(SUBJECTS)}")
        print(f"==> {subject}: this takes a few minutes; leave the machine alone", flush=True)
        path = subjects[subject](arguments.threads)
        print(path.read_text())
        for written in (path, path.with_suffix(".json"), *plots.draw(subject)):
            print(f"written: {written}")


if __name__ == "__main__":
    main()
