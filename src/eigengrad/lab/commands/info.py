"""``eigengrad info``: what this installation computes with."""

from __future__ import annotations

from .terminal import explained, say

__all__ = ["info"]


def info() -> None:
    """Show what this installation computes with: for a bug report, or to see whether the CPU kernels are used.

    Versions, the CPU and the width of its vectors, torch's threads and their OpenMP runtime, whether the CPU kernels
    are on and if not why, where compiled kernels are kept, and for each GPU which kernels were chosen and the times
    behind it. `eigengrad.show_config()` returns the same text.

    **Examples**

    ```
    eigengrad info
    EIGENGRAD_KERNELS=0 eigengrad info
    ```
    """
    from ...config import show_config

    with explained():
        say(show_config())
