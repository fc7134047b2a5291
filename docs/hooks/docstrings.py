"""Docstrings in Google's style, with Sphinx's roles, as Markdown."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable

from griffe import Docstring, DocstringSectionKind

__all__ = ["doctests_as_blocks", "roles_as_links", "to_markdown"]

_ROLE = re.compile(r":(?:func|class|meth|mod|attr|exc|data|obj|ref):`~?([^`]+)`")
_BLOCK = re.compile(r"(?:^ {4}.*\n?(?:\n(?= {4}))?)+", re.MULTILINE)
logging.getLogger("griffe").setLevel(logging.ERROR)  # it wants types in docstrings; here they are in the signatures


def roles_as_links(text: str, resolve: Callable[[str], str | None]) -> str:
    """Replace ``:func:`name` `` by a link to what ``resolve`` makes of the name, or by code where that is None."""

    def link(match: re.Match[str]) -> str:
        target = match[1]
        address = resolve(target)
        shown = target.removeprefix("eigengrad.errors.").removeprefix("eigengrad.").lstrip(".")
        return f"`{shown}`" if address is None else f"[`{shown}`]({address})"

    return _ROLE.sub(link, text)


def doctests_as_blocks(text: str) -> str:
    """Replace each doctest by a block of code that can be copied, and a block of what it prints."""
    lines, out = text.splitlines(), []
    i = 0
    while i < len(lines):
        if not lines[i].startswith(">>> "):
            out.append(lines[i])
            i += 1
            continue
        code: list[str] = []
        while i < len(lines) and lines[i].startswith((">>> ", "... ", "...")):
            code.append(re.sub(r" {3,}#", "  #", re.sub(r"\s+# doctest: .*", "", lines[i][4:])))
            i += 1
        printed: list[str] = []
        while i < len(lines) and lines[i].strip() and not lines[i].startswith(">>> "):
            printed.append(lines[i])
            i += 1
        out += ["", "```python", *code, "```", ""]
        if printed:
            out += ["```text { .output }", *printed, "```", ""]
    return "\n".join(out)


def to_markdown(text: str, resolve: Callable[[str], str | None], formula: str | None = None) -> str:
    r"""A docstring as Markdown: text, arguments as a list of definitions, results, errors and examples.

    Args:
        text: the docstring, without its indentation.
        resolve: the address of a name in a role, or None.
        formula: TeX, in place of what the docstring writes in indented lines, or behind its summary. ``\\`` begins
            a new line, so that no formula is wider than a page.
    """
    parts = []
    examples: list[str] = []
    # Google's format takes what stands before a colon in "Returns" for a type; here it is all text.
    text = text.replace("\nReturns:\n", "\nResult:\n").replace("::\n", ":\n")
    sections = Docstring(roles_as_links(text, resolve)).parse("google")
    for position, section in enumerate(sections):
        kind = section.kind
        if kind is DocstringSectionKind.text:
            body, found = _without_doctests(section.value)
            examples += found
            if position == 0 and formula is not None:
                body = _with_formula(body, formula)
            parts.append(body)
        elif kind is DocstringSectionKind.parameters:
            parts.append("**Arguments**\n\n" + _definitions((item.name, item.description) for item in section.value))
        elif kind is DocstringSectionKind.attributes:
            parts.append("**Attributes**\n\n" + _definitions((item.name, item.description) for item in section.value))
        elif kind is DocstringSectionKind.raises:
            rows = ((str(item.annotation), item.description) for item in section.value)
            parts.append("**Raises**\n\n" + _definitions(rows, resolve))
        elif kind is DocstringSectionKind.examples:
            examples += [value for _, value in section.value]
        else:  # an admonition such as "Shape:"
            parts.append(f"**{section.title}**\n\n{section.value.description}")
    if examples:
        parts.append("**Example**\n" + doctests_as_blocks("\n".join(examples)))
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def _without_doctests(text: str) -> tuple[str, list[str]]:
    """The text, and the doctests at its end; a doctest that text follows stays where it is."""
    paragraphs = text.split("\n\n")
    found: list[str] = []
    while paragraphs and paragraphs[-1].startswith(">>> "):
        found.insert(0, paragraphs.pop())
    return doctests_as_blocks("\n\n".join(paragraphs)), found


def _with_formula(body: str, formula: str) -> str:
    tex = "\n\n".join(f"$$\n{line.strip()}\n$$" for line in formula.split(r"\\"))
    if _BLOCK.search(body):
        return _BLOCK.sub(lambda _: f"{tex}\n\n", body, count=1)
    summary, _, rest = body.partition("\n\n")
    return f"{summary}\n\n{tex}\n\n{rest}"


def _definitions(rows: Iterable[tuple[str, str]], resolve: Callable[[str], str | None] = lambda _: None) -> str:
    blocks = []
    for names, description in rows:
        term = ", ".join(roles_as_links(f":obj:`{name.strip()}`", resolve) for name in names.split(","))
        blocks.append(f"{term}\n:   " + description.strip().replace("\n", "\n    "))
    return "\n\n".join(blocks)
