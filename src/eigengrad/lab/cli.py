"""The command ``eigengrad``. What it offers is in :mod:`.app`, which needs the extra ``lab``."""

from __future__ import annotations

import sys
import warnings

__all__ = ["main"]

_FAILED, _INTERRUPTED = 1, 130


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 a run failed, 2 misuse, 130 interrupted."""
    # How much of a gradient the paper's rules remove stands in the record of a run.
    warnings.filterwarnings("ignore", ".*eigengrad.GradientWarning", UserWarning)
    try:
        try:
            from .app import app
        except ModuleNotFoundError as error:
            sys.exit(_without_extra(error))
        app()
    except KeyboardInterrupt:  # outside the commands, which handle it themselves: during imports
        sys.exit(_INTERRUPTED)


def _without_extra(error: ModuleNotFoundError) -> int:
    """Do what needs nothing but torch; explain what the rest needs. Returns the exit code."""
    missing = (error.name or "").partition(".")[0]
    if missing in ("", "eigengrad"):
        raise error
    if sys.argv[1:] == ["info"]:
        from ..config import show_config

        sys.stdout.write(show_config() + "\n")
        return 0
    if sys.argv[1:] in (["warmup"], ["warmup", "--float64"]):
        return _warm_up()
    sys.stderr.write(
        f"error: the command line needs the extra `lab` ({missing} is not installed): "
        "in a clone of the repository, pip install '.[lab]'. "
        "Only `eigengrad info` and `eigengrad warmup` do without it.\n"
    )
    return _FAILED


def _warm_up() -> int:
    """Compile the CPU kernels, without a progress bar. Returns the exit code."""
    import torch

    from .. import kernels

    try:
        seconds = kernels.warmup(*(torch.float32, torch.float64)[: len(sys.argv) - 1])
    except kernels.KernelsUnavailableError as error:
        sys.stderr.write(f"error: kernels cannot be compiled: {str(error).removeprefix('warmup: ')}\n")
        return _FAILED
    sys.stdout.write(f"kernels ready after {seconds:.0f} s; `eigengrad info` shows where they are kept\n")
    return 0


if __name__ == "__main__":
    main()
