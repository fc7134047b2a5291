"""Gradient rules: one a file, and the registry of their names.

A rule says what stands for 1/(λ_j − λ_i) in the derivative of the eigenvectors. To add one, write its file (a frozen
dataclass with :meth:`~eigengrad.gradients.rule.PairRule.reciprocal`) and name it in :data:`RULES`.
"""

from __future__ import annotations

from collections.abc import Callable

from ..errors import unknown_choice
from .clip import Clip
from .exact import Exact
from .lorentzian import Lorentzian
from .mask import Mask
from .power_iteration import PowerIteration
from .rule import GradientRule, PairRule
from .saturate import Saturate
from .taylor import Taylor
from .truncate import Truncate

__all__ = [
    "RULES",
    "Clip",
    "Exact",
    "GradientRule",
    "Lorentzian",
    "Mask",
    "PairRule",
    "PowerIteration",
    "Saturate",
    "Taylor",
    "Truncate",
    "from_kernel",
    "resolve",
]

#: Each rule with its default parameters, by name.
RULES: dict[str, GradientRule] = {
    "saturate": Saturate(),
    "exact": Exact(),
    "taylor": Taylor(),
    "clip": Clip(),
    "lorentzian": Lorentzian(),
    "mask": Mask(),
    "truncate": Truncate(),
    "power_iteration": PowerIteration(),
}


def resolve(gradient: str | GradientRule) -> GradientRule:
    """A rule from its name, or the rule itself.

    >>> resolve("saturate")
    Saturate(rtol=1e-05)
    """
    if isinstance(gradient, str):
        if gradient not in RULES:
            raise unknown_choice("gradient", gradient, RULES)
        return RULES[gradient]
    if not isinstance(gradient, GradientRule):
        raise TypeError(
            f"gradient: got {gradient!r}; expected a rule such as Saturate(rtol=1e-5), or a name: {', '.join(RULES)}"
        )
    return gradient


def from_kernel(name: str, parameters: tuple[float, float]) -> PairRule:
    """The rule whose ``kernel()`` is (name, parameters).

    >>> from_kernel(*Clip(threshold=3.0).kernel())
    Clip(threshold=3.0)
    """
    first, second = parameters
    make: dict[str, Callable[[], PairRule]] = {
        "saturate": lambda: Saturate(rtol=first),
        "exact": Exact,
        "taylor": lambda: Taylor(degree=round(first) - 1, eps=None if second < 0 else second),
        "clip": lambda: Clip(threshold=first),
        "lorentzian": lambda: Lorentzian(broadening=first * first),
        "mask": lambda: Mask(rtol=None if first < 0 else first),
    }
    return make[name]()
