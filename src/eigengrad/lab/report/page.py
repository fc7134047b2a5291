"""One page that collects what has been run: self-contained, no server, every image inside the file."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from ..files import make_folder, write_atomically
from .outcome import VERDICTS, Finding, Outcome
from .tables import Table, cell_text

__all__ = ["build_page"]

#: A vector drawing above this size is embedded as its PNG, which is then the smaller of the two.
_LARGEST_SVG = 200_000


def build_page(results: Path, order: Sequence[str] = ()) -> Path:
    """Write ``results/report/index.html`` from every ``results/<experiment>/<scale>/outcome.json``.

    Args:
        results: the folder that the experiments write to.
        order: names of experiments in the order they should appear; others follow by name.

    Returns:
        The page. A damaged outcome does not stop it: the page says which file could not be read, and why.
    """
    rank = {name: position for position, name in enumerate(order)}
    folders = sorted(
        (path.parent for path in results.glob("*/*/outcome.json")),
        key=lambda folder: (rank.get(folder.parent.name, len(rank)), folder.parent.name, folder.name),
    )
    outcomes: list[tuple[Path, Outcome]] = []
    damaged: list[str] = []
    for folder in folders:
        try:
            outcomes.append((folder, Outcome.load(folder)))
        except ValueError as error:
            damaged.append(str(error))
    page = results / "report" / "index.html"
    make_folder(page.parent)
    write_atomically(page, _document(outcomes, damaged).encode())
    return page


def _document(outcomes: list[tuple[Path, Outcome]], damaged: list[str]) -> str:
    parts = [_HEAD, _contents([outcome for _, outcome in outcomes]), "<main>"]
    parts.append("<h1>Robust Differentiable SVD, run again</h1>")
    parts.append(
        "<p class='lead'>Every table and figure below was made by <code>eigengrad</code>. The paper's numbers stand "
        "beside ours. Under each title it says how large the experiment was: numbers of a reduced scale show which "
        "method survives and which does not, not the error rates of the full protocol.</p>"
    )
    parts += [f"<p class='damaged'>Not shown: {escape(message)}</p>" for message in damaged]
    if not outcomes:
        parts.append("<p>Nothing has been run yet. Try <code>eigengrad reproduce fig3</code>.</p>")
    else:
        parts.append(_overview([outcome for _, outcome in outcomes]))
    parts += [_section(folder, outcome) for folder, outcome in outcomes]
    parts.append("</main></body></html>\n")
    return "\n".join(parts)


def _anchor(outcome: Outcome) -> str:
    return f"{outcome.experiment}-{outcome.scale}"


def _contents(outcomes: Iterable[Outcome]) -> str:
    links = "".join(
        f"<li><a href='#{_anchor(o)}'>{escape(o.experiment)} <small>{escape(o.scale)}</small></a></li>"
        for o in outcomes
    )
    return f"<nav><strong>eigengrad</strong><ul>{links}</ul></nav>"


def _overview(outcomes: Iterable[Outcome]) -> str:
    rows = []
    for o in outcomes:
        counts = {verdict: sum(f.verdict == verdict for f in o.findings) for verdict in VERDICTS}
        verdicts = " ".join(_badge(verdict, f"{count} {verdict}") for verdict, count in counts.items() if count)
        rows.append(
            f"<tr><td><a href='#{_anchor(o)}'>{escape(o.title)}</a></td><td>{escape(o.scale)}</td>"
            f"<td>{escape(_conditions(o.conditions))}</td><td>{verdicts or '–'}</td></tr>"
        )
    head = "<tr><th>experiment</th><th>scale</th><th>ours</th><th>claims of the paper</th></tr>"
    return f"<div class='scroll'><table class='text'><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table></div>"


def _section(folder: Path, outcome: Outcome) -> str:
    parts = [f"<section id='{_anchor(outcome)}'><h2>{escape(outcome.title)}</h2>"]
    parts.append(
        f"<dl><dt>ours</dt><dd><span class='scale'>{escape(outcome.scale)}</span> "
        f"{escape(_conditions(outcome.conditions))}</dd><dt>paper</dt><dd>{escape(outcome.paper)}</dd></dl>"
    )
    if outcome.findings:
        parts.append(f"<ul class='findings'>{''.join(map(_finding, outcome.findings))}</ul>")
    for figure in outcome.figures:
        source = _embedded(folder, figure.name)
        image = (
            f"<img src='{source}' alt='{escape(outcome.title)}'>" if source else "<p class='damaged'>image missing</p>"
        )
        parts.append(f"<figure>{image}<figcaption>{escape(figure.caption)}</figcaption></figure>")
    parts += [_table(table) for table in outcome.tables]
    if outcome.notes:
        parts.append("<h3>To know</h3><ul>" + "".join(f"<li>{escape(note)}</li>" for note in outcome.notes) + "</ul>")
    about = ", ".join(f"{name} {value}" for name, value in outcome.about.items())
    parts.append(f"<p class='about'>{outcome.day}; {outcome.seconds:,.0f} s of work; {escape(about)}</p></section>")
    return "\n".join(parts)


def _conditions(conditions: dict[str, str]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in conditions.items())


def _finding(finding: Finding) -> str:
    badge = _badge(finding.verdict, finding.verdict)
    return f"<li>{badge} <b>{escape(finding.claim)}.</b> {escape(finding.evidence)}</li>"


def _badge(verdict: str, text: str) -> str:
    return f"<span class='badge {verdict.replace(' ', '-')}'>{escape(text)}</span>"


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    body = "".join(
        "<tr>" + "".join(f"<td{_alignment(cell_text(cell))}>{escape(cell_text(cell))}</td>" for cell in row) + "</tr>"
        for row in table.rows
    )
    conditions = f"<p class='conditions'>Ours: {escape(_conditions(table.conditions))}</p>" if table.conditions else ""
    note = f"<p class='note'>{escape(table.note)}</p>" if table.note else ""
    return (
        f"<h3>{escape(table.title)}</h3>{conditions}<div class='scroll'><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>{note}"
    )


def _alignment(text: str) -> str:
    return " class='number'" if text[:1].isdigit() or text[:1] in "-–−<" else ""


def _embedded(folder: Path, name: str) -> str | None:
    """The image as a data address: the drawing if it is small, else the picture."""
    drawing, picture = folder / f"{name}.svg", folder / f"{name}.png"
    if drawing.is_file() and drawing.stat().st_size <= _LARGEST_SVG:
        return f"data:image/svg+xml;base64,{base64.b64encode(drawing.read_bytes()).decode()}"
    if picture.is_file():
        return f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()}"
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
h3 { font-size: 1.05rem; margin: 1.8rem 0 .4rem; }
section { margin-top: 3.2rem; padding-top: 1.6rem; border-top: 1px solid var(--line); }
.lead { max-width: 46rem; }
dl { display: grid; grid-template-columns: auto 1fr; gap: .25rem .9rem; margin: 0 0 1rem; padding: .8rem 1rem;
     background: var(--shade); border-radius: 6px; font-size: .95rem; }
dt { color: var(--soft); } dd { margin: 0; }
.scale { display: inline-block; padding: 0 .5rem; border-radius: 4px; background: var(--ink); color: #fff;
         font-size: .85rem; }
.findings { list-style: none; padding: 0; max-width: 54rem; }
.findings li { margin: .55rem 0; }
.badge { display: inline-block; padding: 0 .5rem; border-radius: 4px; font-size: .82rem; white-space: nowrap; }
.confirmed { background: #d8f0e4; color: #0b5136; } .not-confirmed { background: #fbe0d3; color: #7a2a00; }
.open { background: #e8eaee; color: #3f4650; }
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
