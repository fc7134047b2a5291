"""A hook of mkdocs: a page for every public name, made from its signature and docstring when the site is built."""

from __future__ import annotations

import inspect
from typing import Any

from mkdocs.structure.files import File

from docstrings import to_markdown
from formulas import FORMULAS
from public_names import Family, families, lookup

__all__ = ["address_of", "page"]

_TORCH = "https://docs.pytorch.org/docs/stable/generated/{}.html"
_RESULTS = {"EighResult": "torch.return_types.linalg_eigh", "SvdResult": "torch.return_types.linalg_svd"}
#: Methods that serve the library itself, or torch, and not those who call it.
_INTERNAL = {
    "bracket",
    "evaluation_map",
    "extra_repr",
    "kernel",
    "observe_pairs",
    "observe_pass",
    "register_buffer",
    "train",
}


def address_of(name: str) -> str | None:
    """The page of what a role names, relative to the other pages of the reference; None if it has none.

    Names may be absolute, or relative to ``eigengrad``, to its layers or to their functions, as in the docstrings.
    """
    if name.startswith(("torch.linalg.", "torch.nn.")) or name == "torch.logdet":
        return None if name.endswith("Error") else _TORCH.format(name)
    short = name.split(".")[-1]
    known = [known for family in families() for known in family.names]
    for candidate in (name.removeprefix("eigengrad."), short, f"nn.{short}", f"nn.functional.{short}"):
        if candidate in known:
            return f"{candidate}.md"
    return None


def page(name: str, family: Family) -> str:
    """The Markdown page of one name: signature, formula, docstring, methods, and where to go from there."""
    thing = lookup(name)
    own = getattr(thing, "__module__", "") or ""
    doc = inspect.getdoc(thing) if callable(thing) and own.startswith("eigengrad") else None
    text = f"---\ntitle: {name}\nsearch:\n  boost: 2\n---\n\n# eigengrad.{name}\n\n"
    text += f'<p class="kind">{_kind(thing)} · {family.title}</p>\n\n'
    if doc is not None:
        text += _block(signature(f"eigengrad.{name}", thing))
        text += to_markdown(doc, address_of, FORMULAS.get(name))
        if inspect.isclass(thing):
            text += _methods(thing)
    elif own.startswith("torch") or inspect.isbuiltin(thing):
        full = f"torch.linalg.{name.split('.')[-1]}"
        text += f"Torch's own function: `eigengrad.{name} is {full}`. See [`{full}`]({_TORCH.format(full)}).\n"
    else:
        text += _value(name, thing)
    siblings = [f"[`{other}`]({other}.md)" for other in family.names if other != name]
    text += "\n## See also { data-search-exclude }\n\n"
    text += f"[{family.title}: how it works](../{family.guide})" + (" · " if siblings else "") + " · ".join(siblings)
    return text + "\n"


def _kind(thing: Any) -> str:
    if inspect.isclass(thing):
        if issubclass(thing, Warning):
            return "warning"
        return "exception" if issubclass(thing, Exception) else "class"
    return "function" if callable(thing) and not isinstance(thing, dict) else "value"


def _value(name: str, thing: Any) -> str:
    if isinstance(thing, dict):
        rows = "\n".join(f"- `{key}`" for key in thing)
        return f"A dictionary with these keys; [`testing.hard_matrices`](testing.hard_matrices.md) uses it.\n\n{rows}\n"
    return f"The type of the entries of [`testing.SPECTRA`](testing.SPECTRA.md):\n\n```python\n{name} = {thing}\n```\n"


def signature(label: str, thing: Any) -> str:
    """The call of ``label`` as it is written, one argument a line where it does not fit one."""
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return f"class {label}({', '.join(_public_bases(thing))})"
    found = inspect.signature(thing)
    arguments, star = [], False
    for parameter in found.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            arguments.append("*")
        star = star or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        arguments.append(_argument(parameter))
    result = found.return_annotation
    returns = "" if inspect.isclass(thing) or result is found.empty else f" -> {_RESULTS.get(result, result)}"
    head = f"class {label}" if inspect.isclass(thing) else label
    line = f"{head}({', '.join(arguments)}){returns}"
    if len(line) <= 80:
        return line
    return f"{head}(\n" + "".join(f"    {argument},\n" for argument in arguments) + f"){returns}"


def _block(call: str) -> str:
    return f"```python {{ .signature }}\n{call}\n```\n\n"


def _argument(parameter: inspect.Parameter) -> str:
    kinds: dict[Any, str] = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
    text = kinds.get(parameter.kind, "") + parameter.name
    if parameter.annotation is not parameter.empty:
        text += f": {parameter.annotation}"
    if parameter.default is not parameter.empty:
        default = f'"{parameter.default}"' if isinstance(parameter.default, str) else repr(parameter.default)
        text += f" = {default}"
    return text


def _public_bases(thing: type) -> list[str]:
    bases = [base for base in thing.__bases__ if not base.__name__.startswith("_")]
    return [f"torch.linalg.{base.__name__}" if base.__name__ == "LinAlgError" else base.__name__ for base in bases]


def _methods(thing: type) -> str:
    """Public methods and properties with docstrings of their own, nearest class first."""
    text, seen = "", set(_INTERNAL)
    for owner in thing.__mro__:
        if not owner.__module__.startswith("eigengrad"):
            continue
        for attribute, member in vars(owner).items():
            plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            described = inspect.getdoc(plain) if inspect.isfunction(plain) or isinstance(plain, property) else None
            if attribute.startswith("_") or attribute in seen or described is None:
                continue
            seen.add(attribute)
            text += f"\n## {attribute}\n\n"
            if isinstance(plain, property):
                text += '<p class="kind">property</p>\n\n'
            else:
                label = '<p class="kind">class method</p>\n\n' if isinstance(member, classmethod) else ""
                text += label + _block(signature(f"{thing.__name__}.{attribute}", plain))
            text += to_markdown(described, address_of)
    return text


def _summary(name: str) -> str:
    """The first paragraph of a docstring on one line, or what a value is."""
    thing = lookup(name)
    if (getattr(thing, "__module__", "") or "").startswith("eigengrad"):
        first = (inspect.getdoc(thing) or "").split("\n\n")[0]
        return to_markdown(first, lambda _: None).strip().replace("\n", " ")
    if inspect.isbuiltin(thing):
        return "Torch's own function."
    return "A dictionary of generators, by name." if isinstance(thing, dict) else "The type of such a generator."


def _index() -> str:
    text = "# Reference\n\nEvery public name has a page: signature, shapes, formula, an example, and what is near it.\n"
    for family in families():
        text += f"\n## {family.title}\n\n[How it works](../{family.guide})\n\n"
        text += "\n\n".join(f"[`{name}`]({name}.md)\n:   {_summary(name)}" for name in family.names) + "\n"
    return text


def on_config(config: Any, **_: Any) -> Any:
    """Put the pages behind the rest of the navigation."""
    section: list[Any] = [{"Overview": "reference/index.md"}]
    section += [{family.title: [{n: f"reference/{n}.md"} for n in family.names]} for family in families()]
    config.nav = [entry for entry in config.nav if "Reference" not in entry] + [{"Reference": section}]
    return config


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add the pages, which exist nowhere but in the site."""
    files.append(File.generated(config, "reference/index.md", content=_index()))
    for family in families():
        for name in family.names:
            files.append(File.generated(config, f"reference/{name}.md", content=page(name, family)))
    return files
