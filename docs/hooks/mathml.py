"""A hook of mkdocs: formulas in TeX become MathML, which browsers draw without a script.

It needs latex2mathml; without it, pages show the TeX source of their formulas.
"""

from __future__ import annotations

import html
import logging
import re
from typing import Any

try:
    from latex2mathml.converter import convert
except ImportError:
    convert = None
    logging.getLogger("mkdocs").info("latex2mathml is not installed: formulas are shown as TeX")

_FORMULA = re.compile(r'<(span|div) class="arithmatex">(?:\\\(|\\\[)(.*?)(?:\\\)|\\\])</\1>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """Replace what pymdownx.arithmatex has marked."""
    if convert is None:
        return content

    def rendered(match: re.Match[str]) -> str:
        block = match[1] == "div"
        mathml: str = convert(html.unescape(match[2]).strip(), display="block" if block else "inline")
        return f'<div class="formula">{mathml}</div>' if block else mathml

    return _FORMULA.sub(rendered, content)
