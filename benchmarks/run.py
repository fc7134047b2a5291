"""Run the benchmarks and write their results: ``benchmarks/run.py [subject ...] [--threads 1 2] [--device cuda]``.

Where there is a GPU it is measured by default, with the subjects that say something about it.
"""

from __future__ import annotations

import argparse
import shutil

import torch

import ablation
import block
import contention
import derivatives
import dispatch
import eigh
import first_use
import harness
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
    "checks": ablation.run_checks,
}


#: What is measured on a GPU.
ON_GPU = ("eigh", "derivatives", "whitening", "pooling", "training")


def available_device() -> str:
    """A GPU that torch can use, or the CPU."""
    return next((name for name in ("cuda", "xpu") if torch.get_device_module(name).is_available()), "cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("subjects", nargs="*", help=f"of: {', '.join(SUBJECTS)}; on a GPU {', '.join(ON_GPU)}")
    parser.add_argument(
        "--device", default=available_device(), help="cpu, cuda or xpu; by default a GPU if there is one"
    )
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], help="thread counts to measure with")
    arguments = parser.parse_args()
    harness.use(arguments.device)
    known = ON_GPU if harness.on_gpu() else tuple(SUBJECTS)
    for subject in arguments.subjects:
        if subject not in known:
            parser.error(f"no subject {subject!r} on {arguments.device}; there are: {', '.join(known)}")
    for subject in arguments.subjects or known:
        print(f"==> {subject}: this takes a few minutes; leave the machine alone", flush=True)
        path = SUBJECTS[subject]([1] if harness.on_gpu() else arguments.threads)
        print(path.read_text())
        for written in (path, path.with_suffix(".json"), *(() if harness.on_gpu() else plots.draw(subject))):
            print(f"written: {written}")
    if harness.on_gpu():
        keep_choices()


def keep_choices() -> None:
    """Copy what was chosen on the GPU, and the times behind it, to the results."""
    from eigengrad.kernels.gpu import selection

    source = selection.file_of(
        torch.device(harness.DEVICE.type, torch.get_device_module(harness.DEVICE).current_device())
    )
    if source is not None and source.exists():
        target = harness.results_folder() / "choices.json"
        shutil.copyfile(source, target)
        print(f"written: {target}")


if __name__ == "__main__":
    main()
