"""One page that collects what has been run: self-contained, no server, every image inside the file."""

from __future__ import annotations

import base64
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, StrictUndefined, Template

from ..files import ABANDONED, make_folder, read_regular_file, remove_partial, write_atomically
from .outcome import VERDICTS, Outcome
from .scoreboard import FOLDED, GROUPS, board, leading, load_outcomes
from .tables import cell_text, conditions_text

__all__ = ["build_page", "render_page"]

#: A vector drawing above this size is embedded as its PNG, which is then the smaller of the two.
_LARGEST_SVG = 200_000
#: Bytes of a picture; it goes into the page as it is.
_LARGEST_PNG = 32 << 20


def build_page(results: Path, order: Sequence[str] = (), deciding: Collection[str] = ()) -> Path:
    """Write ``results/report/index.html`` from every ``results/<experiment>/<scale>/outcome.json``.

    Args:
        results: the folder that the experiments write to.
        order: names of experiments in the order they should appear; others follow by name.
        deciding: experiments that were made to decide claims; see :func:`~eigengrad.lab.report.scoreboard.board`.

    Returns:
        The page. A damaged outcome does not stop it: the page says which file could not be read, and why.
    """
    page = results / "report" / "index.html"
    make_folder(page.parent)
    remove_partial(page.parent, older_than=ABANDONED)
    # JSON can hold halves of characters (lone surrogates), which no file can.
    write_atomically(page, render_page(results, order, deciding).encode(errors="replace"))
    return page


def render_page(results: Path, order: Sequence[str] = (), deciding: Collection[str] = ()) -> str:
    """The page of :func:`build_page` as HTML, without writing it."""
    outcomes, damaged = load_outcomes(results, order)
    # Everything that comes from a file is escaped by the template.
    groups, first = board(outcomes, deciding), leading(outcomes)
    return _template().render(outcomes=outcomes, damaged=damaged, groups=groups, leading=first)


@cache
def _template() -> Template:
    # No loader: the template cannot include files. Autoescape is for every value, with no exception.
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(cell=cell_text, conditions=conditions_text, seconds=lambda value: f"{value:,.0f}")
    environment.filters.update(verdicts=_verdicts, is_number=_is_number, about=_about)
    environment.globals.update(embedded=_embedded, headings=GROUPS, folded=FOLDED)
    return environment.from_string(_PAGE)


def _verdicts(outcome: Outcome) -> list[tuple[str, int]]:
    """The number of claims with each verdict that occurs."""
    counts = ((verdict, sum(f.verdict == verdict for f in outcome.findings)) for verdict in VERDICTS)
    return [(verdict, count) for verdict, count in counts if count]


def _about(outcome: Outcome) -> str:
    return ", ".join(f"{name} {value}" for name, value in outcome.about.items())


def _is_number(text: str) -> bool:
    """Whether a cell is a number, which is set to the right."""
    return text[:1].isdigit() or (bool(text) and text[0] in "-–−<")


def _embedded(folder: Path, name: str) -> str | None:
    """The image as a data address: the drawing if it is small, else the picture; none if there is neither."""
    for kind, ending, limit in (("svg+xml", "svg", _LARGEST_SVG), ("png", "png", _LARGEST_PNG)):
        path = folder / f"{name}.{ending}"
        try:
            # A link could show any file of this machine to whoever is sent the page.
            if path.is_symlink():
                continue
            content = read_regular_file(path, limit)
        except (OSError, ValueError):
            continue
        return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    return None


