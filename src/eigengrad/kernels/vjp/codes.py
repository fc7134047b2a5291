"""Numbers that stand for rules, functions and findings in calls of kernels; nobody else needs them."""

from __future__ import annotations

__all__ = ["FUNCTIONS", "INCOMPLETE", "REMOVED", "RULES", "TINY"]

#: The gradient rules that kernels know: what stands for 1/(λ_j − λ_i).
RULES = {"exact": 0, "taylor": 1, "clip": 2, "lorentzian": 3, "mask": 4, "saturate": 5}

#: The matrix functions whose divided differences kernels know.
FUNCTIONS = {"sqrt": 0, "inv_sqrt": 1}

#: Status bits: more than half of some gradient was removed; some gradient cannot be complete; some matrix is so small
#: that it has to be lifted first (``gradients.lift``), or zero.
REMOVED, INCOMPLETE, TINY = 1, 2, 4
