"""Gradient rules: one a file, and the registry of their names.

A rule says what stands for 1/(λ_j − λ_i) in the derivative of the eigenvectors. To add one, write its file (a frozen
dataclass with :meth:`~eigengrad.gradients.rule.PairRule.reciprocal`) and name it in :data:`RULES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, replace
from importlib.metadata import entry_points

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
from .unit_norm_or_nan import UnitNormOrNaN

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
    "UnitNormOrNaN",
    "from_kernel",
    "parse_rule",
    "register_rule",
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
    "unit_norm_or_nan": UnitNormOrNaN(),
}


#: The group of entry points under which an installed package names its rules.
ENTRY_POINTS = "eigengrad.gradients"


def register_rule(name: str, rule: GradientRule) -> None:
    """Give a rule of your own a name, for every place that takes one by name.

    Args:
        name: letters, digits and underscores; not one of those that exist.
        rule: with its default parameters: a frozen dataclass, so that ``name(parameter=value)`` can change them.

    A package can do the same for the command line: it declares an entry point in the group ``eigengrad.gradients`` that
    refers to the rule. Only what is installed is looked at, and only when its name is asked for.

    >>> import torch, eigengrad as eg
    >>> from eigengrad.gradients import RULES
    >>> eg.register_rule("firm", eg.Clip(threshold=10.0))
    >>> eg.eigh(torch.eye(2), gradient="firm(threshold=5)").eigenvalues
    tensor([1., 1.])
    >>> RULES.pop("firm")
    Clip(threshold=10.0)
    """
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ValueError(f"register_rule: name must be letters, digits and underscores; got {name!r}")
    if name in RULES:
        raise ValueError(f"register_rule: there is a rule {name!r} already; got another. Choose another name")
    if not isinstance(rule, GradientRule):
        raise TypeError(f"register_rule: rule must be a GradientRule, such as Clip(threshold=10.0); got {rule!r}")
    RULES[name] = rule


def resolve(gradient: str | GradientRule) -> GradientRule:
    """A rule from its name, with parameters or without; or the rule itself.

    >>> resolve("saturate")
    Saturate(rtol=1e-05)
    >>> resolve("clip(threshold=50)")
    Clip(threshold=50)
    >>> resolve("power_iteration(steps=10, stop=False)").steps
    10
    """
    if isinstance(gradient, str):
        if gradient in RULES:  # nothing to parse, which the compiler could not follow
            return RULES[gradient]
        name, parameters = parse_rule(gradient)
        rule = _named(name)
        try:
            return replace(rule, **parameters) if parameters else rule  # type: ignore[type-var]
        except TypeError as error:
            known = ", ".join(field.name for field in fields(rule)) or "none"  # type: ignore[arg-type]
            if set(parameters) <= set(known.split(", ")):
                raise
            raise ValueError(f"gradient: got {gradient!r}; the parameters of {name} are: {known}") from error
    if not isinstance(gradient, GradientRule):
        raise TypeError(
            f"gradient: got {gradient!r}; expected a rule such as Saturate(rtol=1e-5), or a name: {', '.join(RULES)}"
        )
    return gradient


def parse_rule(text: str) -> tuple[str, dict[str, bool | int | float | None]]:
    """The name and the parameters of ``name`` or ``name(parameter=value, …)``; values are numbers, booleans or None.

    >>> parse_rule("taylor(degree=19, eps=1e-4)")
    ('taylor', {'degree': 19, 'eps': 0.0001})
    """
    match = re.fullmatch(r"\s*([^()]*?)\s*(?:\((.*)\))?\s*", text, re.DOTALL)
    if match is None:
        raise ValueError(f"gradient: got {text!r}; expected a name, or name(parameter=value, …)")
    name, inside = match[1], match[2] or ""
    parameters: dict[str, bool | int | float | None] = {}
    for part in filter(None, (part.strip() for part in inside.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key.isidentifier() or key in parameters:
            raise ValueError(f"gradient: got {part!r} in {text!r}; expected parameter=value, each parameter once")
        parameters[key] = _value(value, text)
    return name, parameters


def _value(text: str, whole: str) -> bool | int | float | None:
    constants = {"true": True, "false": False, "none": None}
    if text.lower() in constants:
        return constants[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise ValueError(f"gradient: got the value {text!r} in {whole!r}; expected a number, true, false or none")


def _named(name: str) -> GradientRule:
    if name in RULES:
        return RULES[name]
    if name.lower().replace("é", "e").replace("-", "_") in ("pade", "svd_pade"):
        raise ValueError(
            f"gradient: got {name!r}; the diagonal Padé approximant of 1/(1 − q) is 1/(1 − q) itself, so SVD-Padé is "
            "'exact' by another name. For a square root without a decomposition take pade_sqrt (MPA)"
        )
    for entry in entry_points(group=ENTRY_POINTS, name=name):
        rule = entry.load()
        if not isinstance(rule, GradientRule):
            raise TypeError(
                f"gradient: the entry point {entry.value!r} of {name!r} is {rule!r}; expected a GradientRule"
            )
        return rule
    raise unknown_choice("gradient", name, RULES)


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
