"""A hook of mkdocs: formulas in TeX become MathML, which browsers draw without a script."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

__all__ = ["render"]

_FORMULA = re.compile(r'<(span|div) class="arithmatex">(?:\\\(|\\\[)(.*?)(?:\\\)|\\\])</\1>', re.DOTALL)
_OPERATOR = re.compile(r"<(mo|mi)(?: movablelimits=\"true\")?>([a-zA-Z]{2,})</\1>(<mo[^>]*>&#x0*28;)?")
_CAPITAL = re.compile(r"<mi>(&#x0*39[1-9A-F];|&#x0*3A[0-9];)</mi>")
_SLASH = re.compile(r"<mo>(&#x0*2F;)</mo>")


def render(tex: str, block: bool) -> str:
    """A formula as MathML, spaced as TeX does: named operators, slashes, and upright capitals of the Greek alphabet."""

    def operator(match: re.Match[str]) -> str:
        behind = "0" if match[3] else "0.167em"
        return f'<mo lspace="0.167em" rspace="{behind}" movablelimits="true">{match[2]}</mo>{match[3] or ""}'

    mathml: str = convert(tex.strip(), display="block" if block else "inline")
    mathml = _OPERATOR.sub(operator, mathml)
    mathml = _CAPITAL.sub(r'<mi mathvariant="normal">\1</mi>', mathml)
    mathml = _SLASH.sub(r'<mo lspace="0" rspace="0">\1</mo>', mathml)
    return f'<div class="formula">{mathml}</div>' if block else mathml


def on_page_content(content: str, **_: Any) -> str:
    """Replace what pymdownx.arithmatex has marked."""
    return _FORMULA.sub(lambda match: render(html.unescape(match[2]), match[1] == "div"), content)