_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>eigengrad: experiments</title>
<style>
:root { --ink: #1c1f23; --soft: #5b6470; --line: #e3e6ea; --ground: #fff; --shade: #f6f7f9; --link: #00588a; }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; }
body { margin: 0; color: var(--ink); background: var(--ground); line-height: 1.5;
       font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
       display: grid; grid-template-columns: 13rem minmax(0, 1fr); }
nav { position: sticky; top: 0; height: 100vh; overflow: auto; padding: 1.6rem 1rem; background: var(--shade);
      border-right: 1px solid var(--line); font-size: .92rem; }
nav ul { list-style: none; padding: 0; margin: 1rem 0 0; }
nav li { margin: .35rem 0; }
nav small { color: var(--soft); }
a { color: var(--link); text-decoration: none; }
a:hover { text-decoration: underline; }
main { padding: 2rem 2.5rem 5rem; max-width: 72rem; }
h1 { font-size: 1.9rem; margin: 0 0 .6rem; letter-spacing: -.01em; }
h2 { font-size: 1.4rem; margin: 0 0 .7rem; }
h2.board { margin-top: 2.4rem; }
h3 { font-size: 1.05rem; margin: 1.8rem 0 .4rem; }
section { margin-top: 3.2rem; padding-top: 1.6rem; border-top: 1px solid var(--line); }
.lead { max-width: 46rem; }
.finding { max-width: 54rem; padding: .9rem 1.1rem; background: var(--shade); border-left: 4px solid #0b5136; }
dl { display: grid; grid-template-columns: auto 1fr; gap: .25rem .9rem; margin: 0 0 1rem; padding: .8rem 1rem;
     background: var(--shade); border-radius: 6px; font-size: .95rem; }
dt { color: var(--soft); } dd { margin: 0; }
.scale { display: inline-block; padding: 0 .5rem; border-radius: 4px; background: var(--ink); color: #fff;
         font-size: .85rem; }
.findings { list-style: none; padding: 0; max-width: 54rem; }
.findings li { margin: .55rem 0; }
.badge { display: inline-block; padding: 0 .5rem; border-radius: 4px; font-size: .82rem; white-space: nowrap; }
.confirmed { background: #d8f0e4; color: #0b5136; } .refuted { background: #fbe0d3; color: #7a2a00; }
.equivalent { background: #d6e8f7; color: #0b3f66; } .undecided { background: #e8eaee; color: #3f4650; }
details summary { cursor: pointer; margin-top: 1.6rem; color: var(--soft); }
table.board td:first-child { min-width: 20rem; } table.board td { min-width: 7rem; }
.detail { color: var(--soft); font-size: .85rem; display: block; }
figure { margin: 1.4rem 0; } figure img { max-width: 100%; height: auto; }
figcaption, .conditions, .note, .about { color: var(--soft); font-size: .9rem; max-width: 54rem; }
.conditions { margin: 0 0 .5rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .8rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top;
         white-space: nowrap; }
table.text td { white-space: normal; }
th { border-bottom: 2px solid #b9c0c9; font-weight: 600; }
td.number { text-align: right; }
tbody tr:hover { background: var(--shade); }
code { background: var(--shade); padding: .05rem .3rem; border-radius: 3px; }
.damaged { background: #fbe0d3; color: #7a2a00; padding: .5rem .8rem; border-radius: 6px; }
@media (max-width: 60rem) { body { display: block; } nav { position: static; height: auto; border: 0; }
                            main { padding: 1.2rem; } }
@media print { body { display: block; } nav { display: none; } section { break-before: page; } }
</style></head><body>"""

_PAGE = (
    _HEAD
    + """
<nav><strong>eigengrad</strong><ul>
{%- for _, o in outcomes -%}
<li><a href='#{{ o.experiment }}-{{ o.scale }}'>{{ o.experiment }} <small>{{ o.scale }}</small></a></li>
{%- endfor -%}
</ul></nav>
<main>
<h1>Robust Differentiable SVD, run again</h1>
<p class='lead'>Every table and figure below was made by <code>eigengrad</code>. The paper's numbers stand \
beside ours. Under each title it says how large the experiment was. A claim is confirmed, refuted, equivalent \
(the difference is shown to be too small to matter) or undecided, by one standard for both directions; what is \
undecided says how many more runs would decide it.</p>
{% for message in damaged %}
<p class='damaged'>Not shown: {{ message }}</p>
{% endfor %}
{% if not outcomes %}
<p>Nothing has been run yet. Try <code>eigengrad reproduce fig3</code>.</p>
{% else %}
{% if leading %}
{% set o, f = leading %}
<p class='finding'><b>{{ f.claim }}</b> <span class='badge {{ f.verdict }}'>{{ f.label }}</span><br>{{ f.evidence }}</p>
{% endif %}
{% for name, rows in groups.items() if rows %}
{% set heading, note = headings[name] %}
{% if name == folded %}<details><summary>{% else %}<h2 class='board'>{% endif %}
{{ heading }} <small>{{ rows | length }}</small>\
{% if name == folded %}. {{ note }}</summary>{% else %}</h2>{% endif %}
{% if note and name != folded %}<p class='note'>{{ note }}</p>{% endif %}
<div class='scroll'><table class='text board'><thead><tr><th>claim</th><th>verdict</th><th>effect, 95 % interval</th>\
<th>runs</th><th>from</th></tr></thead><tbody>
{%- for o, f in rows -%}
<tr><td>{{ f.claim }}</td><td><span class='badge {{ f.verdict }}'>{{ f.verdict }}</span>\
{% if f.detail %}<span class='detail'>{{ f.detail }}</span>{% endif %}</td>\
<td>{{ f.size or "–" }}</td><td>{{ f.runs or "–" }}</td>\
<td><a href='#{{ o.experiment }}-{{ o.scale }}'>{{ o.experiment }}</a> {{ o.scale }}</td></tr>
{%- endfor -%}
</tbody></table></div>
{% if name == folded %}</details>{% endif %}
{% endfor %}
<h2 class='board'>Every experiment</h2>
<div class='scroll'><table class='text'><thead>\
<tr><th>experiment</th><th>scale</th><th>ours</th><th>claims of the paper</th></tr></thead><tbody>
{%- for _, o in outcomes -%}
<tr><td><a href='#{{ o.experiment }}-{{ o.scale }}'>{{ o.title }}</a></td><td>{{ o.scale }}</td>\
<td>{{ o.conditions | conditions }}</td><td>
{%- for verdict, count in o | verdicts -%}
<span class='badge {{ verdict }}'>{{ count }} {{ verdict }}</span>{{ "" if loop.last else " " }}
{%- else -%}
–
{%- endfor -%}
</td></tr>
{%- endfor -%}
</tbody></table></div>
{% endif %}
{% for folder, o in outcomes %}
<section id='{{ o.experiment }}-{{ o.scale }}'><h2>{{ o.title }}</h2>
<dl><dt>ours</dt><dd><span class='scale'>{{ o.scale }}</span> {{ o.conditions | conditions }}</dd>\
<dt>paper</dt><dd>{{ o.paper }}</dd></dl>
{% if o.findings %}
<ul class='findings'>
{%- for finding in o.findings -%}
<li><span class='badge {{ finding.verdict }}'>{{ finding.label }}</span> \
<b>{{ finding.claim }}.</b> {{ finding.evidence }}</li>
{%- endfor -%}
</ul>
{% endif %}
{% for figure in o.figures %}
{% set source = embedded(folder, figure.name) %}
<figure>
{%- if source -%}
<img src='{{ source }}' alt='{{ o.title }}'>
{%- else -%}
<p class='damaged'>image missing</p>
{%- endif -%}
<figcaption>{{ figure.caption }}</figcaption></figure>
{% endfor %}
{% for table in o.tables %}
<h3>{{ table.title }}</h3>
{%- if table.conditions -%}
<p class='conditions'>Ours: {{ table.conditions | conditions }}</p>
{%- endif -%}
<div class='scroll'><table><thead><tr>
{%- for column in table.columns %}<th>{{ column }}</th>{% endfor -%}
</tr></thead><tbody>
{%- for row in table.rows -%}
<tr>
{%- for value in row -%}
{%- set text = value | cell -%}
<td{% if text | is_number %} class='number'{% endif %}>{{ text }}</td>
{%- endfor -%}
</tr>
{%- endfor -%}
</tbody></table></div>
{%- if table.note %}<p class='note'>{{ table.note }}</p>{% endif +%}
{% endfor %}
{% if o.notes %}
<h3>To know</h3><ul>
{%- for note in o.notes %}<li>{{ note }}</li>{% endfor -%}
</ul>
{% endif %}
<p class='about'>{{ o.day }}; {{ o.seconds | seconds }} s of work; {{ o | about }}</p></section>
{% endfor %}
</main></body></html>

"""
)
